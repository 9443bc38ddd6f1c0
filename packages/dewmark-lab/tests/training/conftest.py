"""Jobs on the tiny host."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes import BagEncoder

from dewmark.workspace import silent
from dewmark_lab.testing.trial import tiny_host
from dewmark_lab.training.job import TrainingJob
from dewmark_lab.training.texts import FileTexts


def tiny_job(scheme: str, texts: Path, out: Path, *, steps: int | None = None) -> TrainingJob:
    """The training of a scheme with a bag-of-words encoder, on the texts of a file."""
    return TrainingJob(
        scheme=scheme,
        info=tiny_host().info,
        open_host=tiny_host,
        encoder=BagEncoder(),
        texts=FileTexts(texts),
        out=out,
        progress=silent,
        device="cpu",
        steps=steps,
    )


@pytest.fixture
def topic_job(tmp_path: Path, bag_encoder: BagEncoder) -> Callable[..., TrainingJob]:
    """Makes the job of a scheme with 24 texts of 60 words, each on its own topic."""
    source, tokenizer = random.Random(0), tiny_host().info.tokenizer
    topics = [source.sample(range(4, 400), 25) for _ in range(24)]
    texts = tokenizer.decode([source.choices(topic, k=60) for topic in topics])
    file = tmp_path / "texts.txt"
    file.write_text("\n\n".join(texts), encoding="utf-8")

    def make(scheme: str, steps: int, out: str = "out") -> TrainingJob:
        return tiny_job(scheme, file, tmp_path / out, steps=steps)

    return make


@pytest.fixture
def short_texts(tmp_path: Path) -> FileTexts:
    """Three texts of two words."""
    file = tmp_path / "short.txt"
    file.write_text("\n\n".join(f" the {word}" for word in ("old", "new", "sea")), encoding="utf-8")
    return FileTexts(file)
