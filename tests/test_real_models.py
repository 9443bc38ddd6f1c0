"""The whole way on SmolLM2-135M and USE-m v3: what the README shows, with fixed keys and seeds."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from tests.text.test_cleaning import DISGUISES

import dewmark
from dewmark.decoding import Decoding
from dewmark.detect import score_texts

pytestmark = pytest.mark.models

PROMPTS = [
    "The old bridge over the river",
    "My grandmother kept a small shop at the end of the harbour, and every summer",
    "Dear editor, I have read your paper for thirty years, and",
    "To repair a bicycle tyre you need",
]
LENGTH = {"max_new_tokens": 200, "min_new_tokens": 200}


COMPOSED = {"context_encoding": "composed", "whiten_contexts": True}


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [("dew", {}), ("dew-paper", COMPOSED), ("dew-paper", {"whiten_contexts": True})],
    ids=["words", "tokens", "window"],
)
def test_marked_is_found_and_nothing_else(scheme: str, settings: dict[str, object], tmp_path: Path) -> None:
    watermark = dewmark.Watermark(dewmark.Key(bytes(range(32))), scheme=scheme, settings=settings)
    marked = [g.text for g in watermark.generate_batch(PROMPTS, seeds=range(4), **LENGTH)]
    unmarked = watermark.host.generate(
        PROMPTS, scheme=None, seeds=range(4), decoding=Decoding(**LENGTH, no_repeat_ngram=4)
    )
    found = watermark.detect_batch(marked)
    # z is near 5 on tokens with a bias, 10 on words, with a spread of about 1 in each text: 0.5 in their mean
    assert np.mean([d.z for d in found]) > 3.5
    assert sum(d.is_marked for d in found) >= 3
    assert not any(d.is_marked for d in watermark.detect_batch([g.text for g in unmarked], fpr=1e-3))
    wrong = dewmark.load_scheme(
        dewmark.Key(bytes(32)), host=watermark.scheme.host, scheme=scheme, settings=settings
    )
    assert not any(d.is_marked for d in score_texts(wrong, marked, fpr=1e-3))

    if scheme == "dew":  # every form of a text keeps 95% of z
        total = sum(d.z for d in found)
        for name, disguise in DISGUISES.items():
            kept = sum(d.z for d in watermark.detect_batch([disguise(text) for text in marked])) / total
            assert kept >= 0.95, f"{name}: {kept:.2f}"

    watermark.detector().save(tmp_path / "detector")
    again = dewmark.Detector.load(tmp_path / "detector").detect_batch(marked)
    assert [d.p_value for d in again] == pytest.approx([d.p_value for d in found], rel=1e-4)


def test_the_eight_lines_run_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parent.parent / "examples" / "eight_lines.py"))
    assert "p = " in capsys.readouterr().out


REFERENCES = {
    ("en", "fr"): [
        ("The old bridge was closed in March.", "Le vieux pont a été fermé en mars."),
        ("My sister works in a hospital.", "Ma sœur travaille à l'hôpital."),
    ],
    ("fr", "en"): [
        ("Le vieux pont a été fermé en mars.", "The old bridge was closed in March."),
        ("Ma sœur travaille dans un hôpital.", "My sister works in a hospital."),
    ],
    ("en", "pt"): [
        ("The old bridge was closed in March.", "A velha ponte foi fechada em março."),
        ("My sister works in a hospital.", "Minha irmã trabalha em um hospital."),
    ],
    ("pt", "en"): [
        ("A velha ponte foi fechada em março.", "The old bridge was closed in March."),
        ("Minha irmã trabalha em um hospital.", "My sister works in a hospital."),
    ],
}


@pytest.mark.parametrize("direction", REFERENCES, ids="-".join)
def test_every_direction_translates_reference_sentences(direction: tuple[str, str]) -> None:
    from dewmark.text.words import words
    from dewmark.workspace import silent
    from dewmark_lab.attacks.translation.machine_translation import NEURAL, NeuralEngine

    assert set(REFERENCES) == set(NEURAL)
    if direction != ("en", "pt") and direction != ("pt", "en"):
        pytest.importorskip("sentencepiece")
    sources, references = zip(*REFERENCES[direction], strict=True)
    made = NeuralEngine(*direction).translate(list(sources), task="", progress=silent)
    for translation, reference in zip(made, references, strict=True):
        found, wanted = ({word.form for word in words(text)} for text in (translation, reference))
        assert len(found & wanted) >= 0.6 * len(wanted), translation
