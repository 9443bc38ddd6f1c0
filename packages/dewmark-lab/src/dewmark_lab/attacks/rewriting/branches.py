"""Log-likelihoods of many branches of one text under a causal language model.

A branch continues a text (its trunk) from some place. The trunk and all its branches are read in one row: a
mask over all pairs of tokens lets a branch see the trunk before its place and itself, and its positions
continue from that place. So a branch costs only its own tokens, however long the trunk is. Mask and positions
say everything about the order, so tokens may come in any order within a row: those that predict something
come last, and logits are computed for these alone. The last token of a branch predicts nothing and is left
out.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dewmark.errors import InputError
from dewmark.hosts.transformers.attention import growing_attention
from dewmark.hosts.transformers.decoding_loop import CausalLM, device_of, forward_parameters
from dewmark.hosts.transformers.likelihood import (
    LOGITS_AT_ONCE,
    Rows,
    batches,
    device_type,
    not_a_number,
    score_completions,
)
from dewmark.hosts.transformers.model import TransformersHost
from dewmark.hosts.transformers.tokenizer import HFTokenizer

_SUMMED_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 27}  # logits that become log-probabilities at once
_PAIRS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 25}  # of tokens, which the mask of packed rows has
# A row contains its trunk and branches up to this many tokens, or as many again as the trunk has: attention
# costs the square of it, and every further row reads the trunk once more. Sizes near it cost the same.
ROW_TOKENS = 640
_ALIGNED = 8  # widths are multiples of it, as fast attention requires of masks
_PADDING, _TRUNK = 0, 1  # groups of tokens in a row; each branch is another
_UNLIMITED = 1 << 30
_TOLERANCE = 0.25  # nats; rounding in 16 bits stays below, a branch that sees another does not


class Branch(NamedTuple):
    """Ids that follow the first ``kept`` (at least one) ids of trunk number ``trunk``."""

    trunk: int
    kept: int
    ids: Sequence[int]


class BranchScorer:
    """Scores branches of texts with a host, packed behind their text if its model can do that."""

    def __init__(self, host: TransformersHost) -> None:
        self.host = host

    @functools.cached_property
    def packable(self) -> int:
        """The longest text with its branch that can be packed (`packable_length`)."""
        return packable_length(
            self.host.model, fill_id=self.host.fill_id, vocab_size=self.host.info.vocab_size
        )

    def scores(
        self, texts: Sequence[str], branches: Sequence[Sequence[tuple[int, str]]]
    ) -> list[list[float]]:
        """For each text the log-probabilities (nats) of its branches, each summed over the branch's tokens.

        A branch (at, passage) would follow ``text[:at]``; the text itself follows an empty prompt.
        """
        host = self.host
        (root,) = host.prompt_ids([""])
        trunks, cut = cut_branches(host.tokenizer, texts, branches, root=root, context=host.context)
        for row in (*trunks, *([*root, *branch.ids] for branch in cut)):
            host.check_row("a text or branch", row, 0)
        found = score_branches(
            host.model,
            trunks,
            cut,
            fill_id=host.fill_id,
            vocab_size=host.info.vocab_size,
            packable=self.packable,
        )
        sums = iter(found)
        return [[next(sums) for _ in leaves] for leaves in branches]


def cut_branches(
    tokenizer: HFTokenizer,
    texts: Sequence[str],
    branches: Sequence[Sequence[tuple[int, str]]],
    *,
    root: Sequence[int],
    context: int | None,
) -> tuple[list[list[int]], list[Branch]]:
    """Tokenize trunks and branches, given as (character where it leaves the text, its continuation).

    A trunk is the text's own tokens after ``root``. A branch keeps those that end at or before its character;
    whatever lies between their end and that character (a space, the beginning of a token that straddles it)
    becomes the beginning of the branch. Where text and branch exceed ``context`` tokens, the trunk starts
    later, in steps of half the context.
    """
    if len(texts) != len(branches):
        raise InputError(f"{len(texts)} texts but branches of {len(branches)}: give one list per text")
    tokenized = tokenizer.encode(texts)
    places: list[tuple[int, int]] = []  # text, tokens kept
    passages: list[str] = []
    for number, (text, leaves) in enumerate(zip(tokenized, branches, strict=True)):
        ends = list(itertools.accumulate((end for _, end in text.offsets), max))
        for at, passage in leaves:
            if not 0 <= at <= len(text.text):
                raise InputError(
                    f"text {number} has {len(text.text)} characters, no branch can start at {at}"
                )
            kept = bisect.bisect_right(ends, at)
            places.append((number, kept))
            passages.append(text.text[ends[kept - 1] if kept else 0 : at] + passage)
    trunks: list[list[int]] = []
    numbers: dict[tuple[int, int], int] = {}  # of trunks, by text and first token
    cut = []
    for (number, kept), ids in zip(places, tokenizer.encode_ids(passages), strict=True):
        start = 0
        if context is not None and (excess := len(root) + kept + len(ids) - context) > 0:
            half = max(context // 2, 1)
            start = min(math.ceil(excess / half) * half, kept)
        if (number, start) not in numbers:
            numbers[number, start] = len(trunks)
            trunks.append([*root, *tokenized[number].ids[start:]][:context])
        cut.append(Branch(numbers[number, start], len(root) + kept - start, ids))
    return trunks, cut


def score_branches(
    model: CausalLM,
    trunks: Rows,
    branches: Sequence[Branch],
    *,
    fill_id: int,
    vocab_size: int,
    packable: int,
) -> list[float]:
    """For each branch the sum of log p(token | trunk before it, branch before it) over its tokens.

    Branches that end within ``packable`` tokens (see `packable_length`) are packed; each of the others is a
    row of its own, after its text. Which branches share a row depends only on the branches of their trunk.
    """
    sums = [0.0] * len(branches)
    packed = [i for i, branch in enumerate(branches) if branch.kept + len(branch.ids) <= packable]
    alone = [i for i, branch in enumerate(branches) if branch.kept + len(branch.ids) > packable]
    rows = _pack(trunks, branches, packed)
    for batch in _packed_batches(model, rows, vocab_size):
        chosen = [rows[i] for i in batch]
        for row, totals in zip(chosen, packed_sums(model, chosen, fill_id), strict=True):
            for i, total in zip(row.branches, totals, strict=True):
                sums[i] = total
    prompts = [trunks[branches[i].trunk][: branches[i].kept] for i in alone]
    completions = [branches[i].ids for i in alone]
    found = score_completions(model, prompts, completions, fill_id=fill_id, vocab_size=vocab_size)
    for i, total in zip(alone, found, strict=True):
        sums[i] = total
    if any(map(math.isnan, sums)):
        raise not_a_number(model)
    return sums


def packable_length(model: CausalLM, *, fill_id: int, vocab_size: int) -> int:
    """How many tokens a text and its branch may have to be packed for this model; 0 if it cannot pack.

    Layers that attend to a window or chunk would need another mask beyond it. Many models cannot pack at all
    (no positions as input, recurrent layers, attention without pairwise masks), and some fail silently, so a
    short example is scored both packed and row by row.
    """
    longest = _window(model)
    trunk = [(7 * i + 5) % vocab_size for i in range(8)]
    branches = [
        Branch(0, kept, [(11 * i + 3 * j + 6) % vocab_size for j in range(3)])
        for i, kept in enumerate((3, 3, 6, 8))
    ]
    if longest < 11 or "position_ids" not in forward_parameters(model):
        return 0
    settings = {"fill_id": fill_id, "vocab_size": vocab_size}
    rows = score_branches(model, [trunk], branches, packable=0, **settings)
    try:
        packed = score_branches(model, [trunk], branches, packable=longest, **settings)
    except Exception:  # noqa: BLE001 - whatever a model raises that does not support such masks
        return 0
    return longest if np.allclose(packed, rows, rtol=0, atol=_TOLERANCE) else 0


class _PackedRow(NamedTuple):
    """A trunk with some of its branches; the last ``heads`` of its tokens predict something."""

    tokens: list[tuple[int, int, int, int]]  # id, position, group, trunk tokens that its branch sees
    heads: int
    branches: list[int]
    lengths: list[int]  # tokens of each branch
    places: list[int]  # for each of these tokens, the head that predicts it
    targets: list[int]  # and its id

    @property
    def width(self) -> int:
        return math.ceil(len(self.tokens) / _ALIGNED) * _ALIGNED


def _pack(trunks: Rows, branches: Sequence[Branch], chosen: Sequence[int]) -> list[_PackedRow]:
    """The chosen branches of each trunk, from its beginning to its end, in rows of about `ROW_TOKENS`."""
    rows: list[_PackedRow] = []
    group: list[int] = []
    size = 0
    for i in sorted(chosen, key=lambda i: (branches[i].trunk, branches[i].kept, i)):
        branch = branches[i]
        size += len(branch.ids)
        full = branch.kept + size > max(ROW_TOKENS, 2 * branch.kept)
        if group and (full or branches[group[0]].trunk != branch.trunk):
            rows.append(_pack_row(trunks, branches, group))
            group, size = [], len(branch.ids)
        group.append(i)
    if group:
        rows.append(_pack_row(trunks, branches, group))
    return sorted(rows, key=lambda row: -len(row.tokens))  # rows of similar length share a batch


def _pack_row(trunks: Rows, branches: Sequence[Branch], group: list[int]) -> _PackedRow:
    before = trunks[branches[group[0]].trunk][: branches[group[-1]].kept]
    leaves = sorted({branches[i].kept - 1 for i in group})
    head_of = {place: head for head, place in enumerate(leaves)}
    silent = [(token, place, _TRUNK, 0) for place, token in enumerate(before) if place not in head_of]
    heads = [(before[place], place, _TRUNK, 0) for place in leaves]
    places: list[int] = []
    targets: list[int] = []
    for number, i in enumerate(group, start=_TRUNK + 1):
        _, kept, ids = branches[i]
        if ids:
            targets += ids
            places += [head_of[kept - 1], *range(len(heads), len(heads) + len(ids) - 1)]
            heads += [(token, place, number, kept) for place, token in enumerate(ids[:-1], start=kept)]
    lengths = [len(branches[i].ids) for i in group]
    return _PackedRow(silent + heads, len(heads), group, lengths, places, targets)


@torch.no_grad()
def packed_sums(model: CausalLM, rows: Sequence[_PackedRow], fill_id: int) -> list[list[float]]:
    """For each row the sums of its branches' log-probabilities."""
    device = device_of(model)
    width = max(row.width for row in rows)
    tokens = np.zeros((len(rows), width, 4), dtype=np.int64)  # _PADDING, which only padding sees
    tokens[:, :, 0] = fill_id
    for i, row in enumerate(rows):
        tokens[i, width - len(row.tokens) :] = row.tokens
    ids, positions, groups, reach = torch.from_numpy(tokens).to(device).unbind(dim=2)
    heads = max(row.heads for row in rows)
    inputs: dict[str, Any] = {
        "input_ids": ids,
        "position_ids": positions,
        "attention_mask": _mask(positions, groups, reach, model.dtype),
        "return_dict": True,
        "use_cache": False,
    }
    if "logits_to_keep" in forward_parameters(model):
        inputs["logits_to_keep"] = heads
    with growing_attention(device):
        logits: torch.Tensor = model(**inputs).logits[:, -heads:]
    places = [(i + 1) * heads - row.heads + place for i, row in enumerate(rows) for place in row.places]
    targets = list(itertools.chain.from_iterable(row.targets for row in rows))
    found = iter(_log_probabilities(logits.flatten(0, 1), places, targets))
    return [[math.fsum(itertools.islice(found, length)) for length in row.lengths] for row in rows]


def _mask(
    positions: torch.Tensor, groups: torch.Tensor, reach: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The additive attention mask (rows, 1, tokens, tokens) from three (rows, tokens): 0 where visible."""
    own = groups[:, :, None] == groups[:, None, :]
    own &= positions[:, None, :] <= positions[:, :, None]
    own |= (groups[:, None, :] == _TRUNK) & (positions[:, None, :] < reach[:, :, None])
    mask = torch.zeros(own.shape, dtype=dtype, device=own.device)
    return mask.masked_fill_(~own, torch.finfo(dtype).min).unsqueeze(1)


def _log_probabilities(logits: torch.Tensor, places: Sequence[int], targets: Sequence[int]) -> list[float]:
    """Log p of each target at its place, from logits (places, vocab)."""
    step = max(_SUMMED_AT_ONCE[device_type(logits.device)] // logits.shape[1], 1)
    where = np.array([places, targets], dtype=np.int64)
    order = np.argsort(where[0], kind="stable")
    bounds = np.searchsorted(where[0][order], range(0, logits.shape[0] + step, step))
    row, column = torch.from_numpy(where[:, order]).to(logits.device)
    parts = [
        logits[start : start + step].log_softmax(dim=-1, dtype=torch.float32)[row[a:b] - start, column[a:b]]
        for start, (a, b) in zip(
            range(0, logits.shape[0], step), itertools.pairwise(bounds.tolist()), strict=False
        )
    ]
    found = np.empty(len(targets))
    found[order] = torch.cat(parts).cpu().numpy()
    return found.tolist()


def _window(model: CausalLM) -> int:
    """How far back every layer of a model looks."""
    config = model.config.get_text_config()
    if set(getattr(config, "layer_types", None) or ()) == {"full_attention"}:
        return _UNLIMITED
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min((window for window in windows if window), default=_UNLIMITED)


def _packed_batches(model: CausalLM, rows: Sequence[_PackedRow], vocab_size: int) -> Iterator[list[int]]:
    kind = device_type(device_of(model))
    cut = "logits_to_keep" in forward_parameters(model)  # else there are logits of all tokens
    widths = [row.width for row in rows]
    heads = [row.heads for row in rows] if cut else widths

    def fits(rows: int, width: int, kept: int) -> bool:
        pairs = rows * width * width
        return pairs <= _PAIRS_AT_ONCE[kind] and rows * kept * vocab_size <= LOGITS_AT_ONCE[kind]

    return batches(widths, heads, fits)
