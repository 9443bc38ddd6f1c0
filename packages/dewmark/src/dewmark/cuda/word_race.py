"""The keyed race over the words of a lexicon on a CUDA device: the kernels of `race_kernels`, called.

`dewmark.dew.race` and `dewmark.dew.word_step` say in torch what is computed here; the results agree
up to rounding. So that a step can be captured in a CUDA graph, every call allocates through torch and never
waits.

Boundary: tensors in, tensors out; no texts, no settings.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch

from dewmark.cuda import fallbacks
from dewmark.errors import ConfigError
from dewmark.room import LEAST, gains_on
from dewmark.text.words import SPELLINGS

MAX_CANDIDATES = 256
"""The most candidates per row that the kernels hold."""

_BLOCK = 32  # logits in a block, and blocks in a group
_GROUPS = 4  # that one program reads to keep their maxima
_TILE = 2048  # tokens that one program of the race reads
_CHUNK = 4096  # tokens that a filter over a whole row reads at once
_COLUMNS = 32  # coordinates of word vectors that one program holds at once
_STRIDED = {"tokens": 2, "logits": 1, "random": 1, "W": 1, "form": 1}
"""Leading dimensions whose strides are given."""


class Tables(Protocol):
    """The lexicon and the trie, as `dewmark.dew.word_step.WordTables` holds them."""

    vocab_size: int
    parts: torch.Tensor
    keys: torch.Tensor
    targets: torch.Tensor
    breaks: torch.Tensor
    after_break: torch.Tensor
    inner: torch.Tensor
    rows: torch.Tensor
    opens: torch.Tensor
    spelled: torch.Tensor
    factors: torch.Tensor
    terms: torch.Tensor
    limits: torch.Tensor
    units: torch.Tensor
    contexts: torch.Tensor


class RaceState(NamedTuple):
    """What the texts' next tokens depend on, one row per text (`dewmark.dew.word_step.WordStates`)."""

    open: torch.Tensor
    recent: torch.Tensor
    counts: torch.Tensor
    seen: torch.Tensor
    finished: torch.Tensor
    repeated: torch.Tensor
    odd: torch.Tensor
    past_rows: torch.Tensor
    past_pairs: torch.Tensor
    past_roots: torch.Tensor
    past_y: torch.Tensor
    past_contexts: torch.Tensor
    steps: torch.Tensor
    room: torch.Tensor


class Mixture(NamedTuple):
    """How keyed and fresh noise are mixed (`dewmark.dew.noise.mixture_of`)."""

    alpha: float  # α of the likeliest candidates
    tail: float  # α of the others
    beta: float  # β of the likeliest candidates
    tail_beta: float  # β of the others
    used_beta: float  # β of words whose row is used up
    fresh: float  # the least share of fresh noise
    strength: float  # λ
    gamma: float  # γ: how fast the bias λ tanh(γu) saturates
    independent: int  # candidates whose noise is independent of one another
    steps: int  # whose noise is remembered
    kept: int  # candidates of each of them
    gain_kept: float  # the share of √α g(p) that is found
    scale: float  # 1 / a bound of the largest eigenvalue
    least: float  # of the root of the smallest eigenvalue after scaling
    rounds: int  # of the iteration for the root


@functools.cache
def usable(device_type: str) -> bool:
    """Whether the kernels run on such a device; on a CPU only in Triton's interpreter.

    Triton compiles its launchers with the system's C compiler, which may be missing, so one kernel is tried.
    """
    if device_type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    try:
        draw_plain(
            torch.zeros(1, 32, device=device_type), torch.zeros(1, 1, dtype=torch.long, device=device_type)
        )
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises
        return without_kernels(error)
    return True


def without_kernels(reason: object) -> Literal[False]:
    """Warn that the kernels do not work on this device and that torch replaces them, and count it."""
    line = (str(reason).strip() or type(reason).__name__).splitlines()[0]
    fallbacks[line] += 1
    warnings.warn(  # the figures are from docs/log/speed.md
        f"marking without kernels, which do not work here ({line}): torch takes some 50 times as long "
        "(on an H200 9 ms a step instead of 0.2)",
        stacklevel=3,
    )
    return False


def _launcher(kernel: Any, near: torch.Tensor, *programs: int) -> Callable[..., object]:  # noqa: ANN401
    """Launches so many programs of a kernel on the device of a tensor, whichever is current.

    Kernels find a tensor's numbers by its shape, as in C order; one in another order is an error.
    """
    launch: Callable[..., object] = kernel[programs]
    elsewhere = near.device.type == "cuda" and near.device.index != torch.cuda.current_device()

    def checked(*args: object, **options: object) -> None:
        for name, arg in zip(kernel.arg_names, args, strict=False):
            if not isinstance(arg, torch.Tensor) or arg.is_contiguous():
                continue
            if not arg[(slice(1),) * _STRIDED.get(name, 0)].is_contiguous():
                raise ConfigError(
                    f"the kernel {kernel.__name__} reads {name} in C order, but its shape {tuple(arg.shape)} "
                    f"has strides {arg.stride()}: pass {name}.contiguous()"
                )
        with torch.cuda.device(near.device) if elsewhere else contextlib.nullcontext():
            launch(*args, **options)

    return checked


def _levels(tables: Tables) -> int:
    """How often a search through the keys divides them by 16."""
    return -(-len(tables.keys).bit_length() // 4)


def _trie(tables: Tables) -> tuple[object, ...]:
    """The trie as kernels take it; behind its arrays the state of the first spelling."""
    return (
        tables.keys,
        len(tables.keys),
        tables.targets,
        tables.breaks,
        tables.after_break,
        tables.inner,
        tables.rows,
        tables.opens,
        tables.spelled,
        tables.factors,
        tables.terms,
        len(tables.rows) - 2 * SPELLINGS,
    )


def _room(size: int, least: int = 1) -> int:
    return max(least, 1 << (size - 1).bit_length())


def push_words(tables: Tables, state: RaceState, ids: torch.Tensor) -> None:
    """Append ids (batch, count) to each text; negative ones are no tokens."""
    from dewmark.cuda import race_kernels

    k = state.recent.shape[1]
    push = _launcher(race_kernels.push, ids, len(ids))
    push(
        ids,
        ids.shape[1],
        *ids.stride(),
        tables.parts,
        *state[:7],
        *_trie(tables),
        len(tables.breaks),
        state.counts.shape[1],
        PARTS=tables.parts.shape[1],
        K=k,
        K_ROOM=_room(k),
        WINDOWS=state.seen.shape[1],
        LEVELS=_levels(tables),
        num_warps=4,
    )


def draw_words(
    tables: Tables,
    state: RaceState,
    W: torch.Tensor,
    form: torch.Tensor,
    scores: torch.Tensor,
    random: torch.Tensor,
    options: torch.Tensor,
    *,
    filtered: bool,
    m: int,
    mixture: Mixture,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw each row's next token from logits (batch, vocab): ids (batch,), and which rows were usable.

    ``W`` (d_T, d_C) and ``form`` (3,) int64, two secret words and a message, are a key's, or those of each
    row, (batch, d_T, d_C) and (batch, 3). ``random`` is (batch, 1) int64; ``options`` (batch, 4) float32 are
    temperature, top-k (or infinity), top-p and min-p, and ``filtered`` says whether any row has a filter.
    """
    from dewmark.cuda import race_kernels

    batch, vocab = scores.shape
    m = min(m, vocab)
    kept = _room(m, 16)
    new = functools.partial(torch.empty, device=scores.device)
    ids, values = new((batch, m), dtype=torch.long), new((batch, m))
    limits, tops = new((batch, 3), dtype=torch.int32), new((batch,))
    groups, blocks = -(-vocab // (_BLOCK * _BLOCK * _GROUPS)) * _GROUPS, -(-vocab // _BLOCK)
    maxima = new((batch, groups * (_BLOCK + 1)), dtype=torch.int32)
    keep_maxima = _launcher(race_kernels.keep_maxima, scores, batch, groups // _GROUPS)
    keep_maxima(scores, maxima, vocab, scores.stride(0), groups, BLOCK=_BLOCK, TILE=_GROUPS, num_warps=4)
    select = _launcher(race_kernels.select, scores, batch)
    select(
        scores,
        maxima,
        options,
        new((batch, m), dtype=torch.int32),
        ids,
        values,
        limits,
        tops,
        scores.stride(0),
        blocks,
        maxima.shape[1],
        m,
        vocab,
        BLOCK=_BLOCK,
        ROOM=_room(blocks, kept),
        KEPT=kept,
        FILTERED=filtered,
        CHUNKS=-(-vocab // _CHUNK),
        CHUNK=_CHUNK,
        num_warps=8,
    )
    y, numbers = new((batch, m)), new((batch, m), dtype=torch.float64)
    W, form = W.expand(batch, -1, -1), form.expand(batch, -1)
    (d_T, d_C), k = W.shape[1:], state.recent.shape[1]
    rows, pairs = new((batch, m), dtype=torch.int32), new((batch, m), dtype=torch.long)
    contexts, n = new((batch, 2, d_C)), min(mixture.independent, m)
    shares = (mixture.alpha, mixture.tail, mixture.beta, mixture.tail_beta, mixture.used_beta)
    align = _launcher(race_kernels.align, scores, batch)
    align(
        ids,
        values,
        random,
        random.stride(0),
        y,
        numbers,
        rows,
        pairs,
        contexts,
        *state[:7],
        *_trie(tables),
        tables.limits,
        tables.units,
        tables.contexts,
        W,
        W.stride(0),
        form,
        form.stride(0),
        len(tables.breaks),
        state.counts.shape[1],
        m,
        n,
        *shares,
        mixture.strength,
        mixture.gamma,
        KEPT=kept,
        K=k,
        K_ROOM=_room(k),
        WINDOWS=state.seen.shape[1],
        LEVELS=_levels(tables),
        D_T=d_T,
        D_C=d_C,
        C_ROOM=_room(d_C),
        COLUMNS=_COLUMNS,
        num_warps=8,
    )
    first, chosen = new((batch,), dtype=torch.float64), new((batch,), dtype=torch.long)
    innovate = _launcher(race_kernels.innovate, scores, batch)
    innovate(
        ids,
        values,
        y,
        numbers,
        rows,
        pairs,
        contexts,
        tables.units,
        state.past_rows,
        state.past_pairs,
        state.past_roots,
        state.past_y,
        state.past_contexts,
        state.steps,
        tops,
        first,
        chosen,
        m,
        n,
        *shares,
        mixture.fresh,
        mixture.scale,
        mixture.least,
        N=_room(n, 16),
        KEPT=kept,
        D_T=d_T,
        D_C=d_C,
        C_ROOM=_room(d_C),
        COLUMNS=_COLUMNS,
        ROUNDS=mixture.rounds,
        STEPS=mixture.steps,
        USED=mixture.kept,
        num_warps=4,
    )
    tokens, sound = _finished(scores, random, options, limits, tops, first, chosen)
    gains = gains_on(scores.device)
    leave_room = _launcher(race_kernels.leave_room, scores, batch)
    leave_room(
        ids,
        values,
        rows,
        pairs,
        tokens,
        gains,
        state.room,
        m,
        n,
        *shares,
        mixture.gain_kept,
        (len(gains) - 1) / LEAST,
        len(gains) - 2,
        KEPT=kept,
        num_warps=4,
    )
    return tokens, sound


def draw_plain(scores: torch.Tensor, random: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from the softmax of logits (batch, vocab) without a mark, as `dewmark.sampling.race` does."""
    return _finished(scores, random, None, None, scores.amax(dim=1).float(), None, None)


def _finished(
    scores: torch.Tensor,
    random: torch.Tensor,
    options: torch.Tensor | None,
    limits: torch.Tensor | None,
    tops: torch.Tensor,
    first: torch.Tensor | None,
    chosen: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Race all tokens but the candidates, if there are any, and compare."""
    from dewmark.cuda import race_kernels

    batch, vocab = scores.shape
    tiles = -(-vocab // _TILE)
    times = torch.empty((batch, tiles), dtype=torch.float64, device=scores.device)
    ids = torch.empty((batch, tiles), dtype=torch.int32, device=scores.device)
    race_others = _launcher(race_kernels.race_others, scores, batch, tiles)
    race_others(
        scores,
        random,
        random.stride(0),
        tops if options is None else options,
        ids if limits is None else limits,
        tops,
        times if first is None else first,
        times,
        ids,
        vocab,
        scores.stride(0),
        tiles,
        WARPED=options is not None,
        BOUNDED=first is not None,
        TILE=_TILE,
        num_warps=4,
    )
    tokens = torch.empty(batch, dtype=torch.long, device=scores.device)
    sound = torch.empty(batch, dtype=torch.bool, device=scores.device)
    finish = _launcher(race_kernels.finish, scores, batch)
    finish(
        times,
        ids,
        tops,
        times if first is None else first,
        tokens if chosen is None else chosen,
        tokens,
        sound,
        tiles,
        TILES=_room(tiles),
        BOUNDED=first is not None,
        num_warps=1,
    )
    return tokens, sound
