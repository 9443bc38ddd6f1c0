"""The default scheme, written down once: marking and testing in float64, to be read.

The fast paths (`race`, `matrix`, `key_test`, `ring`) compute what stands here, and
`tests/dew/test_reference.py` holds them to it. The paper's own algorithms are in `paper.reference`.

A public *lexicon* gives every word two vectors of d = 128 coordinates: a unit vector t, and a context
vector, whose norm is small for a frequent word. A word that is not listed borrows the row of a listed one
by its spelling. A few have no row, and no vectors: words with digits, and beginnings of listed words in
plain letters ("libr"), which a writer may be about to complete (`Lexicon.rows`). Row 0 stands for no row;
it may occur 0 times. The secret key gives a matrix W (d, d) of independent standard normals. The context
of a word is c (d,), the normalised sum of the context vectors of the k words before it. The key marks a word
in two ways:

    u = tᵀ W c                               its *alignment*: words of one meaning have nearly the same
    h = Φ⁻¹(hash(key; its row, k rows))      its *form*: any other word, or context, has another one

Both are standard normal over keys. u survives paraphrase and translation; h does not, but tells more about a
text that was left as it is, because it is independent between the words that could have stood in a place.

**Marking** prefers words with a large u and a large h. A *host* is the language model that writes. Without a
mark its next word can be drawn as argmax(logit + g), where the noise g = −log(−log Φ(r)) comes from fresh
standard normals r: a race among the candidates. With the mark most of the noise comes from the key:

    y = √α u + √β h + √(1−α−β) r,    next word = argmax(logit + λ tanh(γu) − log(−log Φ(x)))

α and β are 0.65 and 0.3 for the 32 likeliest candidates, 0.3 and 0.6 for the others. A word whose row is used
up has no u; its β is 0.9. Over keys and r, the y of all candidates of all steps are jointly normal, with
variance 1 and Cov(y_i, y_j) = √(α_i α_j) (t_i · t_j)(c_i · c_j), and √(β_i β_j) more if their h is the same.
So what has been written tells something about the noise to come. x is y less its mean given the noise that
earlier steps have used, divided by the square root of the covariance that remains: independent standard
normals again. If that were done for all steps and all candidates, texts would follow the host's own
distribution over keys and r at λ = 0. Three shortcuts make it an approximation: the last 4 marked steps
are remembered; 8 candidates of each; and of this step's candidates the 32 likeliest are made independent
of one another. What stays dependent makes the race a little less random, so that the host's favourites
win more often. λ works against that, and makes the mark stronger. At 0.35, the default, texts drawn from all
tokens have about the average log-probability of the host's own, although not exactly their distribution.
Where filters leave few tokens there is little to work against, and texts are a little less likely.

**Testing** fixes the text and asks how many keys fit it as well as this one. (The paper takes its
thresholds from unmarked texts under one key.) The text is a matrix M (d, d):

    M = Σ_i w_i (t_i − t̄) c_iᵀ,    z = ⟨f(M), W⟩ / ‖f(M)‖

f flattens M: it cuts M's large singular values. Unrelated texts have those directions in common, so uncut
they would let one unlucky key find many texts at once. Whatever f cuts, neither M nor f depends on the
key, so z is exactly N(0, 1) over keys for every text that was written without the key. So is the second sum,
over the N words whose h counts, and the two are independent:

    z_F = Σ_i h_i / √N

The verdict rests on the larger of z and (z + z_F)/√2, so that a translated text is tested by its meaning
alone and an untouched one by both. The p-value of that choice is exact, too (`dewmark.stats.two_sums`). What
stands here is the test with ``--reader none``. By default detectors have a reader and subtract, instead of
the text's mean word t̄, the word that it expected in each place, and h weighs more where it expected another
word (`dewmark.dew.reading`).

A word has u, which counts in M, where its row is new in the text; a frequent one up to four times
(`Lexicon.limits`). It has h wherever it has a row. The first k words carry no mark. Their contexts would
reach into the prompt, which a detector seldom has; and under one key all answers to a prompt would begin with
the same noise. Nor is there a mark in a context that has occurred before: there h does not count. Testing u
does not look for that, because it hardly happens before a new word.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr

from dewmark.arrays import F64, U64
from dewmark.core.keys import Key, KeyStream
from dewmark.core.projections import draw_matrix
from dewmark.dew.form import FormKey, FormPairs, pair_numbers
from dewmark.encoders.lexicon import Lexicon
from dewmark.stats.two_sums import larger_of
from dewmark.text.words import words

CONTEXT = 3  # k: the words of a context
CANDIDATES = 256  # m: the likeliest tokens, which alone can carry the mark
ALPHA, TAIL = 0.65, 0.3  # α, the share of the noise's variance that is u's: likely candidates, others
BETA, TAIL_BETA, USED_BETA = 0.3, 0.6, 0.9  # β, that of h: the same, and words whose row is used up
LAMBDA = 0.35  # λ: the most that a logit gains
GAMMA = 0.5  # γ: how fast tanh(γu) saturates
INDEPENDENT = 32  # candidates whose noise is made independent
STEPS, KEPT = 4, 8  # earlier steps whose noise is remembered, and candidates of each
LIMIT, LEAST_LIMIT = 2.5, 1.05  # of a singular value, relative to the root mean square of all
DIRECTIONS, OF_LONG = 24, 64  # how many are cut at most, in texts of up to 2d words and in longer ones
LEAST_SHARE = 0.01  # of ‖M‖², which a text must keep after flattening


class PairVectors(NamedTuple):
    """The N distinct pairs of a text: words t (N, d), contexts c (N, d), how often each counts, w (N,).

    w is 1 except where a frequent word recurs in the same context. ``form`` are the words whose h counts.
    """

    t: F64
    c: F64
    w: F64
    form: FormPairs


class Candidates(NamedTuple):
    """n words that may come next: t (n, d), c (n, d), and the number of the word in its context, q (n,).

    t is 0 where a word has no u, q where it has no h.
    """

    t: F64
    c: F64
    q: U64

    def among(self, logits: F64) -> Candidates:
        """The same, without a mark on those that filters have removed: their ``logits`` (n,) are −∞."""
        able = np.isfinite(logits)
        return Candidates(self.t * able[:, None], self.c, np.where(able, self.q, np.uint64(0)))

    @property
    def roots(self) -> tuple[F64, F64]:
        """√α and √β of the words, the likeliest first, (n,) each."""
        likely, has_u = np.arange(len(self.q)) < INDEPENDENT, self.t.any(axis=1) & self.c.any(axis=1)
        alpha = np.where(has_u, np.where(likely, ALPHA, TAIL), 0.0)
        beta = np.where(has_u, np.where(likely, BETA, TAIL_BETA), USED_BETA) * (self.q != 0)
        return np.sqrt(alpha), np.sqrt(beta)


class Revealed(NamedTuple):
    """Noise of P words: y (P,), t (P, d), contexts scaled by √α (P, d), q (P,) and √β (P,)."""

    t: F64
    scaled: F64
    q: U64
    root: F64
    y: F64

    @classmethod
    def of(cls, chosen: Candidates, y: F64) -> Revealed:
        """That of candidates, whose noise is y (n,)."""
        root_alpha, root_beta = chosen.roots
        return cls(chosen.t, root_alpha[:, None] * chosen.c, chosen.q, root_beta, y)

    def at(self, places: list[int] | slice) -> Revealed:
        """Some of it."""
        t, scaled, q, root, y = self
        return Revealed(t[places], scaled[places], q[places], root[places], y[places])


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


def candidates(chosen: Sequence[str], lexicon: Lexicon, *, written: Sequence[str]) -> Candidates:
    """n words that may follow those written.

    A word carries no mark if it is among the first k words, if it has no row, if no word of its context has
    one, or if the same context has occurred in the text. It has no u if its row has occurred as often as it
    may. Hosts write tokens. One that begins a word stands for that word, and one that holds two stands for
    the first. One that extends the last word stands for the longer word, in the context of the last one:
    ``written`` are then the words before the last.
    """
    around = windows(written)
    rows = [tuple(lexicon.rows(window).tolist()) for window in around]
    context = len(written) >= CONTEXT and any(rows[-1]) and rows[-1] not in rows[1:-1]  # the first is empty
    occurred = Counter(lexicon.rows(written).tolist())
    mine = lexicon.rows(chosen)
    new = [context and occurred[row] < lexicon.limits[row] for row in mine.tolist()]
    c = contexts(around[-1:], lexicon)
    q = pair_numbers(mine, np.array([rows[-1]] * len(mine), dtype=np.int64))
    q = np.where((mine > 0) & context, q, np.uint64(0))
    return Candidates(units(chosen, lexicon) * np.array(new)[:, None], c.repeat(len(chosen), axis=0), q)


def covariance(a: Revealed, b: Revealed) -> F64:
    """Of the noise of n words and of m others, (n, m)."""
    same = (a.q[:, None] == b.q[None, :]) * np.outer(a.root, b.root)
    return np.asarray((a.t @ b.t.T) * (a.scaled @ b.scaled.T) + same)


def inverse_root(A: F64, variances: F64 | float) -> F64:
    """A^(−1/2) of a covariance matrix (n, n) whose diagonal is replaced by variances (n,)."""
    np.fill_diagonal(A, variances)
    values, vectors = np.linalg.eigh(A)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


def keyed_noise(words: Candidates, W: F64, form: FormKey, r: F64) -> F64:
    """y (n,) of n candidates, the likeliest first; ``r`` (n,) are fresh standard normals."""
    root_alpha, root_beta = words.roots
    u = np.einsum("id,de,ie->i", words.t, W, words.c)
    h = form.noise(words.q)
    return np.asarray(root_alpha * u + root_beta * h + np.sqrt(1.0 - root_alpha**2 - root_beta**2) * r)


def innovations(y: F64, words: Candidates, past: Sequence[Revealed]) -> F64:
    """x (n,): what is new in y (n,), given the noise of earlier steps; the likeliest candidate first.

    The square root is the symmetric one, which leaves x as close to y as it can be.
    """
    now = Revealed.of(words, y)
    known = Revealed(*map(np.concatenate, zip(*past, now.at(slice(0)), strict=True)))
    root = inverse_root(covariance(known, known), 1.0)
    B = root @ covariance(known, now)
    rest = y - B.T @ (root @ known.y)
    left = 1.0 - np.sum(B**2, axis=0)
    x = rest / np.sqrt(left)
    n = slice(INDEPENDENT)
    A = covariance(now.at(n), now.at(n)) - B[:, n].T @ B[:, n]
    x[n] = inverse_root(A, left[n]) @ rest[n]
    return np.asarray(x)


def perturbed_logits(logits: F64, words: Candidates, W: F64, y: F64, past: Sequence[Revealed]) -> F64:
    """The numbers (n,) of n candidates, the likeliest first; the one with the largest number is next."""
    u = np.einsum("id,de,ie->i", words.t, W, words.c)
    return np.asarray(logits + LAMBDA * np.tanh(GAMMA * u) - np.log(-log_ndtr(innovations(y, words, past))))


def remembered(logits: F64, words: Candidates, y: F64, best: int, past: Sequence[Revealed]) -> list[Revealed]:
    """What the last steps revealed, after one in which the candidate ``best`` came first: the latest last.

    The likeliest candidates and the best one are remembered; a step without a mark, or without a choice,
    reveals nothing.
    """
    used = [*range(KEPT - 1), max(best, KEPT - 1)]
    used = [i for i in used if words.q[i]] if np.isfinite(logits).sum() > 1 else []
    return [*past, Revealed.of(words, y).at(used)][-STEPS:] if used else list(past)


def step(
    logits: F64, words: Candidates, W: F64, form: FormKey, r: F64, past: Sequence[Revealed]
) -> tuple[int, list[Revealed]]:
    """One step of marking: which candidate is next, and what the last steps have revealed after it.

    ``logits`` (n,) are the host's after temperature and filters, the likeliest first, and ``words`` those
    of `candidates`: only the 256 likeliest tokens can carry the mark. ``r`` (n,) are fresh standard normals.
    ``past`` is empty at first.
    """
    words = words.among(logits)
    y = keyed_noise(words, W, form, r)
    best = int(np.argmax(perturbed_logits(logits, words, W, y, past)))
    return best, remembered(logits, words, y, best, past)


# Testing


def pairs(text: str, lexicon: Lexicon) -> PairVectors:
    """The pairs of a text that count.

    A word counts if it has a row, is not among the first k, and a word of the lexicon is in its context. Its
    u counts if its row has occurred less often than it may, its h if its context is new.
    """
    written = forms(text)
    rows, around = lexicon.rows(written), windows(written)[:-1]
    contexts_rows = [tuple(lexicon.rows(window).tolist()) for window in around]
    occurred, counted = Counter[int](), Counter[tuple[str, tuple[str, ...]]]()
    places = []
    for i, (word, row) in enumerate(zip(written, rows.tolist(), strict=True)):
        if i >= CONTEXT and row > 0 and any(contexts_rows[i]):
            if occurred[row] < lexicon.limits[row]:
                counted[word, around[i]] += 1
            if contexts_rows[i] not in contexts_rows[1:i]:
                places.append(i)
        occurred[row] += 1
    t, c = units([word for word, _ in counted], lexicon), contexts([window for _, window in counted], lexicon)
    q = pair_numbers(rows[places], np.array([contexts_rows[i] for i in places]).reshape(-1, CONTEXT))
    form = FormPairs(q, np.array(places, dtype=np.int64), np.ones(len(places)))
    return PairVectors(t, c, np.array([*counted.values()], dtype=np.float64), form)


def z_score(text: PairVectors, W: F64) -> float:
    """z of a text under a key's W (d, d); 0 if too little of its evidence is left after flattening."""
    t, c, w, _ = text
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
    found = pairs(text, lexicon)
    z = z_score(found, key_matrix(key, lexicon))
    if not z:
        return 0.0, 1.0
    _, z, p = map(float, larger_of(z, found.form.z(FormKey.of(key))))
    return z, p
