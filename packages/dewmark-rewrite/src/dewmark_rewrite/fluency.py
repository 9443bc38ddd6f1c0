"""How well a change reads, by a small causal language model: its loss on the changed words and after them.

The text is read once. That alone tells how likely each change begins, which sorts out most of thousands of
candidates. The others are branches of the text: the new words and the next few, which see the text before
them and themselves but no other branch, so that many are judged in one pass. Two numbers matter: a rare word
is unlikely wherever it stands, so the loss on the word itself may be large; but where the words after it
become unlikely, the new word does not fit.

Boundary: candidates in, losses in nats out. Which losses are too large is decided elsewhere.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dewmark_rewrite.thesaurus import Candidate

if TYPE_CHECKING:
    import torch

    from dewmark.hosts.transformers.model import TransformersHost
    from dewmark.workspace import Progress

_WORDS_AFTER = 3
_PIECE, _BEFORE = 512, 128  # tokens that are read at once, and those before them that are read again
_ROW = 768  # tokens of branches in one pass
_AFTER = re.compile(rf"(?:\s*\S+){{0,{_WORDS_AFTER}}}")


class Loss(NamedTuple):
    """What a model loses by a change, in nats: on the changed words and on those after them."""

    word: float
    after: float


Judge = Callable[[str], "CausalReading"]
"""Reads a text, to say how well changes of it read."""


def causal_judge(name: str, *, device: str = "auto", progress: Progress | None = None) -> Judge:
    """Open a host to judge with, in bfloat16 where a CPU multiplies that in hardware: 3 times as fast."""
    import torch

    from dewmark.hosts.transformers.model import load_host

    ask: Callable[[], Mapping[str, object]] = getattr(torch.cpu, "get_capabilities", dict)  # torch 2.9
    dtype = "bfloat16" if ask().get("amx_bf16") else "float32"
    host = load_host(name, device=device, dtype=dtype, progress=progress)
    return functools.partial(CausalReading, host)


class _Branch(NamedTuple):
    """Ids after the first ``kept`` ids of the text; ``own`` of them belong to the changed words."""

    kept: int
    ids: list[int]
    own: int


class _Piece(NamedTuple):
    """Ids [start, end) of the text as the model has read them; id i stands at place i + ``shift``."""

    start: int
    end: int
    shift: int
    cache: Any
    logs: torch.Tensor


class CausalReading:
    """A text as a causal model has read it."""

    def __init__(self, host: TransformersHost, text: str) -> None:
        self._host, self._text = host, text
        (trunk,) = host.tokenizer.encode([text])
        self._ids = list(trunk.ids)
        self._ends = np.array([end for _, end in trunk.offsets])
        self._pieces = [self._piece(start) for start in range(0, len(self._ids), _PIECE)]

    def openings(self, candidates: Sequence[Candidate]) -> list[float]:
        """Log-probability of the first token of each candidate."""
        branches = [self._branch(each.start, each.end, each.new) for each in candidates]
        return [self._first(self._piece_of(branch), branch) for branch in branches]

    def losses(self, candidates: Sequence[Candidate]) -> list[Loss]:
        """The loss of each candidate, made alone."""
        spans = sorted({(each.start, each.end, each.old) for each in candidates})
        wanted = [*spans, *((each.start, each.end, each.new) for each in candidates)]
        found = self._likelihoods([self._branch(*each) for each in wanted])
        own = {(start, end): found[i] for i, (start, end, _) in enumerate(spans)}
        return [
            Loss(own[each.start, each.end][0] - word, own[each.start, each.end][1] - after)
            for each, (word, after) in zip(candidates, found[len(spans) :], strict=True)
        ]

    def _piece(self, start: int) -> _Piece:
        import torch
        from transformers import DynamicCache

        end, first = min(start + _PIECE, len(self._ids)), max(start - _BEFORE, 0)
        (root,) = self._host.prompt_ids([""])
        ids = [*(root or self._ids[:1]), *self._ids[first:end]]
        cache = DynamicCache()
        with torch.no_grad():
            logits = self._host.model(
                input_ids=torch.tensor([ids], device=self._host.device), past_key_values=cache, use_cache=True
            ).logits[0]
        return _Piece(start, end, len(ids) - end, cache, logits.float().log_softmax(-1))

    def _piece_of(self, branch: _Branch) -> _Piece:
        return self._pieces[max(branch.kept - 1, 0) // _PIECE]

    def _branch(self, start: int, end: int, new: str) -> _Branch:
        kept = int(np.searchsorted(self._ends, start, side="right"))
        lead = self._text[int(self._ends[kept - 1]) if kept else 0 : start] + new
        following = _AFTER.match(self._text, end)
        (joined,) = self._host.tokenizer.encode([lead + (following.group() if following else "")])
        return _Branch(kept, list(joined.ids), sum(1 for first, _ in joined.offsets if first < len(lead)))

    def _first(self, piece: _Piece, branch: _Branch) -> float:
        return float(piece.logs[branch.kept + piece.shift - 1, branch.ids[0]])

    def _likelihoods(self, branches: Sequence[_Branch]) -> list[tuple[float, float]]:
        """Log-probabilities of each branch: of its own words, and of what follows them."""
        found: list[tuple[float, float]] = [(0.0, 0.0)] * len(branches)
        for piece in self._pieces:
            inside = [i for i, branch in enumerate(branches) if self._piece_of(branch) is piece]
            known = {i: logs for i in inside if (logs := self._known(piece, branches[i]))}
            for group in _groups(branches, [i for i in inside if i not in known]):
                some = [branches[i] for i in group]
                known.update(zip(group, self._packed(piece, some), strict=True))
            for i, logs in known.items():
                found[i] = sum(logs[: branches[i].own]), sum(logs[branches[i].own :])
        return found

    def _known(self, piece: _Piece, branch: _Branch) -> list[float]:
        """Log-probabilities of the ids of a branch, if it is the text itself; else none."""
        end = branch.kept + len(branch.ids)
        if end > piece.end or self._ids[branch.kept : end] != branch.ids:
            return []
        places = range(branch.kept + piece.shift - 1, end + piece.shift - 1)
        found: list[float] = piece.logs[places, branch.ids].tolist()
        return found

    def _packed(self, piece: _Piece, branches: Sequence[_Branch]) -> list[list[float]]:
        """Log-probabilities of the ids of branches behind one piece of the text, in one pass."""
        import torch

        ids: list[int] = []
        group: list[int] = []
        positions: list[int] = []
        reach: list[int] = []
        for number, branch in enumerate(branches):
            seen, size = branch.kept + piece.shift, len(branch.ids) - 1
            ids += branch.ids[:-1]
            group += [number] * size
            positions += range(seen, seen + size)
            reach += [seen] * size
        if not ids:
            return [[self._first(piece, branch)] for branch in branches]
        model, device = self._host.model, self._host.device
        row, column = torch.tensor(group), torch.tensor(positions)
        own = (row[:, None] == row[None, :]) & (column[None, :] <= column[:, None])
        before = torch.arange(len(piece.logs))[None, :] < torch.tensor(reach)[:, None]
        open_ = torch.cat((before, own), dim=1)
        mask = torch.zeros(open_.shape, dtype=model.dtype).masked_fill_(~open_, torch.finfo(model.dtype).min)
        with torch.no_grad():
            logits: torch.Tensor = model(
                input_ids=torch.tensor([ids], device=device),
                position_ids=column[None].to(device),
                attention_mask=mask[None, None].to(device),
                past_key_values=piece.cache,
                use_cache=True,
            ).logits[0]
        piece.cache.crop(-len(ids))
        logs = logits.float().log_softmax(-1)
        made: list[list[float]] = []
        at = 0
        for branch in branches:
            rest = logs[range(at, at + len(branch.ids) - 1), branch.ids[1:]].tolist()
            made.append([self._first(piece, branch), *rest])
            at += len(branch.ids) - 1
        return made


def _groups(branches: Sequence[_Branch], chosen: Sequence[int]) -> Iterator[list[int]]:
    """Branches in their order, as many at once as fit into a row."""
    group: list[int] = []
    size = 0
    for i in chosen:
        if group and size + len(branches[i].ids) > _ROW:
            yield group
            group, size = [], 0
        group.append(i)
        size += len(branches[i].ids)
    if group:
        yield group
