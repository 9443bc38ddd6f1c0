from __future__ import annotations

import numpy as np
import pytest

from dewmark_desk.query_log import BANDS, PLACES, Sketcher, shingles

KEY = bytes(range(32))
WORDS = [f"w{i}" for i in range(3000)]


def texts(similarity: float, rng: np.random.Generator, *, size: int = 400) -> tuple[str, str]:
    """Two texts without repeated phrases whose shingles have about this Jaccard similarity."""
    words = list(rng.choice(WORDS, size=size, replace=False))
    shared = round(2 * size * similarity / (1 + similarity))
    other = words[:shared] + [f"x{i}" for i in range(size - shared)]
    return " ".join(words), " ".join(other)


def jaccard(a: str, b: str) -> float:
    one, two = set(shingles(a)), set(shingles(b))
    return len(one & two) / len(one | two)


@pytest.mark.parametrize("target", [0.1, 0.3, 0.5, 0.8])
def test_equal_places_estimate_the_similarity(target):
    rng = np.random.default_rng(0)
    errors = []
    for i in range(40):
        a, b = texts(target, rng)
        sketch = Sketcher(bytes([i]) * 32)
        errors.append(sketch(a).similarity(sketch(b).to_hex()) - jaccard(a, b))
    # a place agrees with probability J: the mean of 40 estimates has the error √(J(1−J)/60/40) ≤ 0.0102
    assert abs(np.mean(errors)) < 4 * 0.0102
    assert np.std(errors) < 0.065 * 1.5


def test_similar_texts_share_a_band_and_unrelated_ones_do_not():
    rng = np.random.default_rng(1)
    shared = {
        target: np.mean(
            [
                bool(set((s := Sketcher(bytes([i]) * 32))(a).bands) & set(s(b).bands))
                for i in range(60)
                for a, b in [texts(target, rng)]
            ]
        )
        for target in (0.05, 0.5, 0.8)
    }
    # 1 − (1 − J³)²⁰: 0.0025, 0.931, 1.000; 60 trials
    assert shared[0.05] <= 0.05
    assert shared[0.5] >= 0.931 - 4 * 0.033
    assert shared[0.8] == 1.0


def test_a_key_changes_every_hash():
    a = Sketcher(KEY)("the old bridge over the river was built of stone")
    b = Sketcher(KEY[::-1])("the old bridge over the river was built of stone")
    assert not set(a.bands) & set(b.bands)
    assert not set(a.places) & set(b.places)


def test_case_spacing_and_punctuation_do_not_matter():
    sketch = Sketcher(KEY)
    assert sketch("The old bridge, over the river!") == sketch("the  OLD bridge over\nthe river")


@pytest.mark.parametrize("text", ["", "one", "two words", "…", "橋", "สะพาน", "\ud800", "a " * 100_000])
def test_every_text_has_a_sketch(text):
    found = Sketcher(KEY)(text)
    assert (len(found.places), len(found.bands)) == (PLACES, BANDS)
    assert found.similarity(found.to_hex()) == 1.0
    assert len(found.to_hex()) == 480


def test_scripts_without_spaces_are_compared_by_character():
    sketch = Sketcher(KEY)
    a, b = "古い橋が川に架かっている。石で造られた。" * 2, "古い橋が川に架かっている。木で造られた。" * 2
    assert sketch(a).similarity(sketch(b).to_hex()) > 0.4
