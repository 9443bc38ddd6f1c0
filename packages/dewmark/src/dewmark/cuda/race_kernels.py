"""The keyed race over the words of a lexicon as Triton kernels; `dewmark.cuda.word_race` calls them.

A step of a batch is six kernels, of which only the first and the fifth read the whole vocabulary:

- `keep_maxima` keeps the maxima of blocks of 32 logits and of groups of 32 blocks, as integers in the same
  order. The m likeliest tokens lie in the m blocks with the largest maxima, the earlier of equal ones first;
- `select` finds each row's m likeliest tokens and applies temperature, min-p, top-k and top-p to them. Where
  a filter keeps more tokens than these, it is a lowest logit, which bisection over the row finds;
- `align` follows the trie, computes u = t_w · W c and h of every candidate, and its noise y;
- `innovate` turns y into what earlier steps leave open (`dewmark.dew.noise`), finds the candidate that is
  first, and keeps the noise that this step used;
- `race_others` gives all other tokens their numbers. A token of share s (its probability over that of the
  likeliest) can only be first if 1 − U < T s, where T is the time to beat, because −log U ≥ 1 − U. So a block
  of tokens needs logarithms only where one passes that test;
- `finish` compares the two.

`push` appends tokens to each text's state. Nothing here allocates or waits for the device, so all of it
can be captured in a CUDA graph. The module runs on the CPU too, slowly, with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from dewmark.cuda import MAX_COUNT
from dewmark.splitmix import GOLDEN, MIX_1, MIX_2
from dewmark.text.words import SPELLINGS

_NO_FLOOR = tl.constexpr(-2139095040)  # `_ordered` of the lowest finite number
_BELOW = tl.constexpr(-2147483648)  # below every number
_CLOSED = tl.constexpr(0x7FFFFFFF)  # above every number
_GOLDEN, _MIX_1, _MIX_2 = tl.constexpr(GOLDEN), tl.constexpr(MIX_1), tl.constexpr(MIX_2)
_MOST = tl.constexpr(MAX_COUNT)
_SPELLINGS = tl.constexpr(SPELLINGS)
_CLASS_BITS = tl.constexpr(16)  # as `dewmark.dew.form.CLASS_BITS`
_CLASS = tl.constexpr(0xFFFF)  # these bits


# Numbers


@triton.jit
def _ordered(values):  # type: ignore[no-untyped-def]
    """Integers that sort like the floats; 0.0 and -0.0 are equal, and NaN is the largest."""
    bits = (values.to(tl.float32) + 0.0).to(tl.int32, bitcast=True)
    bits = tl.where(values != values, 0x7FC00000, bits)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _mixed(codes):  # type: ignore[no-untyped-def]
    """A 64-bit hash of each code, uint64 (`dewmark.splitmix.mixed`)."""
    z = codes + _GOLDEN
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return z ^ (z >> 31)


@triton.jit
def _bits(state, tokens):  # type: ignore[no-untyped-def]
    """52 random bits of each token (`dewmark.sampling.token_uniforms`)."""
    return (_mixed(state.to(tl.uint64) + tokens.to(tl.uint64) * _GOLDEN) >> 12).to(tl.int64)


@triton.jit
def _normal(u, rest):  # type: ignore[no-untyped-def]
    """Φ⁻¹(u), float64; ``rest`` is 1 − u. Two rational functions (P. Acklam), relative error 1.2e-9."""
    least = tl.minimum(u, rest)
    q = tl.sqrt(-2.0 * tl.log(least))
    top = -7.784894002430293e-03 * q - 3.223964580411365e-01
    top = (top * q - 2.400758277161838) * q - 2.549732539343734
    top = (top * q + 4.374664141464968) * q + 2.938163982698783
    low = 7.784695709041462e-03 * q + 3.224671290700398e-01
    low = ((low * q + 2.445134137142996) * q + 3.754408661907416) * q + 1.0
    tail = tl.where(u < rest, top / low, -top / low)
    q = (u - rest) * 0.5
    r = q * q
    top = -3.969683028665376e01 * r + 2.209460984245205e02
    top = (top * r - 2.759285104469687e02) * r + 1.383577518672690e02
    top = (top * r - 3.066479806614716e01) * r + 2.506628277459239
    low = -5.447609879822406e01 * r + 1.615858368580409e02
    low = (low * r - 1.556989798598866e02) * r + 6.680131188771972e01
    low = (low * r - 1.328068155288572e01) * r + 1.0
    return tl.where(least < 0.02425, tail, q * top / low)


@triton.jit  # type: ignore[untyped-decorator]
def _uniform(bits, COUNT: constexpr):  # type: ignore[no-untyped-def]
    """Numbers inside (0, 1) from random ones below ``COUNT``, and 1 less them, float64."""
    rest = (COUNT - 1) - bits
    return (bits.to(tl.float64) + 0.5) * (1.0 / COUNT), (rest.to(tl.float64) + 0.5) * (1.0 / COUNT)


@triton.jit
def _form(form, numbers):  # type: ignore[no-untyped-def]
    """h of words' numbers, float64, under the three numbers at ``form`` (`dewmark.dew.form.FormKey`)."""
    bits = _mixed(numbers.to(tl.uint64) + tl.load(form).to(tl.uint64))
    bits = _mixed(bits ^ tl.load(form + 1).to(tl.uint64))
    uniform, rest = _uniform((bits >> _CLASS_BITS).to(tl.int64), 1 << 48)
    h = _normal(uniform, rest)
    both = (bits & tl.load(form + 2).to(tl.uint64) & _CLASS).to(tl.int32)
    both ^= both >> 8
    both ^= both >> 4
    both ^= both >> 2
    both ^= both >> 1
    return tl.where((both & 1) != 0, -h, h)


@triton.jit
def _exponential(x):  # type: ignore[no-untyped-def]
    """−log Φ(x), float64; Φ of a negative number by Chebyshev's series of erfc, relative error 1.2e-7."""
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.5 * z)
    series = ((0.17087277 * t - 0.82215223) * t + 1.48851587) * t - 1.13520398
    series = ((series * t + 0.27886807) * t - 0.18628806) * t + 0.09678418
    series = (series * t + 0.37409196) * t + 1.00002368
    beyond = 0.5 * t * tl.exp(-z * z - 1.26551223 + t * series)  # the smaller of Φ(x) and 1 − Φ(x)
    small = beyond * (1.0 + beyond * (0.5 + beyond * 0.3333333333333333))
    below = tl.where(beyond < 1e-5, small, -tl.log(1.0 - beyond))
    return tl.maximum(tl.where(x < 0.0, -tl.log(beyond), below), 1e-300)


# The likeliest tokens


@triton.jit  # type: ignore[untyped-decorator]
def keep_maxima(logits, maxima, vocab, stride, groups, BLOCK: constexpr, TILE: constexpr):  # type: ignore[no-untyped-def]
    """Maxima of blocks of logits (batch, vocab), and of groups of blocks, (batch, groups * (BLOCK + 1))."""
    row, tile = tl.program_id(0), tl.program_id(1)
    blocks = tile * TILE * BLOCK + tl.arange(0, TILE * BLOCK)
    ids = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    values = tl.load(logits + row.to(tl.int64) * stride + ids, mask=ids < vocab, other=float("-inf"))
    largest = tl.max(_ordered(values), axis=1)
    mine = maxima + row * groups * (BLOCK + 1)
    tl.store(mine + blocks, largest)
    of_groups = tl.max(tl.reshape(largest, (TILE, BLOCK)), axis=1)
    tl.store(mine + groups * BLOCK + tile * TILE + tl.arange(0, TILE), of_groups)


# The trie


@triton.jit  # type: ignore[untyped-decorator]
def _follow(  # type: ignore[no-untyped-def]
    state, tokens, vocab, keys, size, targets, breaks, restart, spelled, grow, terms, base, LEVELS: constexpr
):
    """The state after each of some tokens, and whether it ends the open word (`WordTables.follow`).

    The keys are far from the cache, so the search looks at 16 of them at a time.
    """
    wanted = state * vocab + tokens
    low = wanted * 0
    pivots = tl.arange(0, 16)[None, :]
    number = low
    for level in tl.static_range(LEVELS):  # the first key that is not below the wanted one
        step = 1 << (4 * (LEVELS - 1 - level))
        at = low[:, None] + pivots * step
        below = tl.load(keys + at, mask=at < size, other=0x7FFFFFFFFFFFFFFF) < wanted[:, None]
        number = tl.sum(below.to(tl.int64), axis=1)
        if level < LEVELS - 1:
            low += tl.maximum(number - 1, 0) * step
    low = tl.minimum(low + number, size - 1)  # the last key is larger than any
    listed = tl.load(keys + low) == wanted
    before = tl.load(spelled + state)
    factor = tl.load(grow + tokens)
    grown = (before * factor + tl.load(terms + tokens)) % _SPELLINGS + base
    ends = (tl.load(breaks + tokens) != 0) | (before == -2)
    grown = tl.where((before >= 0) & (factor >= 0), grown, 1)
    otherwise = tl.where(ends, tl.load(restart + tokens), grown)
    return tl.where(listed, tl.load(targets + low), otherwise), ends & (listed == 0)


@triton.jit(do_not_specialize=["count", "row_stride", "stride"], do_not_specialize_on_alignment=["tokens"])  # type: ignore[untyped-decorator]
def push(  # type: ignore[no-untyped-def]
    tokens,
    count,
    row_stride,
    stride,
    parts,
    states,
    recent,
    counts,
    seen,
    finished,
    repeated,
    odd,
    keys,
    size,
    targets,
    breaks,
    restart,
    inner,
    words,
    opens,
    spelled,
    grow,
    terms,
    base,
    vocab,
    width,
    PARTS: constexpr,
    K: constexpr,
    K_ROOM: constexpr,
    WINDOWS: constexpr,
    LEVELS: constexpr,
):
    """Append ``count`` tokens to each text (`WordStates.push`); one program per row."""
    row = tl.program_id(0).to(tl.int64)
    counts += row * width
    state = tl.load(states + row)
    place = tl.arange(0, K_ROOM)
    window = tl.load(recent + row * K + place, mask=place < K, other=0)
    factors = tl.load(odd + place, mask=place < K, other=0)
    columns = tl.arange(0, WINDOWS)
    earlier = tl.load(seen + row * WINDOWS + columns)
    number = tl.load(finished + row)
    again = (tl.load(repeated + row) != 0).to(tl.int32)
    position = tl.full((), 0, tl.int32)
    while position < count:
        whole = tl.load(tokens + row * row_stride + position * stride)
        mine = parts + tl.maximum(whole, 0) * PARTS
        token = tl.where(whole >= 0, tl.load(mine), -1)
        part = tl.full((), 0, tl.int32)
        while token >= 0:
            pair = token + tl.arange(0, 2) * 0
            after, ends = _follow(
                state, pair, vocab, keys, size, targets, breaks, restart, spelled, grow, terms, base, LEVELS
            )
            ends = tl.max(ends.to(tl.int32), axis=0) != 0
            inside = tl.load(inner + token)
            first = tl.load(words + state)
            second = tl.maximum(inside, 0)
            ended = ends & (tl.load(opens + state) != 0)
            held = ends & (inside >= 0)
            for turn in tl.static_range(2):
                if turn == 0:
                    which, word = ended, first
                else:
                    which, word = held, second
                moved = tl.sum(tl.where(place[None, :] == place[:, None] + 1, window[None, :], 0), axis=1)
                moved = tl.where(place == K - 1, word, moved)
                window = tl.where(which & (place < K), moved, window)
                hashed = tl.sum(tl.where(place < K, (window + 1) * factors, 0), axis=0)
                came = tl.max((earlier == hashed).to(tl.int32), axis=0)
                again = tl.where(which, came, again)
                earlier = tl.where(which & (columns == number % WINDOWS), hashed, earlier)
                number += which.to(tl.int64)
            before = tl.load(counts + first)
            before_second = tl.load(counts + second)
            more = before + (ended & (before < _MOST)).to(tl.int8)
            before_second = tl.where(first == second, more, before_second)
            more_second = before_second + (held & (before_second < _MOST)).to(tl.int8)
            tl.debug_barrier()  # all threads have read the counts
            tl.store(counts + first, tl.where(first == second, more_second, more))
            tl.store(counts + second, more_second)
            tl.debug_barrier()
            state = tl.max(after, axis=0)
            part += 1
            token = tl.where(part < PARTS, tl.load(mine + tl.minimum(part, PARTS - 1)), -1)
        position += 1
    tl.store(recent + row * K + place, window, mask=place < K)
    tl.store(seen + row * WINDOWS + columns, earlier)
    tl.store(finished + row, number)
    tl.store(repeated + row, again.to(tl.int8))
    tl.store(states + row, state)


# The candidates


@triton.jit  # type: ignore[untyped-decorator]
def _mass(  # type: ignore[no-untyped-def]
    at, vocab, floor, above, top, heat, min_p, COUNT: constexpr, CHUNKS: constexpr, CHUNK: constexpr
):
    """Sum of the shares (or number) of the tokens at or above ``floor`` that lie above ``above``."""
    total = 0.0
    for chunk in range(CHUNKS):
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        values = tl.load(at + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        order = _ordered(values)
        shares = tl.exp(values / heat - top)
        kept = (order > above) & (order >= floor) & (shares >= min_p)
        if COUNT:
            total += tl.sum(kept.to(tl.float32), axis=0)
        else:
            total += tl.sum(tl.where(kept, shares, 0.0), axis=0)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _lowest(  # type: ignore[no-untyped-def]
    at, vocab, floor, limit, start, top, heat, min_p, COUNT: constexpr, CHUNKS: constexpr, CHUNK: constexpr
):
    """The smallest number above which less than ``limit`` lies; above ``start`` there is less."""
    low = tl.full((), _BELOW, tl.int64)
    high = start.to(tl.int64)
    while high - low > 1:
        middle = (low + high) >> 1
        if _mass(at, vocab, floor, middle.to(tl.int32), top, heat, min_p, COUNT, CHUNKS, CHUNK) < limit:
            high = middle
        else:
            low = middle
    return high.to(tl.int32)


@triton.jit
def _picked(order, m):  # type: ignore[no-untyped-def]
    """Which of the numbers are the m largest; of equal ones the first."""
    low = tl.full((), _BELOW, tl.int64)
    high = tl.max(order, axis=0).to(tl.int64) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        if tl.sum((order >= middle.to(tl.int32)).to(tl.int32), axis=0) >= m:
            low = middle
        else:
            high = middle
    above = order > low.to(tl.int32)
    equal = order == low.to(tl.int32)
    missing = m - tl.sum(above.to(tl.int32), axis=0)
    return above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= missing))


@triton.jit
def _packed(order, ids):  # type: ignore[no-untyped-def]
    """Numbers of which the larger one comes first; of equal logits the smaller id."""
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def select(  # type: ignore[no-untyped-def]
    logits,
    maxima,
    warpers,
    places,
    ids_out,
    values_out,
    limits_out,
    tops_out,
    stride,
    blocks,
    room,
    m,
    vocab,
    BLOCK: constexpr,
    ROOM: constexpr,
    KEPT: constexpr,
    FILTERED: constexpr,
    CHUNKS: constexpr,
    CHUNK: constexpr,
):
    """Ids and warped logits of the m likeliest tokens (batch, m), and what else a row's race needs.

    ``maxima`` (batch, room) holds the maxima of blocks; the m likeliest tokens lie in the m blocks whose
    maxima are largest. ``places`` (batch, m) is a workspace. ``warpers`` (batch, 4) are temperature, top-k
    (or infinity), top-p and min-p; ``limits_out`` (batch, 3) are the lowest logit that other tokens need to
    race, and the last candidate's logit and id.
    """
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * stride
    places += row * m
    ids_out += row * m
    ranks = tl.arange(0, KEPT)
    block = tl.arange(0, ROOM)
    order = tl.load(maxima + row * room + block, mask=block < blocks, other=_BELOW)
    picked = _picked(order, m)
    tl.store(places + tl.cumsum(picked.to(tl.int32), axis=0) - 1, block, mask=picked)
    tl.debug_barrier()
    block = tl.load(places + ranks, mask=ranks < m, other=0)
    ids = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = (ranks < m)[:, None] & (ids < vocab)
    found = tl.load(at + ids, mask=there, other=0.0)
    order = tl.reshape(tl.where(there, _ordered(found), _BELOW), (KEPT * BLOCK,))
    picked = _picked(order, m)
    tl.debug_barrier()
    tl.store(
        places + tl.cumsum(picked.to(tl.int32), axis=0) - 1, tl.reshape(ids, (KEPT * BLOCK,)), mask=picked
    )
    tl.debug_barrier()
    ids = tl.load(places + ranks, mask=ranks < m, other=0)
    packed = _packed(_ordered(tl.load(at + ids)), ids)
    rank = tl.zeros((KEPT,), tl.int32)
    for start in range(0, KEPT, 32):
        other = start + tl.arange(0, 32)
        theirs = tl.load(places + other, mask=other < m, other=0)
        before = _packed(_ordered(tl.load(at + theirs)), theirs)[None, :] > packed[:, None]
        rank += tl.sum((before & (other < m)[None, :]).to(tl.int32), axis=1)
    tl.store(ids_out + rank, ids.to(tl.int64), mask=ranks < m)
    tl.debug_barrier()
    inside = ranks < m
    ids = tl.load(ids_out + ranks, mask=inside, other=0).to(tl.int32)
    raw = tl.load(at + ids, mask=inside, other=float("-inf")).to(tl.float32)
    heat = tl.load(warpers + row * 4)
    values = raw / heat
    top = tl.max(tl.where(ranks == 0, values, float("-inf")), axis=0)
    order = _ordered(raw)
    last = tl.min(tl.where(inside, order, _CLOSED), axis=0)
    last_id = tl.max(tl.where(inside & (ranks == m - 1), ids, 0), axis=0)
    floor = tl.full((), _NO_FLOOR, tl.int32)
    if FILTERED:
        top_k = tl.load(warpers + row * 4 + 1)
        top_p = tl.load(warpers + row * 4 + 2)
        min_p = tl.load(warpers + row * 4 + 3)
        ranked = (top_k < float("inf")).to(tl.int32) + (min_p > 0.0).to(tl.int32)
        if ranked + (top_p < 1.0).to(tl.int32) > 0:
            shares = tl.exp(values - top)
            kept = (ranks < top_k) & (shares >= min_p) & inside
            all_kept = tl.sum((kept & (ranks == m - 1)).to(tl.int32), axis=0)
            beyond = all_kept * ranked
            total = tl.sum(tl.where(kept, shares, 0.0), axis=0)
            if all_kept > beyond:
                total = _mass(at, vocab, floor, _BELOW, top, heat, 0.0, False, CHUNKS, CHUNK)
            before = tl.cumsum(shares, axis=0) - shares
            reach = tl.where(top_p < 1.0, top_p * total, float("inf"))
            kept = kept & ((before < reach) | (ranks == 0))
            all_kept = tl.sum((kept & (ranks == m - 1)).to(tl.int32), axis=0)
            floor = tl.full((), _CLOSED, tl.int32)
            if beyond + all_kept > 0:  # the filters may keep more tokens than these
                highest = tl.max(tl.where(inside, order, _BELOW), axis=0)
                floor = tl.full((), _NO_FLOOR, tl.int32)
                if top_k < float("inf"):
                    floor = _lowest(at, vocab, floor, top_k, highest, top, heat, min_p, True, CHUNKS, CHUNK)
                if top_p < 1.0:
                    total = _mass(at, vocab, floor, _BELOW, top, heat, min_p, False, CHUNKS, CHUNK)
                    low = _lowest(
                        at, vocab, floor, top_p * total, highest, top, heat, min_p, False, CHUNKS, CHUNK
                    )
                    floor = tl.maximum(floor, low)
                kept = (order >= floor) & (shares >= min_p) & inside
            values = tl.where(kept, values, float("-inf"))
    tl.store(values_out + row * m + ranks, values, mask=ranks < m)
    tl.store(limits_out + row * 3, floor)
    tl.store(limits_out + row * 3 + 1, last)
    tl.store(limits_out + row * 3 + 2, last_id)
    tl.store(tops_out + row, top)


@triton.jit
def _shares(likely, has_u, has_h, alpha, tail, beta, tail_beta, used_beta):  # type: ignore[no-untyped-def]
    """α and β of words, float32: 0 where one has no u, or no h (`dewmark.dew.noise.roots`)."""
    of_u = tl.where(has_u, tl.where(likely, alpha, tail), 0.0)
    of_h = tl.where(has_u, tl.where(likely, beta, tail_beta), used_beta)
    return of_u, tl.where(has_h, of_h, 0.0)


@triton.jit(do_not_specialize=["random_stride", "form_stride"], do_not_specialize_on_alignment=["random"])  # type: ignore[untyped-decorator]
def align(  # type: ignore[no-untyped-def]
    ids_in,
    values,
    random,
    random_stride,
    y_out,
    numbers_out,
    rows_out,
    pairs_out,
    contexts_out,
    states,
    recent,
    counts,
    seen,
    finished,
    repeated,
    odd,
    keys,
    size,
    targets,
    breaks,
    restart,
    inner,
    words,
    opens,
    spelled,
    grow,
    terms,
    base,
    limits,
    units,
    contexts,
    W,
    W_stride,
    form,
    form_stride,
    vocab,
    width,
    m,
    n,
    alpha,
    tail,
    beta,
    tail_beta,
    used_beta,
    strength,
    gamma,
    KEPT: constexpr,
    K: constexpr,
    K_ROOM: constexpr,
    WINDOWS: constexpr,
    LEVELS: constexpr,
    D_T: constexpr,
    D_C: constexpr,
    C_ROOM: constexpr,
    COLUMNS: constexpr,
):
    """Words, noise y and fresh Exp(1) numbers of each row's candidates (batch, m); biases ``values``.

    ``rows_out`` are the words' rows, 0 of those without u, and −1 − row where a word is extended.
    ``pairs_out`` are the words' numbers in their contexts, 0 of those that carry no mark. ``contexts_out``
    (batch, 2, d_C) are the contexts of words that begin and of those that are extended.
    """
    row = tl.program_id(0).to(tl.int64)
    rank = tl.arange(0, KEPT)
    inside = rank < m
    ids = tl.load(ids_in + row * m + rank, mask=inside, other=0)
    state = tl.load(states + row)
    own = tl.load(words + state)
    is_open = tl.load(opens + state) != 0
    after, ends = _follow(
        state, ids, vocab, keys, size, targets, breaks, restart, spelled, grow, terms, base, LEVELS
    )
    begins = ends | (is_open == 0)
    first = tl.load(inner + ids)
    word = tl.where(ends & (first >= 0), first, tl.load(words + after))
    word = tl.where((begins == 0) & (word == own), 0, word)
    # the two contexts, with and without the open word
    place = tl.arange(0, K_ROOM)
    window = tl.load(recent + row * K + place, mask=place < K, other=0)
    column = tl.arange(0, C_ROOM)
    mask = (place < K)[:, None] & (column < D_C)[None, :]
    vectors = tl.load(contexts + window[:, None] * D_C + column[None, :], mask=mask, other=0.0).to(tl.float32)
    extended = tl.sum(vectors, axis=0)
    later = tl.sum(tl.where((place > 0)[:, None], vectors, 0.0), axis=0)
    latest = tl.load(contexts + own * D_C + column, mask=column < D_C, other=0.0).to(tl.float32)
    begun = tl.where(is_open, later + latest, extended)
    begun_square = tl.sum(begun * begun, axis=0)
    extended_square = tl.sum(extended * extended, axis=0)
    begun = begun / tl.maximum(tl.sqrt(begun_square), 1e-6)
    extended = extended / tl.maximum(tl.sqrt(extended_square), 1e-6)
    tl.store(contexts_out + row * 2 * D_C + column, begun, mask=column < D_C)
    tl.store(contexts_out + row * 2 * D_C + D_C + column, extended, mask=column < D_C)
    u_begun = tl.zeros((KEPT,), tl.float32)
    u_extended = tl.zeros((KEPT,), tl.float32)
    for start in range(0, D_T, COLUMNS):
        part = start + tl.arange(0, COLUMNS)
        cells = W + row * W_stride + part[:, None] * D_C + column[None, :]
        matrix = tl.load(cells, mask=(part < D_T)[:, None] & (column < D_C)[None, :], other=0.0)
        v_begun = tl.sum(matrix * begun[None, :], axis=1)
        v_extended = tl.sum(matrix * extended[None, :], axis=1)
        cells = units + word[:, None] * D_T + part[None, :]
        t = tl.load(cells, mask=inside[:, None] & (part < D_T)[None, :], other=0.0).to(tl.float32)
        u_begun += tl.sum(t * v_begun[None, :], axis=1)
        u_extended += tl.sum(t * v_extended[None, :], axis=1)
    u = tl.where(begins, u_begun, u_extended)
    # the words' numbers in the two contexts, neither of which may have occurred
    hash_extended = tl.sum(tl.load(odd + place, mask=place < K, other=0) * (window + 1), axis=0)
    factors = tl.load(odd + place - 1, mask=(place > 0) & (place < K), other=0)
    hashed = tl.sum(factors * (window + 1), axis=0) + tl.load(odd + K - 1) * (own + 1)
    hash_begun = tl.where(is_open, hashed, hash_extended)
    earlier = tl.load(seen + row * WINDOWS + tl.arange(0, WINDOWS))
    again_extended = tl.load(repeated + row) != 0
    again_begun = tl.where(is_open, tl.max((earlier == hashed).to(tl.int32), axis=0) != 0, again_extended)
    number = tl.load(finished + row)
    bare_begun = again_begun | (number + is_open.to(tl.int64) < K) | (begun_square == 0.0)
    bare_extended = again_extended | (number < K) | (extended_square == 0.0)
    value = tl.load(values + row * m + rank, mask=inside, other=float("-inf"))
    bare = tl.where(begins, bare_begun, bare_extended) | (word == 0) | (value == float("-inf"))
    q = tl.where(bare, 0, word + tl.where(begins, hash_begun, hash_extended))
    count = tl.load(counts + row * width + word, mask=inside, other=0).to(tl.int32)
    count += (begins & is_open & (word == own)).to(tl.int32)
    used_up = count >= tl.load(limits + word, mask=inside, other=0).to(tl.int32)
    word = tl.where(bare | used_up, 0, word)
    u = tl.where(word > 0, u, 0.0)
    bits = _bits(tl.load(random + row * random_stride), ids)
    uniform, rest = _uniform(bits, 1 << 52)
    of_u, of_h = _shares(rank < n, word > 0, q != 0, alpha, tail, beta, tail_beta, used_beta)
    of_u, of_h = of_u.to(tl.float64), of_h.to(tl.float64)
    y = tl.sqrt(of_u) * u.to(tl.float64) + tl.sqrt(of_h) * _form(form + row * form_stride, q)
    y += tl.sqrt(tl.maximum(1.0 - of_u - of_h, 0.0)) * _normal(uniform, rest)
    tl.store(y_out + row * m + rank, y.to(tl.float32), mask=inside)
    tl.store(numbers_out + row * m + rank, -tl.log(uniform), mask=inside)
    tl.store(rows_out + row * m + rank, tl.where(begins, word, -1 - word).to(tl.int32), mask=inside)
    tl.store(pairs_out + row * m + rank, q, mask=inside)
    bias = strength * (2.0 * tl.sigmoid(2.0 * gamma * u) - 1.0)
    tl.store(values + row * m + rank, value + bias, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _covariance(units, left, right, contexts, D_T: constexpr, COLUMNS: constexpr):  # type: ignore[no-untyped-def]
    """(t_i · t_j)(c_i · c_j) of words ``left`` (a,) and ``right`` (b,); ``contexts`` (a, b) are c_i · c_j."""
    gram = tl.zeros(contexts.shape, tl.float32)
    for start in range(0, D_T, COLUMNS):
        part = start + tl.arange(0, COLUMNS)
        there = (part < D_T)[None, :]
        mine = tl.load(units + left[:, None] * D_T + part[None, :], mask=there, other=0.0)
        other = tl.load(units + right[:, None] * D_T + part[None, :], mask=there, other=0.0)
        gram = tl.dot(mine, tl.trans(other), gram)
    return gram * contexts


@triton.jit
def _same_form(left, left_roots, right, right_roots):  # type: ignore[no-untyped-def]
    """√(β_i β_j) (a, b) where two words have the same h, by their numbers and √β (a,) and (b,)."""
    return tl.where(left[:, None] == right[None, :], left_roots[:, None] * right_roots[None, :], 0.0)


@triton.jit
def _word(shown):  # type: ignore[no-untyped-def]
    """The words' rows, int64, as `align` shows them."""
    return tl.where(shown < 0, -1 - shown, shown).to(tl.int64)


@triton.jit
def _factors(low):  # type: ignore[no-untyped-def]
    """a and b of P = aI + bM, and the next lower bound (`dewmark.dew.noise`)."""
    square = 3.0 / (1.0 + low + low * low)
    root = tl.sqrt(square)
    a = 1.5 * root
    b = -0.5 * root * square
    return a, b, low * (a + b * low * low)


@triton.jit  # type: ignore[untyped-decorator]
def innovate(  # type: ignore[no-untyped-def]
    ids,
    values,
    y,
    numbers,
    rows,
    pairs,
    contexts,
    units,
    past_rows,
    past_pairs,
    past_roots,
    past_y,
    past_contexts,
    steps,
    tops,
    first_out,
    chosen_out,
    m,
    n,
    alpha,
    tail,
    beta,
    tail_beta,
    used_beta,
    fresh,
    scale,
    least,
    N: constexpr,
    KEPT: constexpr,
    D_T: constexpr,
    D_C: constexpr,
    C_ROOM: constexpr,
    COLUMNS: constexpr,
    ROUNDS: constexpr,
    STEPS: constexpr,
    USED: constexpr,
):
    """The first candidate of each row and its time; keeps the noise of ``USED`` candidates for later steps.

    `dewmark.dew.noise.InverseRoot` says what ``scale``, ``least`` and ``ROUNDS`` are.
    """
    PAST: constexpr = STEPS * USED
    row = tl.program_id(0).to(tl.int64)
    top = tl.load(tops + row).to(tl.float64)
    column = tl.arange(0, C_ROOM)
    begun = tl.load(contexts + row * 2 * D_C + column, mask=column < D_C, other=0.0)
    extended = tl.load(contexts + row * 2 * D_C + D_C + column, mask=column < D_C, other=0.0)
    # A_pp^(−1/2), and what it makes of the noise of earlier steps
    p = tl.arange(0, PAST)
    past = tl.load(past_rows + row * PAST + p)
    past_q = tl.load(past_pairs + row * PAST + p)
    past_root = tl.load(past_roots + row * PAST + p)
    near = tl.zeros((PAST, PAST), tl.float32)
    near_begun = tl.zeros((PAST,), tl.float32)
    near_extended = tl.zeros((PAST,), tl.float32)
    for start in range(0, D_C, COLUMNS):
        part = start + tl.arange(0, COLUMNS)
        there = part < D_C
        cells = past_contexts + (row * PAST + p[:, None]) * D_C + part[None, :]
        c = tl.load(cells, mask=there[None, :], other=0.0)
        near = tl.dot(c, tl.trans(c), near, input_precision="ieee")
        here = tl.load(contexts + row * 2 * D_C + part, mask=there, other=0.0)
        near_begun += tl.sum(c * here[None, :], axis=1)
        here = tl.load(contexts + row * 2 * D_C + D_C + part, mask=there, other=0.0)
        near_extended += tl.sum(c * here[None, :], axis=1)
    one = p[:, None] == p[None, :]
    A = _covariance(units, past, past, near, D_T, COLUMNS) + _same_form(past_q, past_root, past_q, past_root)
    M = tl.where(one, 1.0, A) * scale
    root = tl.where(one, tl.sqrt(scale), 0.0)
    low = least
    for _ in range(ROUNDS):
        a, b, low = _factors(low)
        P = tl.where(one, a, 0.0) + b * M
        root = tl.dot(P, root, input_precision="ieee")
        M = tl.dot(tl.dot(M, P, input_precision="ieee"), P, input_precision="ieee")
    known = tl.sum(root * tl.load(past_y + row * PAST + p)[None, :], axis=1)
    # the candidates' noise beyond what is known, each on its own
    rank = tl.arange(0, KEPT)
    inside = rank < m
    shown = tl.load(rows + row * m + rank, mask=inside, other=0)
    q = tl.load(pairs + row * m + rank, mask=inside, other=0)
    word = _word(shown)
    of_u, of_h = _shares(rank < n, word > 0, q != 0, alpha, tail, beta, tail_beta, used_beta)
    alike = tl.where((shown >= 0)[:, None], near_begun[None, :], near_extended[None, :])
    alike *= tl.sqrt(of_u)[:, None]
    A = _covariance(units, word, past, alike, D_T, COLUMNS) + _same_form(q, tl.sqrt(of_h), past_q, past_root)
    B = tl.dot(A, root, input_precision="ieee")
    noise = tl.load(y + row * m + rank, mask=inside, other=0.0) - tl.sum(B * known[None, :], axis=1)
    spread = tl.sqrt(tl.maximum(1.0 - tl.sum(B * B, axis=1), fresh))
    number = tl.load(numbers + row * m + rank, mask=inside, other=float("inf"))
    number = tl.where(q != 0, _exponential((noise / spread).to(tl.float64)), number)
    value = tl.load(values + row * m + rank, mask=inside, other=float("-inf")).to(tl.float64)
    times = tl.where(inside & (rank >= n), number / tl.exp(value - top), float("inf"))
    first, at = tl.min(times, axis=0, return_indices=True)
    # the likeliest ones, independent of one another too
    i = tl.arange(0, N)
    inside = i < n
    shown = tl.load(rows + row * m + i, mask=inside, other=0)
    q = tl.load(pairs + row * m + i, mask=inside, other=0)
    begins = shown >= 0
    word = _word(shown)
    of_u, of_h = _shares(inside, word > 0, q != 0, alpha, tail, beta, tail_beta, used_beta)
    form_root = tl.sqrt(of_h)
    alike = tl.where(begins[:, None], near_begun[None, :], near_extended[None, :]) * tl.sqrt(of_u)[:, None]
    A = _covariance(units, word, past, alike, D_T, COLUMNS) + _same_form(q, form_root, past_q, past_root)
    B = tl.dot(A, root, input_precision="ieee")
    both = tl.sum(begun * extended, axis=0)
    alike = tl.where(begins[:, None] == begins[None, :], 1.0, both) * alpha
    one = i[:, None] == i[None, :]
    A = _covariance(units, word, word, alike, D_T, COLUMNS) + _same_form(q, form_root, q, form_root)
    A = tl.where(one, 1.0, A)
    M = (A - tl.dot(B, tl.trans(B), input_precision="ieee")) * scale
    x = tl.load(y + row * m + i, mask=inside, other=0.0) - tl.sum(B * known[None, :], axis=1)
    low = least
    for _ in range(ROUNDS):
        a, b, low = _factors(low)
        P = tl.where(one, a, 0.0) + b * M
        x = tl.sum(P * x[None, :], axis=1)
        M = tl.dot(tl.dot(M, P, input_precision="ieee"), P, input_precision="ieee")
    number = tl.load(numbers + row * m + i, mask=inside, other=float("inf"))
    number = tl.where(q != 0, _exponential((x * tl.sqrt(scale)).to(tl.float64)), number)
    value = tl.load(values + row * m + i, mask=inside, other=float("-inf")).to(tl.float64)
    times = tl.where(inside, number / tl.exp(value - top), float("inf"))
    likelier, place = tl.min(times, axis=0, return_indices=True)
    at = tl.where(likelier <= first, place, at)
    tl.store(first_out + row, tl.minimum(likelier, first))
    tl.store(chosen_out + row, tl.load(ids + row * m + at))
    # what this step has used
    step = tl.load(steps + row)
    tl.debug_barrier()  # all threads have read the past
    j = tl.arange(0, USED)
    last = tl.minimum(USED, m) - 1
    used = tl.where((j == last) & (at > last), at, j)
    value = tl.load(values + row * m + used, mask=j <= last, other=float("-inf"))
    shown = tl.load(rows + row * m + used, mask=j <= last, other=0)
    q = tl.load(pairs + row * m + used, mask=j <= last, other=0)
    free = tl.max(((j == 1) & (value > float("-inf"))).to(tl.int32), axis=0) > 0  # there was a choice
    any_marked = free & (tl.max((q != 0).to(tl.int32), axis=0) > 0)
    to = row * PAST + (step % STEPS) * USED + j
    store = (j <= last) & any_marked
    word = tl.where(q != 0, _word(shown), 0)
    of_u, of_h = _shares(used < n, word > 0, q != 0, alpha, tail, beta, tail_beta, used_beta)
    tl.store(past_rows + to, word, mask=store)
    tl.store(past_pairs + to, q, mask=store)
    tl.store(past_roots + to, tl.sqrt(of_h), mask=store)
    tl.store(past_y + to, tl.load(y + row * m + used, mask=q != 0, other=0.0), mask=store)
    c = tl.where((shown >= 0)[:, None], begun[None, :], extended[None, :]) * tl.sqrt(of_u)[:, None]
    cells = past_contexts + to[:, None] * D_C + column[None, :]
    tl.store(cells, c, mask=store[:, None] & (column < D_C)[None, :])
    tl.store(steps + row, step + any_marked.to(tl.int64))


@triton.jit(do_not_specialize=["random_stride"], do_not_specialize_on_alignment=["random"])  # type: ignore[untyped-decorator]
def race_others(  # type: ignore[no-untyped-def]
    logits,
    random,
    random_stride,
    warpers,
    limits,
    tops,
    first,
    times_out,
    ids_out,
    vocab,
    stride,
    tiles,
    WARPED: constexpr,
    BOUNDED: constexpr,
    TILE: constexpr,
):
    """The earliest time of each block of tokens that are no candidates, and its token (batch, tiles).

    Without ``BOUNDED`` all tokens race, and none has to beat a candidate.
    """
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    values = tl.load(logits + row * stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    top = tl.load(tops + row)
    bits = _bits(tl.load(random + row * random_stride), ids.to(tl.int64))
    rest = ((((1 << 52) - 1) - bits).to(tl.float64) + 0.5) * (1.0 / (1 << 52))
    able = values > float("-inf")
    warped = values
    if WARPED:
        warpers += row * 4
        warped = values / tl.load(warpers)
    if BOUNDED:
        order = _ordered(values)
        last = tl.load(limits + row * 3 + 1)
        later = (order < last) | ((order == last) & (ids > tl.load(limits + row * 3 + 2)))
        able = able & later & (order >= tl.load(limits + row * 3))
        share = tl.exp(warped - top)
        if WARPED:
            able = able & (share >= tl.load(warpers + 3))
        reach = tl.load(first + row).to(tl.float32) * 1.0001
        able = able & (rest.to(tl.float32) <= reach * share)
    time = tl.full((), float("inf"), tl.float64)
    chosen = tl.full((), 0, tl.int32)
    if tl.max(able.to(tl.int32), axis=0) > 0:
        uniform = (bits.to(tl.float64) + 0.5) * (1.0 / (1 << 52))
        times = -tl.log(uniform) / tl.exp(warped.to(tl.float64) - top.to(tl.float64))
        time, at = tl.min(tl.where(able, times, float("inf")), axis=0, return_indices=True)
        chosen = tile * TILE + at
    tl.store(times_out + row * tiles + tile, time)
    tl.store(ids_out + row * tiles + tile, chosen)


@triton.jit  # type: ignore[untyped-decorator]
def finish(  # type: ignore[no-untyped-def]
    times, ids, tops, first, chosen, chosen_out, sound_out, tiles, TILES: constexpr, BOUNDED: constexpr
):
    """Each row's token (batch,), and whether its logits were usable (batch,)."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, TILES)
    found = tl.load(times + row * tiles + place, mask=place < tiles, other=float("inf"))
    best, at = tl.min(found, axis=0, return_indices=True)
    token = tl.load(ids + row * tiles + at).to(tl.int64)
    if BOUNDED:
        mine = tl.load(first + row)
        token = tl.where(best < mine, token, tl.load(chosen + row))
        best = tl.minimum(best, mine)
    top = tl.load(tops + row)
    usable = (tl.abs(top) < float("inf")) & (best < float("inf"))  # False for NaN
    tl.store(chosen_out + row, token)
    tl.store(sound_out + row, usable.to(tl.int8))


@triton.jit  # type: ignore[untyped-decorator]
def leave_room(  # type: ignore[no-untyped-def]
    ids,
    values,
    rows,
    pairs,
    drawn,
    gains,
    room,
    m,
    n,
    alpha,
    tail,
    beta,
    tail_beta,
    used_beta,
    gain_kept,
    scale,
    last,
    KEPT: constexpr,
):
    """Count what room each row's token left to the mark (`dewmark.dew.word_step.WordStates.measure`)."""
    row = tl.program_id(0).to(tl.int64)
    rank = tl.arange(0, KEPT)
    inside = rank < m
    held = inside & (tl.load(ids + row * m + rank, mask=inside, other=-1) == tl.load(drawn + row))
    value = tl.load(values + row * m + rank, mask=inside, other=float("-inf"))
    shown = tl.sum(tl.load(rows + row * m + rank, mask=held, other=0), axis=0)
    marked = tl.sum(tl.load(pairs + row * m + rank, mask=held, other=0), axis=0) != 0
    top = tl.max(value, axis=0)
    mine = tl.max(tl.where(held, value, float("-inf")), axis=0)
    log_share = mine - top - tl.log(tl.sum(tl.exp(value - top), axis=0))
    at = tl.minimum(tl.maximum(tl.where(marked, log_share, 0.0) * scale, 0.0), last + 0.999)
    below = at.to(tl.int32)
    low = tl.load(gains + below)
    gain = low + (tl.load(gains + below + 1) - low) * (at - below)
    likely = tl.max((held & (rank < n)).to(tl.int32), axis=0) != 0
    of_u, of_h = _shares(likely, _word(shown) > 0, marked, alpha, tail, beta, tail_beta, used_beta)
    part = tl.arange(0, 4)
    left = tl.load(room + row * 8 + 4 + part)
    settled = tl.load(room + row * 8 + part) + tl.where((shown >= 0) | (marked == 0), left, 0.0)
    tl.store(room + row * 8 + part, settled)
    share = tl.where(part < 2, of_u, of_h)
    kept = tl.where(part < 2, gain_kept, 1.0)
    new = tl.where(part % 2 == 0, kept * tl.sqrt(share) * gain, (share > 0.0).to(tl.float32))
    tl.store(room + row * 8 + 4 + part, new)
