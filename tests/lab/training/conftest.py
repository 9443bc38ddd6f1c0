"""Jobs on the tiny host."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import BagEncoder

from dewmark.lab.training.job import Job
from dewmark.lab.training.texts import FileTexts
from dewmark.testing.trial import tiny_host
from dewmark.workspace import silent


def tiny_job(scheme: str, texts: Path, out: Path, *, steps: int | None = None) -> Job:
    """The training of a scheme with a bag-of-words encoder, on the texts of a file."""
    return Job(
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
