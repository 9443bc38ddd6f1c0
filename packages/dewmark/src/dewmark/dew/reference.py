"""The default scheme, written down once: marking and testing in float64, to be read.

The fast paths (`race`, `matrix`, `key_test`, `ring`) compute what stands here, and
`tests/dew/test_reference.py` holds them to it. The paper's own algorithms are in `paper.reference`.

A public *lexicon* gives every word two vectors of d = 128 coordinates: a unit vector t, and a context
vector, whose norm is small for a frequent word. A word that is not listed borrows the row of a listed one
by its spelling. A few have no row, and no vectors: words with digits, and beginnings of listed words in
plain letters ("libr"), which a writer may be about to complete (`Lexicon.rows`). Row 0 stands for no row;
it may occur 0 times. The secret key gives a matrix W (d, d) of independent standard normals. The context
of a word is c (d,), the normalised sum of the context vectors of the k words before it. Its *alignment*
is

    u = tᵀ W c,    standard normal over keys.

**Marking** prefers words with a large u. A *host* is the language model that writes. Without a mark its
next word can be drawn as argmax(logit + g), where the noise g = −log(−log Φ(r)) comes from fresh standard
normals r: a race among the candidates. With the mark most of the noise comes from the key:

    y = √α u + √(1−α) r,    next word = argmax(logit + λ tanh(γu) − log(−log Φ(x)))

α is 0.95 for the 32 likeliest candidates and 0.3 for the others. Over keys and r, the y of all candidates
of all steps are jointly normal, with variance 1 and Cov(y_i, y_j) = √(α_i α_j) (t_i · t_j)(c_i · c_j). So
what has been written tells something about the noise to come. x is y less its mean given the noise that
earlier steps have used, divided by the square root of the covariance that remains: independent standard
normals again. If that were done for all steps and all candidates, texts would follow the host's own
distribution over keys and r at λ = 0. Three shortcuts make it an approximation: the last 4 marked steps
are remembered; 8 candidates of each; and of this step's candidates the 32 likeliest are made independent
of one another. What stays dependent makes the race a little less random, so that the host's favourites
win more often. λ works against that: at 0.35, the default, a text has about the average log-probability
of the host's own texts, although not exactly their distribution. A larger λ makes the mark stronger and
texts less likely.

**Testing** fixes the text and asks how many keys fit it as well as this one. (The paper takes its
thresholds from unmarked texts under one key.) The text is a matrix M (d, d):

    M = Σ_i w_i (t_i − t̄) c_iᵀ,    z = ⟨f(M), W⟩ / ‖f(M)‖,    p = 1 − Φ(z)

f flattens M: it cuts M's large singular values. Unrelated texts have those directions in common, so uncut
they would let one unlucky key find many texts at once. Whatever f cuts, neither M nor f depends on the
key, so z is exactly N(0, 1) over keys for every text that was written without the key. What stands here
is the test with ``--reader none``. By default detectors have a reader and subtract, instead of the text's
mean word t̄, the word that it expected in each place (`dewmark.dew.reading`).

A word carries the mark, and counts, where its row is new in the text; a frequent one up to four times
(`Lexicon.limits`). The first k words carry none. Their contexts would reach into the prompt, which a
detector seldom has; and under one key all answers to a prompt would begin with the same noise. Marking
also leaves out a context that has occurred before. That hardly happens before a new word, so testing does
not look for it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from dewmark.arrays import F64
from dewmark.core.keys import Key, KeyStream
from dewmark.core.projections import draw_matrix
from dewmark.encoders.lexicon import Lexicon
from dewmark.text.words import words

CONTEXT = 3  # k: the words of a context
CANDIDATES = 256  # m: the likeliest tokens, which alone can carry the mark
ALPHA, TAIL = 0.95, 0.3  # α, the share of the noise's variance from the key: likely candidates, and others
LAMBDA = 0.35  # λ: the most that a logit gains
GAMMA = 0.5  # γ: how fast tanh(γu) saturates
INDEPENDENT = 32  # candidates whose noise is made independent
STEPS, KEPT = 4, 8  # earlier steps whose noise is remembered, and candidates of each
LIMIT, LEAST_LIMIT = 2.5, 1.05  # of a singular value, relative to the root mean square of all
DIRECTIONS, OF_LONG = 24, 64  # how many are cut at most, in texts of up to 2d words and in longer ones
LEAST_SHARE = 0.01  # of ‖M‖², which a text must keep after flattening


class PairVectors(NamedTuple):
    """The N distinct pairs of a text: words t (N, d), contexts c (N, d), how often each counts, w (N,).

    w is 1 except where a frequent word recurs in the same context.
    """

    t: F64
    c: F64
    w: F64


class Revealed(NamedTuple):
    """Noise that a step has used: y (P,) of words t (P, d), their contexts scaled by √α (P, d)."""

    t: F64
    scaled: F64
    y: F64


def key_matrix(key: Key, lexicon: Lexicon) -> F64:
    """W (d, d) of a key."""
    return draw_matrix(key, d_T=lexicon.dim, d_C=lexicon.dim)


def forms(text: str) -> tuple[str, ...]:
    """The words of a text, normalised."""
    return tuple(word.form for word in words(text))


def windows(written: Sequence[str]) -> list[tuple[str, ...]]:
    """The k words before each of n words and before the next one: n + 1 windows, padded with ""."""
    known = (*[""] * CONTEXT, *written)
    return [known[i : i + CONTEXT] for i in range(len(written) + 1)]


def contexts(around: Sequence[Sequence[str]], lexicon: Lexicon) -> F64:
    """c (N, d) of N windows. Words without a row add nothing; c is 0 if there are no others."""
    sums = [lexicon.contexts(lexicon.rows(window)).astype(np.float64).sum(axis=0) for window in around]
    return np.array([c / max(float(np.linalg.norm(c)), 1e-12) for c in sums]).reshape(-1, lexicon.dim)


def units(chosen: Sequence[str], lexicon: Lexicon) -> F64:
    """t (N, d) of N words; 0 for a word without a row."""
    return lexicon.tokens(lexicon.rows(chosen)).astype(np.float64)


# Marking


def candidates(chosen: Sequence[str], lexicon: Lexicon, *, written: Sequence[str]) -> tuple[F64, F64]:
    """t (n, d) and c (n, d) of n words that may follow those written; t is 0 where a word carries no mark.

    It carries none if it is among the first k words, if it has no row, if that has occurred as often as it
    may, if no word of its context has a row, or if the same context has occurred in the text. Hosts write
    tokens. One that begins a word stands for that word, and one that holds two stands for the first. One that
    extends the last word stands for the longer word, in the context of the last one: ``written`` are then the
    words before the last.
    """
    around = windows(written)
    rows = [tuple(lexicon.rows(window)) for window in around]
    context = len(written) >= CONTEXT and rows[-1] not in rows[1:-1]  # the first window is always empty
    occurred = Counter(lexicon.rows(written).tolist())
    carries = [context and occurred[row] < lexicon.limits[row] for row in lexicon.rows(chosen).tolist()]
    c = contexts(around[-1:], lexicon)
    return units(chosen, lexicon) * np.array(carries)[:, None], c.repeat(len(chosen), axis=0)


def shares(n: int) -> F64:
    """α of n candidates, the likeliest first, (n, 1)."""
    return np.where(np.arange(n) < INDEPENDENT, ALPHA, TAIL)[:, None]


def covariance(t: F64, scaled: F64, other_t: F64, other_scaled: F64) -> F64:
    """Of the noise of n candidates and of q others, (n, q); their contexts are scaled by √α."""
    return np.asarray((t @ other_t.T) * (scaled @ other_scaled.T))


def inverse_root(A: F64, variances: F64 | float) -> F64:
    """A^(−1/2) of a covariance matrix (n, n) whose diagonal is replaced by variances (n,)."""
    np.fill_diagonal(A, variances)
    values, vectors = np.linalg.eigh(A)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


def keyed_noise(t: F64, c: F64, W: F64, r: F64) -> F64:
    """y (n,) of n candidates, the likeliest first; ``r`` (n,) are fresh standard normals."""
    marked, alpha = t.any(axis=1) & c.any(axis=1), shares(len(t))[:, 0]
    u = np.einsum("id,de,ie->i", t, W, c)
    return np.asarray(np.where(marked, np.sqrt(alpha) * u + np.sqrt(1.0 - alpha) * r, r))


def innovations(y: F64, t: F64, c: F64, past: Sequence[Revealed]) -> F64:
    """x (n,): what is new in y (n,), given the noise of earlier steps; the likeliest candidate first.

    The square root is the symmetric one, which leaves x as close to y as it can be.
    """
    nothing = Revealed(t[:0], c[:0], y[:0])
    past_t, past_scaled, past_y = map(np.concatenate, zip(*past, nothing, strict=True))
    scaled = np.sqrt(shares(len(t))) * c
    root = inverse_root(covariance(past_t, past_scaled, past_t, past_scaled), 1.0)
    B = root @ covariance(past_t, past_scaled, t, scaled)
    rest = y - B.T @ (root @ past_y)
    left = 1.0 - np.sum(B**2, axis=0)
    x = rest / np.sqrt(left)
    n = slice(INDEPENDENT)
    A = covariance(t[n], scaled[n], t[n], scaled[n]) - B[:, n].T @ B[:, n]
    x[n] = inverse_root(A, left[n]) @ rest[n]
    return np.asarray(x)


def perturbed_logits(logits: F64, t: F64, c: F64, W: F64, y: F64, past: Sequence[Revealed]) -> F64:
    """The numbers (n,) of n candidates, the likeliest first; the one with the largest number is next."""
    u = np.einsum("id,de,ie->i", t, W, c)
    return np.asarray(logits + LAMBDA * np.tanh(GAMMA * u) - np.log(-log_ndtr(innovations(y, t, c, past))))


def remembered(logits: F64, t: F64, c: F64, y: F64, best: int, past: Sequence[Revealed]) -> list[Revealed]:
    """What the last steps revealed, after one in which the candidate ``best`` came first: the latest last.

    The likeliest candidates and the best one are remembered, where they can be drawn; a step without a mark
    reveals nothing.
    """
    used = [*range(KEPT - 1), max(best, KEPT - 1)]
    used = [i for i in used if t[i].any() and c[i].any() and np.isfinite(logits[i])]
    scaled = np.sqrt(shares(len(t))) * c
    return [*past, Revealed(t[used], scaled[used], y[used])][-STEPS:] if used else list(past)


def step(logits: F64, t: F64, c: F64, W: F64, r: F64, past: Sequence[Revealed]) -> tuple[int, list[Revealed]]:
    """One step of marking: which candidate is next, and what the last steps have revealed after it.

    ``logits`` (n,) are the host's after temperature and filters, the likeliest first. t and c (n, d) are
    those of `candidates`: 0 where a candidate carries no mark, as all but the 256 likeliest tokens do. ``r``
    (n,) are fresh standard normals. ``past`` is empty at first.
    """
    y = keyed_noise(t, c, W, r)
    best = int(np.argmax(perturbed_logits(logits, t, c, W, y, past)))
    return best, remembered(logits, t, c, y, best, past)


# Testing


def pairs(text: str, lexicon: Lexicon) -> PairVectors:
    """The pairs of a text that count.

    A word counts if it is not among the first k, has occurred less often than it may, and a word of the
    lexicon is in its context.
    """
    written = forms(text)
    occurred, counted = Counter[int](), Counter[tuple[str, tuple[str, ...]]]()
    for i, (word, window) in enumerate(zip(written, windows(written), strict=False)):
        row = int(lexicon.rows([word])[0])
        if i >= CONTEXT and lexicon.rows(window).any() and occurred[row] < lexicon.limits[row]:
            counted[word, window] += 1
        occurred[row] += 1
    t, c = units([word for word, _ in counted], lexicon), contexts([window for _, window in counted], lexicon)
    return PairVectors(t, c, np.array([*counted.values()], dtype=np.float64))


def z_score(text: PairVectors, W: F64) -> float:
    """z of a text under a key's W (d, d); 0 if too little of its evidence is left after flattening."""
    t, c, w = text
    if np.any(t != t[:1]):  # a lone word is not its own mean
        t = t - w @ t / w.sum()
    M = (w[:, None] * t).T @ c
    flat = flattened(M, float(w.sum())) if len(w) else M
    kept = np.sum(flat**2)
    whole = max(np.sum(M**2), np.sum((w * np.linalg.norm(t, axis=1) * np.linalg.norm(c, axis=1)) ** 2))
    return float(np.sum(flat * W) / np.sqrt(kept)) if kept > max(LEAST_SHARE * whole, 1e-9) else 0.0


def flattened(M: F64, L: float) -> F64:
    """f(M) (d, d) of a text whose weights w sum to L: large singular values s_j are cut down to b.

        f(M) = M − Σ_j (s_j − b)₊ l_j r_jᵀ,    b = limit · ‖f(M)‖ / √min(L, d)

    The limit is 2.5; from L = 2d on it falls as 1/∛L, but not below 1.05. f(M) depends on b, and b on f(M):
    30 rounds from b = ∞ find it.
    """
    d = len(M)
    limit = max(LIMIT * min(2.0 * d / L, 1.0) ** (1 / 3), LEAST_LIMIT)
    left, s, right = leading_directions(M, DIRECTIONS if 2 * d >= L else OF_LONG)
    rest, b = max(float(np.sum(M**2) - np.sum(s**2)), 0.0), math.inf
    for _ in range(1 + 30):
        b = limit * math.sqrt((rest + np.sum(np.minimum(s, b) ** 2)) / min(L, d))
    return np.asarray(M - (left * np.maximum(s - b, 0.0)) @ right.T)


def leading_directions(M: F64, q: int) -> tuple[F64, F64, F64]:
    """The q largest singular values s (q,) of M, nearly, and their directions l (d, q) and r (d, q).

    Three rounds of orthogonal iteration from fixed columns. Where singular values lie close together this is
    not yet `np.linalg.svd(M)`, with which z would differ by a few tenths, so all paths take the same rounds.
    """
    start = KeyStream(hashlib.sha256(b"dewmark/leading directions").digest())
    right = start.normals(len(M), q).astype(np.float32).astype(np.float64)
    for _ in range(3):
        right = np.linalg.qr(M.T @ (M @ right))[0]
    left, s, turn = np.linalg.svd(M @ right, full_matrices=False)
    return left, s, right @ turn.T


def detect(text: str, key: Key, lexicon: Lexicon) -> tuple[float, float]:
    """z and p of a text under a key; 0 and 1 where there is nothing to test."""
    z = z_score(pairs(text, lexicon), key_matrix(key, lexicon))
    return z, float(ndtr(-z)) if z else 1.0
