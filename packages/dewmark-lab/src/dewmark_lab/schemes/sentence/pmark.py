"""PMark: of many drafts of a sentence the one whose meaning lies on the right side of most keyed directions.

Huo et al. 2025, in the version that its authors call offline. The key draws b orthonormal directions and,
for the t-th sentence of a text, b bits. With e(s) the unit vector of a sentence s around the encoder's mean,
channel i of sentence t agrees if [⟨e(s), v_i⟩ > 0] = r_ti. Given the directions, the bits are independent
and fair over keys, so the number of agreements of T sentences is Binomial(T b, ½) exactly, for every text.
The authors' soft count gives a disagreement near the border e^(−K|x|) instead of 0; over keys that is a sum
of independent two-valued terms of known mean and variance.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from scipy.stats import binom

from dewmark.arrays import F32, F64
from dewmark.core.keys import Key
from dewmark.encoders import load_encoder
from dewmark.encoders.base import Encoder
from dewmark.encoders.contexts import ordinary_texts
from dewmark.scheme import Needs, Reading, Scheme, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, one_sided_p
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import HostInfo, Texts, Workspace
from dewmark_lab.artifacts import named_encoder, stored_encoder
from dewmark_lab.schemes.sentence.semstamp import UNUSABLE, GrowingText, SentenceDrafts, SentenceUnits, keyed
from dewmark_lab.schemes.sentence.sentence_space import SentenceSpace, encode
from dewmark_lab.schemes.token_schemes import secret_of
from dewmark_lab.sentences import sentences

_MAX_CHANNELS = 64
_CENTRE_LINES = 8  # sentences of each language that make up the centre
_SHARPNESS, _BORDER = 250.0, 0.001  # K of the soft count, and the cosine below which either side agrees

_centres: dict[str, F32] = {}


@dataclass(frozen=True)
class PMark(Scheme):
    """Sentences chosen among drafts by keyed half-spaces."""

    name: ClassVar[str] = "pmark"
    summary: ClassVar[str] = "of many drafts of a sentence, the one on the keyed side of most directions"
    needs: ClassVar[Needs] = Needs(encoder=True, drafts=True)
    host_free: ClassVar[bool] = True  # detection only reads sentences

    channels: Annotated[int, f"in [1, {_MAX_CHANNELS}]"] = 4
    """Number b of directions; a draft agrees in all of them with probability 2^−b."""
    tries: Annotated[int, "at least 1"] = 64
    """Most drafts N of one sentence."""
    drafts: Annotated[int, "at least 1"] = 8
    """Number of drafts written at once: it affects speed only, not the text."""
    encoder: str = "use-m3"
    """Sentence encoder: use-m3, minilm, a folder or a hub id."""

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> PMarkBound:
        return next(self.bind_keys([key], host, workspace))

    def bind_keys(self, keys: Sequence[Key], host: HostInfo, workspace: Workspace) -> Iterator[PMarkBound]:
        """Bind the scheme to several keys; sentences are embedded once for all of them."""
        space = _space(load_encoder(self.encoder, progress=workspace.progress))
        for key in keys:
            secret = key.subkey("pmark/sentences")
            yield PMarkBound(self, host, key.fingerprint, secret=secret, space=space)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> PMarkBound:
        space = _space(stored_encoder(state, workspace))
        return PMarkBound(self, host, fingerprint, secret=secret_of(state), space=space)


@dataclass(frozen=True)
class ChannelEvidence(Evidence):
    """The complete sentences of a text: ``cosines`` (T, b), and whether each ``agrees`` (T, b)."""

    of_pairs = ("cosines", "agrees")
    cosines: F64 = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    agrees: F64 = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))


class PMarkBound(SentenceUnits):
    """PMark for one key. The units of its detections are sentences."""

    tests = ("exact", "soft")
    scheme: PMark

    def __init__(
        self, scheme: PMark, host: HostInfo, fingerprint: str, *, secret: bytes, space: SentenceSpace
    ) -> None:
        super().__init__(scheme, host, fingerprint)
        self._secret, self._space = secret, space
        self.directions = _orthonormal(keyed(secret, "directions").normals(scheme.channels, space.dim))

    def bits(self, number: int) -> F64:
        """The bits (b,) of a text's sentence of this number, counted from 0."""
        digest = hashlib.blake2b(f"sentence {number}".encode(), key=self._secret, digest_size=32).digest()
        return np.unpackbits(np.frombuffer(digest, dtype=np.uint8))[: self.scheme.channels].astype(np.float64)

    def cosines(self, texts: Sequence[str]) -> F64:
        """Sentences to their cosines with the directions, (N, b)."""
        return self._space.vectors(texts).astype(np.float64) @ self.directions.T

    def drafts(self, prompts: Sequence[str]) -> PMarkDrafts:
        """Start choosing the sentences that follow these prompts."""
        return PMarkDrafts(prompts, self)

    def evidence(self, readings: Sequence[Reading], *, test: str | None = None) -> Iterator[ChannelEvidence]:
        """Agreements less disagreements of each complete sentence."""
        return self._channels([each.text for each in readings])

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``exact``: the number of agreements (default); ``soft``: the authors' soft count."""
        assert isinstance(evidence, ChannelEvidence)
        return (_soft if test == "soft" else _exact)(evidence)

    def least_p_value(self, evidence: Evidence) -> float:
        return float(0.5 ** (len(evidence) * self.scheme.channels))

    def state(self) -> State:
        secret = np.frombuffer(self._secret, dtype=np.uint8)
        return State(meta=named_encoder(self._space.encoder), arrays={"secret": secret})

    def _channels(self, texts: Texts) -> Iterator[ChannelEvidence]:
        """The sentences of each text; all are embedded in one call."""
        found = [sentences(text.text) for text in texts]
        read = [
            [text.text[s.start : s.end] for s in mine if s.complete]
            for text, mine in zip(texts, found, strict=True)
        ]
        cosines = self.cosines([sentence for each in read for sentence in each])
        start, channels = 0, self.scheme.channels
        for mine, each in zip(found, read, strict=True):
            here = cosines[start : start + len(each)]
            start += len(each)
            bits = np.array([self.bits(number) for number in range(len(each))]).reshape(len(each), channels)
            agrees = ((here > 0.0) == bits).astype(np.float64)
            positions = np.full(len(mine), -1, dtype=np.int64)
            positions[: len(each)] = np.arange(len(each))
            scores = (2.0 * agrees - 1.0).sum(axis=1)
            plain = Evidence.independent(scores, np.ones(len(each)), positions, variance=float(channels))
            yield ChannelEvidence(**vars(plain), cosines=here, agrees=agrees)


class PMarkDrafts(SentenceDrafts):
    """Judges a draft by its agreements; a text's ``bin`` is the number of its next sentence."""

    def __init__(self, prompts: Sequence[str], bound: PMarkBound) -> None:
        self.tries, self.at_once = bound.scheme.tries, bound.scheme.drafts
        self._bound = bound
        self._texts = [GrowingText(0) for _ in prompts]

    def judge(self, rows: Sequence[int], drafts: Sequence[str]) -> list[float]:
        """1 if all channels agree, else the share that agrees less 1."""
        found = [self._sentence(row, draft) for row, draft in zip(rows, drafts, strict=True)]
        cosines = self._bound.cosines([text or " " for text in found])
        scores = []
        for row, text, here in zip(rows, found, cosines, strict=True):
            agreement = float(((here > 0.0) == self._bound.bits(self._texts[row].bin or 0)).mean())
            scores.append(UNUSABLE if text is None else 1.0 if agreement == 1.0 else agreement - 1.0)
        return scores

    def _after(self, text: GrowingText) -> int:
        return (text.bin or 0) + 1


def _exact(evidence: ChannelEvidence) -> Statistic:
    """P(at least this many agreements) over keys."""
    trials = evidence.agrees.size
    if trials == 0:
        return NOTHING
    hits = int(evidence.agrees.sum())
    z = (2.0 * hits - trials) / math.sqrt(trials)
    return Statistic(z, float(binom.sf(hits - 1, trials, 0.5)), float(len(evidence)))


def _soft(evidence: ChannelEvidence) -> Statistic:
    """The soft count, standardized by its mean and variance over keys.

    A term is 1 or e^(−K|x|), each with probability ½, so it is a fair sign of size (1 − e^(−K|x|)) / 2.
    """
    size = np.abs(evidence.cosines)
    weight = np.where(size > _BORDER, (1.0 - np.exp(-_SHARPNESS * size)) / 2.0, 0.0)
    variance = float((weight**2).sum())
    if variance <= 0.0:
        return NOTHING
    z = float((weight * (2.0 * evidence.agrees - 1.0)).sum()) / math.sqrt(variance)
    return Statistic(z, one_sided_p(z), float(len(evidence)))


def _orthonormal(rows: F64) -> F64:
    """Gram-Schmidt over rows (b, d), b at most d; unlike a library's QR it has one sign convention."""
    found: list[F64] = []
    for row in rows:
        for other in found:
            row = row - (row @ other) * other
        found.append(row / np.linalg.norm(row))
    return np.stack(found)


def _space(encoder: Encoder) -> SentenceSpace:
    """Unit vectors around the mean of ordinary sentences; without it all sentences lean to one side."""
    if encoder.identity not in _centres:
        lines = [line for text in ordinary_texts() for line in text.splitlines()[:_CENTRE_LINES]]
        _centres[encoder.identity] = encode(encoder, lines).mean(axis=0)
    unchanged = np.eye(encoder.dim, dtype=np.float32)
    none = np.zeros((0, encoder.dim), dtype=np.float32)
    return SentenceSpace(encoder, _centres[encoder.identity], unchanged, none, "", known={})
