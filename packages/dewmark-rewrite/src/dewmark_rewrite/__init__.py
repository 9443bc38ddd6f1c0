"""Mark a text that already exists: `rewrite` changes few words, and the ordinary detector reads the mark."""

from __future__ import annotations

from dewmark_rewrite.documents import Document, read_document
from dewmark_rewrite.rewriting import Options, Rewriter, Rewritten, rewrite
from dewmark_rewrite.thesaurus import Candidate, Thesaurus

__all__ = [
    "Candidate",
    "Document",
    "Options",
    "Rewriter",
    "Rewritten",
    "Thesaurus",
    "read_document",
    "rewrite",
]
