"""Which rewrites count, decided from the two texts alone."""

from __future__ import annotations

import pytest

from dewmark.errors import InputError
from dewmark_lab.evaluation.rewrites import check_rewrites, rewriter_quality

TEXT = (
    "The old bridge over the river was closed in March because two of its stones had shifted. Engineers will "
    "examine the arches before the summer, and the town has asked for money to repair them. Until then buses "
    "take the longer way through the village, which adds ten minutes to every journey."
)
PARAPHRASE = (
    "Since two stones had moved, the town shut the ancient bridge across the river in March. Its arches are "
    "to be inspected by engineers before summer begins, and funds for repairs have been requested. Meanwhile "
    "the buses go a longer route by the village, so each trip lasts ten minutes more."
)
GERMAN = (
    "Die alte Brücke über den Fluss wurde im März geschlossen, weil sich zwei ihrer Steine verschoben hatten."
    " Ingenieure werden die Bögen vor dem Sommer untersuchen, und die Stadt hat um Geld für die Reparatur "
    "gebeten. Bis dahin nehmen die Busse den längeren Weg durch das Dorf."
)
FAULTS = {
    "empty": "   ",
    "refusal": "I'm sorry, but I cannot assist with that request because it may be about infrastructure.",
    "language": GERMAN,
    "copy": TEXT.replace("ten", "eleven"),
    "short": "The bridge was shut in March after two of the stones in it had moved.",
    "long": PARAPHRASE * 4,
    "loop": PARAPHRASE[:88] + " It is to be repaired by the town soon." * 12,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named(fault: str) -> None:
    (found,) = check_rewrites([TEXT], [FAULTS[fault]], language="en")
    assert found.fault == fault


def test_good_rewrites_count_and_are_summed_up() -> None:
    rewrites = check_rewrites([TEXT] * 3, [PARAPHRASE, GERMAN, ""], language="en")
    assert rewrites[0].fault is None
    assert 0.3 < rewrites[0].words_changed < 0.9
    assert check_rewrites([TEXT], [GERMAN], language="de")[0].fault is None
    quality = rewriter_quality(rewrites)
    assert (quality.texts, quality.kept, quality.faults) == (3, 1, {"language": 1, "empty": 1})
    assert quality.words_changed == rewrites[0].words_changed
    assert "1 of 3 rewrites count" in str(quality)


def test_a_summary_may_be_as_short_as_asked() -> None:
    summary = "Stones moved, so the river bridge is shut, and buses go round by the village until repairs."
    assert check_rewrites([TEXT], [summary], language="en")[0].fault == "short"
    assert check_rewrites([TEXT], [summary], language="en", length=0.5)[0].fault is None


def test_numbers_must_match() -> None:
    with pytest.raises(InputError, match="2 originals but 1 rewrites"):
        check_rewrites([TEXT] * 2, [TEXT], language="en")
