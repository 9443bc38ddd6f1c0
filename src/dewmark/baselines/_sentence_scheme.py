"""Schemes that mark whole sentences: a sentence's bin must be one that the key accepts after the one before.

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
from dewmark.baselines._sentence_law import Mask, exact_test, least_p_value, paper_test
from dewmark.baselines._sentence_space import SentenceSpace
from dewmark.baselines._sentences import Sentence, sentences
from dewmark.baselines._tests import check
from dewmark.baselines._tokens import stored_secret
from dewmark.core.keys import Key, KeyStream
from dewmark.errors import ConfigError
from dewmark.evidence import Evidence
from dewmark.scheme import DEFAULT_FPR, BoundScheme, Needs, Scheme, Session, State, check_test, check_texts
from dewmark.types import Detection, TokenScore, Verdict
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.drafts import Drafts

__all__ = ["SentenceBound", "SentenceScheme"]


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
        from dewmark.baselines._sentence_drafts import SentenceDrafts

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
