"""Work on files of texts: rows in, rows out, resumable, on one process, several, or a Ray cluster.

    from pathlib import Path

    from dewmark import Key, Watermark
    from dewmark.batch import DetectorSpec, detect_file, generate_file

    key = Key.load("my.key")
    generate_file("prompts.jsonl", "marked.jsonl", Watermark(key=key))
    detect_file("marked.jsonl", "results.parquet", DetectorSpec(keys=(Path("my.key"),)), workers=4)
    detect_file("s3://bucket/texts.parquet", "all.parquet", "exported-detector/", engine="ray")

Each can be stopped at any moment: the same call resumes it, to the same output file. A file that
another configuration wrote is never overwritten or continued.

`open_runner` runs any picklable function over workers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dewmark.batch.detecting import DetectResult, detect_file
    from dewmark.batch.generating import GenerateResult, TextWriter, generate_file
    from dewmark.batch.inputs import Document, Prompt, read_files, read_prompts
    from dewmark.batch.keyring import load_keys
    from dewmark.batch.runners import Runner, open_runner
    from dewmark.batch.scorers import DetectorSpec, Scored, Scorer, open_detector
    from dewmark.batch.sources import Source, open_source

__all__ = [
    "DetectResult",
    "DetectorSpec",
    "Document",
    "GenerateResult",
    "Prompt",
    "Runner",
    "Scored",
    "Scorer",
    "Source",
    "TextWriter",
    "detect_file",
    "generate_file",
    "load_keys",
    "open_detector",
    "open_runner",
    "open_source",
    "read_files",
    "read_prompts",
]

_MODULES = {
    "detecting": "DetectResult detect_file",
    "generating": "GenerateResult TextWriter generate_file",
    "inputs": "Document Prompt read_files read_prompts",
    "keyring": "load_keys",
    "runners": "Runner open_runner",
    "scorers": "DetectorSpec Scored Scorer open_detector",
    "sources": "Source open_source",
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"dewmark.batch.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'dewmark.batch' has no attribute {name!r}")
