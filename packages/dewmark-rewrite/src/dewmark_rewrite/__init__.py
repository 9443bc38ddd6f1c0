"""Mark a text that already exists: `rewrite` changes few words, and the ordinary detector reads the mark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dewmark_rewrite.documents import RewritableDocument, read_document
    from dewmark_rewrite.rewriting import Options, Rewriter, Rewritten, rewrite
    from dewmark_rewrite.thesaurus import Candidate, Thesaurus

__all__ = [
    "Candidate",
    "Options",
    "RewritableDocument",
    "Rewriter",
    "Rewritten",
    "Thesaurus",
    "read_document",
    "rewrite",
]

_MODULES = {
    **dict.fromkeys(("Candidate", "Thesaurus"), "thesaurus"),
    **dict.fromkeys(("RewritableDocument", "read_document"), "documents"),
    **dict.fromkeys(("Options", "Rewriter", "Rewritten", "rewrite"), "rewriting"),
}


def __getattr__(name: str) -> object:  # the command is listed without loading what it runs
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
