"""Unmarked texts and how they score: what ``dewmark audit`` and ``dewmark key new --audit`` share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dewmark.cli.inputs import Entry, read_texts
from dewmark.errors import ConfigError
from dewmark.stats.audit import Audit, audit
from dewmark.text.languages import guess_language
from dewmark.types import Verdict

if TYPE_CHECKING:
    from dewmark.types import Detection

__all__ = ["Judged", "Negatives", "audit_of"]


@dataclass(frozen=True, slots=True)
class Judged:
    """One text that is long enough to be judged; ``length`` counts scored tokens."""

    id: str | int
    language: str
    length: int
    p_value: float


@dataclass(frozen=True)
class Negatives:
    """Texts that are known to carry no mark of the key."""

    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, names: Sequence[str], *, option: str) -> Negatives:
        """Read text files and JSONL files; ``option`` is how the command calls them."""
        if not names:
            raise ConfigError(f"no texts to audit on: give {option} TEXTS (text files, JSONL files)")
        return cls(tuple(read_texts(names)))

    @functools.cached_property
    def languages(self) -> list[str]:
        """The language of each text, guessed where the file does not say."""
        return [entry.language or guess_language(entry.text) for entry in self.entries]

    def judged(self, detections: Sequence[Detection]) -> list[Judged]:
        """Those texts that a detector would judge, given each text's detection."""
        rows = zip(self.entries, self.languages, detections, strict=True)
        return [
            Judged(
                id=str(number) if entry.id is None else entry.id,
                language=language,
                length=detection.tokens_scored,
                p_value=detection.p_value,
            )
            for number, (entry, language, detection) in enumerate(rows)
            if detection.verdict is not Verdict.TOO_SHORT
        ]


def audit_of(judged: Sequence[Judged]) -> Audit:
    """The audit of texts that were judged under one key."""
    return audit(
        [row.p_value for row in judged],
        languages=[row.language for row in judged],
        lengths=[row.length for row in judged],
    )
