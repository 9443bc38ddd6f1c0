"""The exact law of accepted sentences over random keys.

After a sentence in bin a, the key accepts M of K bins for the next one, a uniform subset for each a and
independent between them. A text whose sentences go n_ab times from bin a to bin b scores

    S = Σ_ab n_ab [b accepted after a],    E S = γ N,    γ = M/K,    N = Σ_ab n_ab

It is what the likelihood ratio depends on, if each sentence of marked text is accepted with some probability
above γ. The text is fixed, so S is a sum over a of independent sums over M bins drawn without replacement:
the number of subsets of each size and sum is counted bin by bin, and the laws of all a are convolved.
Repeating a transition is no new evidence here: it makes the steps of S larger, not its tail lighter.

Boundary: counts in, a `Statistic` and the least p-value that the text could have out.

Judging the drafts of one batch of texts: which bin a sentence falls into, and whether it is accepted.

Schemes that mark whole sentences: a sentence's bin must be one that the key accepts after the one before.

Marking draws sentences until one falls into an accepted bin, clear of its border by a margin, so that a
paraphrase stays in it. Detection reads a text's complete sentences, each with the one before it (for the
first one the prompt's last, where the prompt is known), and tests how many transitions the key accepts:
exactly, over random partitions (`_sentence_law`). What the bins are is a subclass's business.

Boundary: text and vectors; hosts write the drafts.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, F64, I64
from dewmark.artifacts import load_artifact
from dewmark.baselines.sentence.space import SentenceSpace
from dewmark.baselines.token_schemes import check, stored_secret
from dewmark.core.keys import Key, KeyStream
from dewmark.errors import ConfigError
from dewmark.scheme import (
    DEFAULT_FPR,
    BoundScheme,
    Drafts,
    Needs,
    Scheme,
    Session,
    State,
    check_test,
    check_texts,
)
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, one_sided_p
from dewmark.text.sentences import Sentence, first_end, sentences
from dewmark.types import Detection, TokenScore, Verdict
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.scheme import Drafts

__all__ = [
    "SentenceBound",
    "SentenceDrafts",
    "SentenceScheme",
    "acceptance_law",
    "exact_test",
    "least_p_value",
    "paper_test",
    "score_of",
]

Mask = NDArray[np.bool_]


def acceptance_law(counts: I64, accepted: int) -> F64:
    """The probabilities of S = 0, 1, …, max S, for transitions (K, K) and ``accepted`` = M of K bins."""
    law = np.ones(1)
    for row in counts[counts.any(axis=1)]:
        law = np.convolve(law, _one_bin(row, accepted))
    return law


def _one_bin(row: I64, accepted: int) -> F64:
    """The law of the sum of M of the K numbers of ``row``, drawn without replacement."""
    ways = np.zeros((accepted + 1, int(np.sort(row)[-accepted:].sum()) + 1))
    ways[0, 0] = 1.0
    width = ways.shape[1]
    for n in row.tolist():
        for size in range(accepted, 0, -1):  # downwards: each number is drawn once at most
            ways[size, n:] += ways[size - 1, : max(width - n, 0)]
    law: F64 = ways[accepted] / math.comb(len(row), accepted)
    return law


def score_of(counts: I64, partition: Mask) -> int:
    """S for transitions (K, K), with ``partition`` (K, K) True where b is accepted after a."""
    return int(counts[partition].sum())


def exact_test(counts: I64, partition: Mask) -> Statistic:
    """P(at least S) over keys. z is S on its own standard scale, L_eff = N² γ(1 − γ) / Var S."""
    total = int(counts.sum())
    if total == 0:
        return NOTHING
    accepted, score = int(partition[0].sum()), score_of(counts, partition)
    share = accepted / len(counts)
    law = acceptance_law(counts, accepted)
    values = np.arange(len(law))
    variance = float(law @ (values - share * total) ** 2)
    # all bins visited equally often after each: S is the same under every key
    z = (score - share * total) / math.sqrt(variance) if variance > 1e-9 else 0.0
    effective = total**2 * share * (1.0 - share) / max(variance, 1e-9)
    return Statistic(z, min(float(law[score:].sum()), 1.0), min(effective, float(np.count_nonzero(counts))))


def least_p_value(counts: I64, accepted: int) -> float:
    """The p-value of this text under the key that fits it best: a property of the text alone."""
    return float(acceptance_law(counts, accepted)[-1])


def paper_test(counts: I64, partition: Mask) -> Statistic:
    """The published test: sentences taken as independent, z = (S − γN) / √(N γ(1 − γ))."""
    total = int(counts.sum())
    if total == 0:
        return NOTHING
    share = float(partition[0].mean())
    z = (score_of(counts, partition) - share * total) / math.sqrt(total * share * (1.0 - share))
    return Statistic(z, one_sided_p(z), float(total))


_REFUSED = -1.0  # in a bin that is not accepted; in an accepted one but too near its border is better

_UNUSABLE = -float("inf")


@dataclass
class _Text:
    """A text as it grows: its last judged sentence, ``judged`` characters long, and what follows it.

    ``bin`` is that sentence's, ``previous`` that of the one before. Before the first sentence ``bin`` is the
    prompt's last sentence's, if it has one.
    """

    bin: int | None
    previous: int | None = None
    tail: str = ""
    judged: int = 0


class SentenceDrafts(Drafts):
    """Accepts a sentence whose bin the key accepts after the one before it, clear of the bin's border."""

    def __init__(self, bound: SentenceBound, prompts: Sequence[str]) -> None:
        self.tries = bound.scheme.tries
        self.at_once = bound.scheme.drafts
        self._bound = bound
        last = [_last_sentence(prompt) for prompt in prompts]
        bins = iter(bound.assign(bound.space.vectors([text for text in last if text]))[0].tolist())
        self._texts = [_Text(next(bins) if text else None) for text in last]
        self._bins: dict[str, int] = {}  # of all sentences that were judged

    def end(self, row: int, draft: str, *, last: bool = False) -> int | None:
        """Where the draft's sentence ends; at once if the draft changes the sentence before it."""
        text = self._texts[row]
        joined = text.tail + draft
        if text.judged:
            before = first_end(joined, last=last)
            if before != text.judged:
                # quotes and brackets that may close it still leave that open
                unsure = before is None and first_end(joined, last=True) == len(joined)
                return None if unsure else len(draft)
        end = first_end(joined, start=text.judged, last=last)
        return None if end is None else max(end - len(text.tail), 0)

    def judge(self, rows: Sequence[int], drafts: Sequence[str]) -> list[float]:
        """How far each draft lies from its bin's border beyond the margin, if the key accepts its bin."""
        found = [self._sentence(row, draft) for row, draft in zip(rows, drafts, strict=True)]
        distinct = list(dict.fromkeys(text for text in found if text is not None))
        bins, slack = self._bound.assign(self._bound.space.vectors(distinct))
        self._bins.update(zip(distinct, bins.tolist(), strict=True))
        beyond = dict(zip(distinct, slack.tolist(), strict=True))
        scores = []
        for row, text in zip(rows, found, strict=True):
            before = self._texts[row].bin
            if text is None:
                scores.append(_UNUSABLE)
            elif before is None:  # nothing to depend on: no detector scores it
                scores.append(1.0)
            else:
                accepted = self._bound.partition[before, self._bins[text]]
                scores.append(beyond[text] if accepted else _REFUSED)
        return scores

    def accept(self, row: int, draft: str) -> None:
        """The draft's sentence becomes the one that the next depends on."""
        text = self._texts[row]
        text.tail += draft
        if self._sentence(row, "") is None:
            # no draft was usable, and this one changed the sentence before: read that again
            text.judged, text.bin = 0, text.previous
        text.tail = text.tail[text.judged :].lstrip()
        text.judged = first_end(text.tail, last=True) or 0
        if text.judged:
            text.previous, text.bin = text.bin, self._bin(text.tail[: text.judged].rstrip())

    def _bin(self, sentence: str) -> int:
        if sentence not in self._bins:
            self._bins[sentence] = int(self._bound.assign(self._bound.space.vectors([sentence]))[0][0])
        return self._bins[sentence]

    def _sentence(self, row: int, draft: str) -> str | None:
        """The sentence that a draft adds, or None if it adds none or changes the one before."""
        text = self._texts[row]
        joined = text.tail + draft
        if text.judged and first_end(joined, last=True) != text.judged:
            return None
        end = first_end(joined, start=text.judged, last=True)
        return None if end is None else joined[text.judged : end].strip()


def _last_sentence(prompt: str) -> str:
    """The prompt's last sentence, complete or not; empty if it has none."""
    found = sentences(prompt)
    return prompt[found[-1].start : found[-1].end] if found else ""


@dataclass(frozen=True)
class SentenceScheme(Scheme):
    """What the schemes of this kind share."""

    needs: ClassVar[Needs] = Needs(encoder=True, artifact=True, drafts=True)

    gamma: float = 0.25
    """Share γ of the bins that the key accepts after each bin; γ times their number must be whole."""
    tries: int = 100
    """Most drafts of one sentence; after them the best one is taken, marked or not."""
    drafts: int = 8
    """How many drafts of a sentence are written at once: a matter of speed, it changes no text."""
    artifact: str | None = None
    """Folder of the trained artifact; by default the one that comes with the package."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.tries >= 1, "tries", "be at least 1", self.tries),
            (self.drafts >= 1, "drafts", "be at least 1", self.drafts),
        )

    @property
    def host_free(self) -> bool:
        """True: sentences are text, whoever wrote them."""
        return True

    @abstractmethod
    def join(self, secret: bytes, host: HostInfo, fingerprint: str, space: SentenceSpace) -> SentenceBound:
        """The scheme with a secret of 32 bytes and its space of sentences."""

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> SentenceBound:
        """Derive the secret from a key."""
        return self._bind(key, host, self._space(workspace))

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> SentenceBound:
        """Take the secret and the space from a stored detector."""
        return self.join(stored_secret(state), host, fingerprint, SentenceSpace.restored(state, workspace))

    def detect_keys(
        self,
        keys: Sequence[Key],
        texts: Sequence[str],
        host: HostInfo,
        workspace: Workspace,
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[list[Detection]]:
        """For each text one detection per key; the sentences are embedded once for all keys."""
        starts = check_texts(texts, prompts, fpr)
        space = self._space(workspace)
        readings = read(texts, starts, space)
        columns = [self._bind(key, host, space).detect_readings(readings, fpr=fpr, test=test) for key in keys]
        return [list(row) for row in zip(*columns, strict=True)]

    def _space(self, workspace: Workspace) -> SentenceSpace:
        return SentenceSpace.of(load_artifact(self.artifact, scheme=self.name), workspace)

    def _bind(self, key: Key, host: HostInfo, space: SentenceSpace) -> SentenceBound:
        return self.join(key.subkey(f"{self.name}/sentences"), host, key.fingerprint, space)


@dataclass(frozen=True)
class Reading:
    """A text's sentences, their vectors (n, r), and before them the prompt's last one's, if there is any."""

    text: str
    sentences: list[Sentence]
    vectors: F32
    prompted: bool


def read(texts: Sequence[str], prompts: Sequence[str], space: SentenceSpace) -> list[Reading]:
    """Cut texts into sentences and embed all of them at once; an incomplete last one is left out."""
    found: list[tuple[str, list[Sentence], list[str], bool]] = []
    for text, prompt in zip(texts, prompts, strict=True):
        before = [prompt[s.start : s.end] for s in sentences(prompt)[-1:]]
        mine = sentences(text)
        pieces = before + [text[s.start : s.end] for s in mine if s.complete]
        found.append((text, mine, pieces, bool(before)))
    distinct = list(dict.fromkeys(piece for _, _, pieces, _ in found for piece in pieces))
    vectors = space.vectors(distinct)
    place = {piece: i for i, piece in enumerate(distinct)}
    return [
        Reading(text, mine, vectors[[place[piece] for piece in pieces]], prompted)
        for text, mine, pieces, prompted in found
    ]


class SentenceBound(BoundScheme):
    """A scheme of this kind with its secret and its space. Subclasses say what the bins are.

    ``partition`` (K, K) is True where the second bin is accepted after the first.
    """

    tests = ("exact", "z")
    scheme: SentenceScheme

    def __init__(
        self,
        scheme: SentenceScheme,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        space: SentenceSpace,
        bins: int,
    ) -> None:
        super().__init__(scheme, host, fingerprint)
        self.space = space
        self.artifact_identity = space.identity
        self._secret = secret
        self._accepted = round(scheme.gamma * bins)
        if not math.isclose(self._accepted, scheme.gamma * bins) or not 0 < self._accepted < bins:
            raise ConfigError(
                f"gamma must accept a whole number of the {bins} bins, got {scheme.gamma}: "
                f"use a multiple of {1 / bins:g} below 1"
            )
        self.partition: Mask = np.zeros((bins, bins), dtype=bool)
        for before in range(bins):
            order = self.stream(f"after {before}").permutation(bins)
            self.partition[before, order[: self._accepted]] = True

    def stream(self, purpose: str) -> KeyStream:
        """The secret's random numbers for one purpose."""
        return KeyStream(hashlib.blake2b(purpose.encode(), key=self._secret, digest_size=32).digest())

    @abstractmethod
    def assign(self, vectors: F32) -> tuple[I64, F64]:
        """Unit rows (N, r) to bins (N,), and how far beyond the margin they lie from a border (N,)."""

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Refused: no choice of a token says what sentence will come of it."""
        raise ConfigError(
            f"{self.scheme.name} chooses between drafts of whole sentences, which no logits processor can: "
            "write with Watermark.generate, Host.generate or dewmark generate"
        )

    def drafts(self, prompts: Sequence[str]) -> Drafts:
        """Start choosing the sentences that follow these prompts."""
        return SentenceDrafts(self, prompts)

    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Detection]:
        """Score completions. Tests: ``exact`` over random keys (default), and the published ``z``."""
        starts = check_texts(texts, prompts, fpr)
        return self.detect_readings(read(texts, starts, self.space), fpr=fpr, test=test)

    def detect_readings(
        self, readings: Sequence[Reading], *, fpr: float, test: str | None
    ) -> list[Detection]:
        """The verdicts on texts that were read; units are sentences."""
        test = check_test(test, self.tests)
        return [self._detection(reading, fpr=fpr, test=test) for reading in readings]

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Texts as sentences, numbered in their order."""
        found = [[(s.start, s.end) for s in sentences(text)] for text in texts]
        return [
            Tokenized(text, tuple(range(len(spans))), tuple(spans))
            for text, spans in zip(texts, found, strict=True)
        ]

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The transitions' scores.

        Two transitions from one bin exclude each other a little, as bins are drawn without replacement: their
        scores have the correlation −1/(K − 1), that of the corners of a simplex.
        """
        readings = read([text.text for text in texts], [prompt.text for prompt in prompts], self.space)
        return [self._evidence(reading) for reading in readings]

    def state(self) -> State:
        """The secret that the key gave this scheme, and the space. As secret as the key."""
        meta, arrays = self.space.stored()
        kept: dict[str, NDArray[Any]] = {"secret": np.frombuffer(self._secret, dtype=np.uint8), **arrays}
        return State(meta=meta, arrays=kept)

    def _transitions(self, reading: Reading) -> tuple[I64, int]:
        """Pairs of bins (T, 2), and the number of the sentence that the first of them leads to."""
        bins, _ = self.assign(reading.vectors)
        return np.column_stack((bins[:-1], bins[1:])), 0 if reading.prompted else 1

    def _detection(self, reading: Reading, *, fpr: float, test: str) -> Detection:
        pairs, first = self._transitions(reading)
        counts = np.zeros(self.partition.shape, dtype=np.int64)
        np.add.at(counts, tuple(pairs.T), 1)
        statistic = (exact_test if test == "exact" else paper_test)(counts, self.partition)
        share = self._accepted / len(counts)
        scores = (self.partition[tuple(pairs.T)] - share) / math.sqrt(share * (1.0 - share))
        verdict = Verdict.MARKED if statistic.p_value < fpr else Verdict.NOT_MARKED
        if least_p_value(counts, self._accepted) >= fpr:  # no key could be found in it
            verdict = Verdict.TOO_SHORT
        return Detection(
            verdict=verdict,
            p_value=statistic.p_value,
            z=statistic.z,
            score=float(scores.mean()) if len(scores) else 0.0,
            effective_length=statistic.effective_length,
            tokens_scored=len(pairs),
            test=test,
            fpr=fpr,
            scheme=self.scheme.name,
            key_fingerprint=self.fingerprint,
            tokens=_units(reading, scores.tolist(), first),
        )

    def _evidence(self, reading: Reading) -> Evidence:
        pairs, first = self._transitions(reading)
        distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
        positions = np.full(len(reading.sentences), -1, dtype=np.int64)
        positions[first : first + len(pairs)] = inverse
        bins = len(self.partition)
        share = self._accepted / bins
        variance = share * (1.0 - share)
        corners = (np.eye(bins) - 1.0 / bins) * math.sqrt(bins / (bins - 1.0))
        scores = self.partition[tuple(distinct.T)] - share
        return Evidence(
            scores=scores,
            alignments=scores / math.sqrt(variance),
            weights=np.bincount(inverse, minlength=len(distinct)).astype(np.float64),
            positions=positions,
            T=corners[distinct[:, 1]].astype(np.float32),
            C=distinct[:, 0],
            kernel=(variance,),
        )


def _units(reading: Reading, scores: Sequence[float], first: int) -> tuple[TokenScore, ...]:
    """The sentences of a text with their scores; one without a context and an open last one have none."""
    units = []
    for number, (start, end, _) in enumerate(reading.sentences):
        scored = first <= number < first + len(scores)
        score = scores[number - first] if scored else 0.0
        units.append(TokenScore(reading.text[start:end], start, end, score, scored))
    return tuple(units)
