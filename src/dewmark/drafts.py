"""The second way of marking: a scheme chooses between drafts of the next sentence, which a host writes.

A scheme whose `Needs` declare ``drafts`` cannot say anything about one token's logits. For a batch of texts
it offers a `Drafts` object instead; the host writes several drafts of each row's next sentence, asks where
they end and which of them carry the mark, and goes on with the first that does.

Boundary: the contract only. `dewmark.hosts.drafting` drives it, `dewmark.baselines` fill it in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

__all__ = ["Drafts"]


class Drafts(ABC):
    """Judges drafts of the sentences of one batch of texts, and dies with the batch.

    ``tries`` bounds the drafts of one sentence; ``at_once`` says how many of them a host may write together,
    which changes the time it takes and nothing else. A draft is the text that would follow what the row
    holds already.
    """

    tries: int
    at_once: int

    @abstractmethod
    def end(self, row: int, draft: str, *, last: bool = False) -> int | None:
        """How many characters of the draft make its sentence complete; None if it is not, or not yet surely.

        ``last`` says that nothing can follow the draft.
        """

    @abstractmethod
    def judge(self, rows: Sequence[int], drafts: Sequence[str]) -> list[float]:
        """A number for each draft of a whole sentence, all in one call: above 0 it passes.

        Larger is better. -inf means that the draft changes a sentence which was accepted before.
        """

    @abstractmethod
    def accept(self, row: int, draft: str) -> None:
        """The row goes on with this draft, which was judged."""
