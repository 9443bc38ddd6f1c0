"""Training of SemStamp and k-SemStamp on a bag-of-words encoder: pairs, the map, clusters, resuming."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tests.fakes import BagEncoder
from tests.training.conftest import tiny_job

from dewmark.core.keys import Key
from dewmark.errors import InputError
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace
from dewmark_lab.schemes.sentence.sentence_space import adapt, encode
from dewmark_lab.testing.trial import tiny_host
from dewmark_lab.training import TRAINERS
from dewmark_lab.training.job import TrainingJob, train_artifact
from dewmark_lab.training.semstamp import cosine_k_means, file_pairs, synthetic_pairs

WORDS = (
    *("river", "bridge", "water", "light", "story", "people", "garden"),
    *("winter", "letter", "captain", "window", "silver", "evening", "morning"),
)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """30 texts of four sentences as JSONL, half of them with a paraphrase in another order."""
    source, rows = random.Random(0), []
    for number in range(30):
        parts = [source.sample(WORDS, 7) for _ in range(4)]
        text = " ".join(f"{' '.join(part)}." for part in parts)
        row = {"text": text}
        if number % 2:
            row["paraphrase"] = " ".join(f"Really {' '.join(part[::-1])}." for part in parts[::-1])
        rows.append(json.dumps(row))
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(rows), encoding="utf-8")
    return file


@pytest.fixture
def job(texts: Path, tmp_path: Path, bag_encoder: BagEncoder):
    def make(scheme: str, *, steps: int = 30, out: str = "out", file: Path = texts) -> TrainingJob:
        return tiny_job(scheme, file, tmp_path / out, steps=steps)

    return make


def test_synthetic_pairs_only_drop_and_reorder_words() -> None:
    sentence = "The old bridge, which was high, held all winter."
    pairs = synthetic_pairs([f"{sentence} Short one. {sentence}"], seed=0)
    assert [anchor for anchor, _, _ in pairs] == [sentence] * 3
    for _, variant, _ in pairs:
        assert variant != sentence
        assert set(variant.replace(",", "").split()) <= set(
            sentence.replace(",", "").replace(".", "").split()
        ) | {"winter."}
    assert synthetic_pairs([sentence], seed=0) == synthetic_pairs([sentence], seed=0)


def test_pairs_from_a_file_are_matched_by_shared_words(texts: Path) -> None:
    pairs = file_pairs(texts)
    assert len(pairs) > 40  # of 60
    for sentence, paraphrase, _ in pairs:
        shared = set(sentence.strip(".").split()) & set(paraphrase.strip(".").split())
        assert len(shared) >= 4


def test_a_paraphrase_must_be_a_string(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"text": "A river.", "paraphrase": 3}\n', encoding="utf-8")
    with pytest.raises(InputError, match='line 1: "text" and "paraphrase"'):
        file_pairs(file)


def test_training_brings_pairs_closer(job, tmp_path: Path, bag_encoder: BagEncoder, texts: Path) -> None:
    artifact, report = train_artifact(TRAINERS["semstamp"], job("semstamp", steps=150))
    _, before = train_artifact(TRAINERS["semstamp"], job("semstamp", steps=1, out="before"))
    assert report["loss"] < before["loss"]
    arrays = {name: array.astype(np.float32) for name, array in artifact.arrays.items()}
    assert {name: array.shape for name, array in arrays.items()} == {"mean": (24,), "matrix": (24, 24)}
    anchors, paraphrases, _ = zip(*file_pairs(texts), strict=True)
    left, right = (encode(bag_encoder, side) for side in (anchors, paraphrases))
    trained = np.sum(adapt(left, **arrays) * adapt(right, **arrays), axis=1)
    unrelated = np.sum(adapt(left, **arrays) * adapt(np.roll(right, 7, axis=0), **arrays), axis=1)
    assert trained.mean() > unrelated.mean() + 0.3
    scheme = SCHEMES["semstamp"]().with_settings({"artifact": str(artifact.path)})
    bound = scheme.bind(Key(bytes(32)), tiny_host().info, Workspace(cache=tmp_path / "cache"))
    assert bound.artifact_identity == artifact.identity


def test_too_little_text_is_rejected(job, tmp_path: Path) -> None:
    file = tmp_path / "little.txt"
    file.write_text("One short text of seven words only.", encoding="utf-8")
    with pytest.raises(InputError, match="3 pairs of sentences, 60 are needed"):
        train_artifact(TRAINERS["semstamp"], job("semstamp", file=file, out="little"))


def test_k_means_recovers_clusters() -> None:
    """Eight directions with 10% noise: every point is assigned to its own."""
    rng = np.random.default_rng(0)
    truth = rng.integers(8, size=400)
    rows = np.eye(8, 16)[truth] + 0.1 * rng.normal(size=(400, 16)) / 4.0
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    found = max(
        (cosine_k_means(rows, 8, np.random.default_rng(i)) for i in range(8)), key=lambda each: each[1]
    )
    labels = (rows @ found[0].T).argmax(axis=1)
    assert len(set(zip(truth.tolist(), labels.tolist(), strict=True))) == 8
    assert np.allclose(np.linalg.norm(found[0], axis=1), 1.0, atol=1e-5)
    assert found[1] > 0.95
