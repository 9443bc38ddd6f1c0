"""How well a substitution reads, by a small causal language model: what it loses on the word and after it.

The text is read once. Each candidate is a branch of it: the new word and the next few words, which see the
text before them and themselves but no other branch. So a candidate costs its own tokens only, and many are
judged in one pass. Two numbers matter: a rare word is unlikely wherever it stands, so the loss on the word
itself may be large; but where the words after it become unlikely, the new word does not fit.

Boundary: candidates in, losses in nats out. Which losses are too large is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from dewmark_rewrite.thesaurus import Candidate

if TYPE_CHECKING:
    import torch

    from dewmark.hosts.transformers.model import TransformersHost
    from dewmark.workspace import Progress

_WORDS_AFTER = 3
_BEFORE = 256  # tokens of the text that a branch sees
_ROW = 1024  # tokens of the text and its branches in one pass
_AFTER = re.compile(rf"(?:\s*\S+){{0,{_WORDS_AFTER}}}")


class Loss(NamedTuple):
    """What a model loses by a change, in nats: on the changed words and on those after them."""

    word: float
    after: float


class Judge(Protocol):
    """Says how well changes of a text read."""

    def losses(self, text: str, candidates: Sequence[Candidate]) -> list[Loss]:
        """The loss of each candidate, made alone."""


@dataclass(frozen=True)
class CausalJudge:
    """Judges with a causal language model in memory."""

    host: TransformersHost

    @classmethod
    def load(cls, name: str, *, device: str = "auto", progress: Progress | None = None) -> CausalJudge:
        """Open a host to judge with."""
        from dewmark.hosts.transformers.model import load_host

        return cls(load_host(name, device=device, dtype="float32", progress=progress))

    def losses(self, text: str, candidates: Sequence[Candidate]) -> list[Loss]:
        """The loss of each candidate, made alone."""
        spans = sorted({(each.start, each.end, each.old) for each in candidates})
        wanted = [*spans, *((each.start, each.end, each.new) for each in candidates)]
        found = self._likelihoods(text, wanted)
        own = {(start, end): found[i] for i, (start, end, _) in enumerate(spans)}
        return [
            Loss(own[each.start, each.end][0] - word, own[each.start, each.end][1] - after)
            for each, (word, after) in zip(candidates, found[len(spans) :], strict=True)
        ]

    def _likelihoods(self, text: str, branches: Sequence[tuple[int, int, str]]) -> list[tuple[float, float]]:
        """Log-probabilities of each branch (start, end, word): of the word, and of what follows it."""
        tokenizer = self.host.tokenizer
        (root,) = self.host.prompt_ids([""])
        (trunk,) = tokenizer.encode([text])
        ends = np.array([end for _, end in trunk.offsets])
        made: list[_Branch] = []
        for start, end, word in branches:
            kept = int(np.searchsorted(ends, start, side="right"))
            lead = text[int(ends[kept - 1]) if kept else 0 : start] + word
            following = _AFTER.match(text, end)
            tail = following.group() if following else ""
            (joined,) = tokenizer.encode([lead + tail])
            own = sum(1 for first, _ in joined.offsets if first < len(lead))
            made.append(_Branch(kept, list(joined.ids), own))
        found: list[tuple[float, float]] = [(0.0, 0.0)] * len(made)
        for group in _groups(made):
            start = max(made[group[0]].kept - _BEFORE, 0)
            end = max(made[i].kept + _shared(made[i], trunk.ids) for i in group)
            before = [*(root or [trunk.ids[0]]), *trunk.ids[start:end]]
            shift = len(before) - end
            for i, sums in zip(group, self._packed(before, [made[i] for i in group], shift), strict=True):
                found[i] = sums
        return found

    def _packed(
        self, before: Sequence[int], branches: Sequence[_Branch], shift: int
    ) -> list[tuple[float, float]]:
        """Sums of log-probabilities of branches behind one beginning of the text, in one pass.

        What a branch has in common with the text is not read again.
        """
        import torch

        ids, positions = list(before), list(range(len(before)))
        group, reach = [0] * len(before), [0] * len(before)
        places: list[list[int]] = []
        for number, branch in enumerate(branches, start=1):
            seen = branch.kept + shift
            shared = _shared(branch, before[shift:])
            rest = branch.ids[shared:]
            places.append([*range(seen - 1, seen + shared), *range(len(ids), len(ids) + len(rest) - 1)])
            places[-1] = places[-1][: len(branch.ids)]
            ids += rest
            positions += range(seen + shared, seen + len(branch.ids))
            group += [number] * len(rest)
            reach += [seen + shared] * len(rest)
        model = self.host.model
        device = self.host.device
        row, column = torch.tensor(group), torch.tensor(positions)
        own = (row[:, None] == row[None, :]) & (column[None, :] <= column[:, None])
        own |= (row[None, :] == 0) & (column[None, :] < torch.tensor(reach)[:, None])
        mask = torch.zeros(own.shape, dtype=model.dtype).masked_fill_(~own, torch.finfo(model.dtype).min)
        with torch.no_grad():
            logits: torch.Tensor = model(
                input_ids=torch.tensor([ids], device=device),
                position_ids=column[None].to(device),
                attention_mask=mask[None, None].to(device),
                use_cache=False,
            ).logits[0]
        sums = []
        for branch, heads in zip(branches, places, strict=True):
            chosen = logits[heads].float().log_softmax(-1)[range(len(heads)), branch.ids]
            sums.append((float(chosen[: branch.own].sum()), float(chosen[branch.own :].sum())))
        return sums


class _Branch(NamedTuple):
    """Ids after the first ``kept`` ids of the text; ``own`` of them belong to the changed words."""

    kept: int
    ids: list[int]
    own: int


def _shared(branch: _Branch, trunk: Sequence[int]) -> int:
    """How many ids a branch begins with that the text has there too."""
    same = 0
    for own, other in zip(branch.ids, trunk[branch.kept :], strict=False):
        if own != other:
            break
        same += 1
    return same


def _groups(branches: Sequence[_Branch]) -> list[list[int]]:
    """Branches in the order of the text, as many at once as fit into a row."""
    order = sorted(range(len(branches)), key=lambda i: branches[i].kept)
    groups: list[list[int]] = []
    size = 0
    for i in order:
        size += len(branches[i].ids)
        if groups and size <= _ROW and branches[i].kept - branches[groups[-1][0]].kept < _BEFORE:
            groups[-1].append(i)
        else:
            groups.append([i])
            size = len(branches[i].ids)
    return groups
