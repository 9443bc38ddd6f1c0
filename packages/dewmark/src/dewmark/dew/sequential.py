"""Detection in a stream: a p-value that is valid whenever you stop.

The words of a text arrive one by one. Word i has the score s_i = (t_i − μ_i)ᵀ W c_i, where μ_i is the mean of
the scored words before it. Fix the text and let the key be random: the scores are jointly normal with
covariance K_ij = ⟨t_i − μ_i, t_j − μ_j⟩⟨c_i, c_j⟩, which depends on the text alone. With K = L Lᵀ the
innovations e = L⁻¹ s are independent standard normals, and e_i depends on the first i words only. A mark
favours words with large scores: it tilts the distribution of s_i by exp(δ s_i), which given the words before
moves the mean of e_i to δ L_ii. So

    E_δ = exp(δ A − δ² V/2),   A = Σ_i L_ii e_i,   V = Σ_i L_ii²

is a likelihood ratio: a martingale of mean 1 on unmarked text. The h of a word in its context
(`dewmark.dew.form`) is one more independent standard normal e, with L = `_FORM`. The average of E_δ over a
few δ, over the meaning alone (which survives translation) and both, and over all uses of the key
(`dewmark.dew.ring`), is an *e-process*: by Ville's inequality the probability over keys that it ever
reaches 1/α is at most α, and 1/max E is a p-value at any time.

**Two conditions.** What unrelated texts have in common stays in the process. So whenever it reaches the
level, the text so far must stand the key test (`dewmark.dew.matrix`), too, and the larger p-value counts,
which can only make alarms rarer. After `_MOST_WORDS` scored words, or `_MOST_NUMBERS` scores in memory, the
process stands still, which keeps it valid.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from dewmark.arrays import F32, F64
from dewmark.dew.matrix import text_matrices
from dewmark.dew.reading import LexiconReader
from dewmark.dew.ring import CONFIDENCE, KeyMatrices, KeyUse
from dewmark.errors import ConfigError
from dewmark.verdict import LEAST_P, names_origin

STRENGTHS = np.array([0.1, 0.2, 0.35, 0.55, 0.8, 1.2])
"""The strengths δ over which the process averages."""

_MOST_WORDS = 3000
_MOST_NUMBERS = 1 << 25
_LEAST = 1e-4  # of a word's variance must be new
_FORM = 0.8  # L of an h, beside about 0.7 of an s
_PRIOR = 8.0  # words: the weight of a mean of 0 in the mean of the words so far


class SequentialDetector:
    """Watches one text while it grows: `update` takes the next piece and returns the p-value so far.

    The text is marked as soon as the p-value is at most ``fpr``; you may stop there, or at any other time.
    A ``prompt``, if known, is only context. ``limit`` is that of the key test's flattening.
    """

    def __init__(
        self,
        reader: LexiconReader,
        uses: KeyMatrices,
        *,
        prompt: str | None = None,
        fpr: float = 0.01,
        limit: float,
    ) -> None:
        if not 0.0 < fpr < 1.0:
            raise ConfigError(f"fpr must lie in (0, 1), got {fpr}")
        self.fpr = fpr
        self._reader, self._uses = reader, uses
        (self._prompt,) = reader.tokenize([prompt or ""])
        self._text = ""
        self.words = 0  # read, scored or not
        self.scored = 0  # words that are evidence
        self._sum: F64 | None = None  # of the scored words
        self.rows: _Rows | None = None
        self._A, self._V = np.zeros(uses.count), 0.0
        self._A_form, self._V_form = np.zeros(uses.count), 0.0
        self.largest_log_e = 0.0  # the largest log E so far
        self._limit = limit
        self.p_value = 1.0
        """The smallest so far of 1/max E and the key test's p-value, the larger: valid whenever you stop."""

    @property
    def log_e(self) -> float:
        """log E, the logarithm of the e-process now."""
        logs = self._logs
        return float(logsumexp(logs)) - math.log(logs.size)

    @property
    def _logs(self) -> F64:
        """The logarithm of E under each strength and use, (strengths, uses), of the meaning and of both."""
        delta = STRENGTHS[:, None]
        meaning = delta * self._A - 0.5 * np.square(delta) * self._V
        return np.concatenate(
            (meaning, meaning + delta * self._A_form - 0.5 * np.square(delta) * self._V_form)
        )

    @property
    def is_marked(self) -> bool:
        """Whether the p-value has reached the level."""
        return self.p_value <= self.fpr

    @property
    def use(self) -> KeyUse | None:
        """The member, payload and epoch that fit, if the text is marked beyond doubt and one stands out."""
        if not names_origin(self.p_value, self.fpr):
            return None
        each = np.asarray(logsumexp(self._logs, axis=0))
        best = int(np.argmax(each))
        return self._uses.use(best) if math.exp(each[best] - logsumexp(each)) >= CONFIDENCE else None

    @property
    def origin(self) -> dict[str, int | str | None]:
        """The ``member``, ``payload`` and ``epoch`` that fit, None where the text does not tell."""
        use = self.use
        if use is None:
            return {"member": None, "payload": None, "epoch": None}
        epoch = self._uses.epoch(use.epoch)
        return {
            "member": use.member if epoch.members > 1 else None,
            "payload": use.payload if epoch.payload_bits else None,
            "epoch": use.epoch if len(self._uses.epochs) > 1 else None,
        }

    def update(self, piece: str) -> float:
        """Read the next piece of the text; its last word may go on in the next piece. Returns the p-value."""
        self._text += piece
        return self._advance(final=False)

    def finish(self) -> float:
        """The text has ended: read its last word, too. Returns the p-value."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> float:
        if not self._text.strip():
            return self.p_value
        (text,) = self._reader.tokenize([self._text])
        known = len(text.ids) if final else len(text.ids) - 1
        if known <= self.words:
            return self.p_value
        reading = self._reader.read([text], [self._prompt])
        (pairs,), contexts = reading.texts, reading.context_rows
        numbers = dict(zip(pairs.form.places.tolist(), pairs.form.numbers.tolist(), strict=True))
        if not self._uses.current.forms:
            numbers = {}
        for place in range(self.words, known):
            pair = int(pairs.positions[place])
            if pair >= 0:
                self.score(reading.token_rows[pairs.tokens[pair]], contexts[pairs.windows[pair]])
            if place in numbers:
                self.hear(numbers[place])
            if pair >= 0 or place in numbers:
                self.largest_log_e = max(self.largest_log_e, self.log_e)
        self.words = known
        p = max(min(math.exp(-self.largest_log_e), 1.0), LEAST_P)
        if p <= self.fpr:
            (whole,) = text_matrices(reading, limit=self._limit)
            p = max(p, self._uses.find(whole).p_value) if whole.square > 0.0 else 1.0
        self.p_value = min(self.p_value, p)
        return self.p_value

    def hear(self, number: int) -> None:
        """Add the h of a word in its context, by their number."""
        self._A_form += _FORM * self._uses.noise(number)
        self._V_form += _FORM**2

    def score(self, unit: F32, context: F32) -> None:
        """Add one scored word with its rows t (d_T,) and c (d_C,)."""
        total = np.zeros(len(unit)) if self._sum is None else self._sum
        t = (unit - total / (self.scored + _PRIOR)).astype(np.float32)
        self._sum, self.scored = total + unit, self.scored + 1
        if self.rows is None:
            self.rows = _Rows(len(t), len(context), self._uses.count)
        rows = self.rows
        variance = float(t.astype(np.float64) @ t) * float(context.astype(np.float64) @ context)
        full = rows.count >= _MOST_WORDS or (rows.count + 1) * self._uses.count > _MOST_NUMBERS
        if full or variance <= 0.0:
            return
        n = rows.count
        row = rows.solve((rows.units[:n] @ t) * (rows.contexts[:n] @ context))
        left = variance - float(row @ row)
        if left <= _LEAST * variance:
            return
        scale = math.sqrt(left)
        expected = row.astype(np.float32) @ rows.innovations[:n]
        sums = self._uses.sums(np.outer(t, context))
        innovation: F32 = ((sums - expected) / scale).astype(np.float32)
        rows.add(t, context, row, scale, innovation)
        self._A += scale * innovation
        self._V += left


class _Rows:
    """The scored words so far, n = ``count``: t (n, d_T), c (n, d_C), L (n, n) and e (n, uses).

    The arrays have more rows, so that they need not grow with every word.
    """

    def __init__(self, d_T: int, d_C: int, uses: int) -> None:
        self.count = 0
        self.units, self.contexts = np.zeros((32, d_T), np.float32), np.zeros((32, d_C), np.float32)
        self.L, self.innovations = np.zeros((32, 32)), np.zeros((32, uses), np.float32)

    def solve(self, covariance: F32) -> F64:
        """L⁻¹ times the covariances of a new score with those so far, (n,)."""
        from scipy.linalg import solve_triangular

        if not self.count:
            return np.zeros(0)
        L = self.L[: self.count, : self.count]
        return np.asarray(solve_triangular(L, covariance.astype(np.float64), lower=True, check_finite=False))

    def add(self, t: F32, c: F32, row: F64, scale: float, innovation: F32) -> None:
        n = self.count
        if n == len(self.L):
            rows = (self.units, self.contexts, self.innovations)
            self.units, self.contexts, self.innovations = (np.pad(each, ((0, n), (0, 0))) for each in rows)
            self.L = np.pad(self.L, (0, n))
        self.units[n], self.contexts[n], self.innovations[n] = t, c, innovation
        self.L[n, :n], self.L[n, n] = row, scale
        self.count = n + 1
