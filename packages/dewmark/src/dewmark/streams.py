"""A text that is still arriving, under one key or several, and its verdict.

A scheme's `StreamDetector` gives p-values that are valid whenever you stop; `Stream` corrects the best of
several keys for their number and decides as every other door does (`dewmark.verdict`): a text with too few
scored words is too short, and one in a language that the detector does not judge is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from dewmark.capabilities import FollowsStreams, StreamDetector, capability
from dewmark.scheme import BoundScheme
from dewmark.types import Looks, Verdict
from dewmark.verdict import DEFAULT_FPR, corrected, level_of_key, verdict_of
from dewmark.workspace import Tokenized

__all__ = ["Stream"]

_UNKNOWN: dict[str, int | str | None] = {"member": None, "payload": None, "epoch": None}


class Stream:
    """Watches one text while it grows: `update` takes the next piece and returns the p-value so far.

    ``keys`` counts the keys that could have been asked for, if they are more than ``bounds``.
    """

    def __init__(
        self,
        bounds: Sequence[BoundScheme],
        *,
        prompt: str | None = None,
        fpr: float = DEFAULT_FPR,
        keys: int | None = None,
    ) -> None:
        self.fpr, self.looks = fpr, Looks(keys=max(len(bounds), keys or 1))
        self.text = ""
        self._bounds, self._ended = bounds, False
        level = level_of_key(fpr, self.looks) if 0.0 < fpr < 1.0 else fpr
        self._streams = [capability(each, FollowsStreams).follow(prompt=prompt, fpr=level) for each in bounds]

    def update(self, piece: str) -> float:
        """Read the next piece of the text; its last word may go on in the next piece."""
        self.text += piece
        for each in self._streams:
            each.update(piece)
        return self.p_value

    def finish(self) -> float:
        """The text has ended: read its last word, too."""
        self._ended = True
        for each in self._streams:
            each.finish()
        return self.p_value

    @property
    def index(self) -> int:
        """The number of the key that fits best."""
        return min(range(len(self._streams)), key=lambda i: self._streams[i].p_value)

    @property
    def best(self) -> StreamDetector:
        """What the best key finds, not corrected for the others."""
        return self._streams[self.index]

    @property
    def p_value(self) -> float:
        """The p-value so far, corrected for all keys and valid whenever you stop."""
        return corrected(self.best.p_value, self.looks)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None as long as more text may change it."""
        found = verdict_of(self.p_value, self.best.scored, self.fpr)
        if found is Verdict.MARKED or self._ended:
            found = self._bounds[self.index].languages.read([Tokenized(self.text, (), ())])[0].judge(found)
        return found if found is Verdict.MARKED or self._ended else None

    @property
    def is_marked(self) -> bool:
        """Whether the text is found to be marked."""
        return self.verdict is Verdict.MARKED

    @property
    def origin(self) -> dict[str, int | str | None]:
        """The ``member``, ``payload`` and ``epoch`` that fit, None where the text does not tell."""
        return self.best.origin if self.is_marked else dict(_UNKNOWN)
