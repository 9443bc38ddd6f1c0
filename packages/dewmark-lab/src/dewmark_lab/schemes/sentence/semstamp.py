"""SemStamp and k-SemStamp: sentences are drafted until one falls into a bin that the key accepts.

Marking draws drafts of the next sentence until one falls into an accepted bin and clears the bin's border by
a margin. Detection reads a text's complete sentences, each with the one before it (for the first one the
prompt's last sentence).

After a sentence in bin a, the key accepts a uniform subset of M of the K bins. A text whose sentences go
n_ab times from bin a to bin b scores S = Σ_ab n_ab [b accepted after a]. The text is fixed, so S is a sum
over a of independent sums over M bins drawn without replacement: the number of subsets of each size and sum
is counted bin by bin, and the distributions of all a are convolved. Repeating a transition is therefore no
new evidence.

SemStamp (Hou et al. 2024): the signs of cosines with d secret hyperplanes' normals make 2^d bins, and a
sentence is rejected if a cosine is within the margin of 0. k-SemStamp (Hou et al. 2024): the bins are k
public clusters of ordinary sentences, and a sentence must be closer to its centroid than to the next one by
more than the margin.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, F64, I64
from dewmark.core.keys import Key, KeyStream
from dewmark.errors import ArtifactError, ConfigError
from dewmark.scheme import BoundScheme, Needs, Reading, Scheme, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, key_test, one_sided_p
from dewmark.types import Detection, Seeds, Verdict
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import HostInfo, Texts, Tokenized, Workspace
from dewmark_lab.artifacts import load_artifact
from dewmark_lab.schemes.sentence.drafting import DraftJudge
from dewmark_lab.schemes.sentence.sentence_space import SentenceSpace
from dewmark_lab.schemes.token_schemes import secret_of
from dewmark_lab.sentences import first_end, sentences

if TYPE_CHECKING:
    import torch

    from dewmark.mark import Session

Partition = NDArray[np.bool_]
"""(K, K), True where the second bin is accepted after the first."""


def acceptance_pmf(counts: I64, accepted: int) -> F64:
    """The probabilities of S = 0, 1, …, max S, for transitions (K, K) and ``accepted`` = M of K bins."""
    pmf = np.ones(1)
    for row in counts[counts.any(axis=1)]:
        pmf = np.convolve(pmf, _one_bin(row, accepted))
    return pmf


def _one_bin(row: I64, accepted: int) -> F64:
    """The distribution of the sum of M of the K numbers of ``row``, drawn without replacement."""
    ways = np.zeros((accepted + 1, int(np.sort(row)[-accepted:].sum()) + 1))
    ways[0, 0] = 1.0
    width = ways.shape[1]
    for n in row.tolist():
        for size in range(accepted, 0, -1):  # downwards: each number is drawn at most once
            ways[size, n:] += ways[size - 1, : max(width - n, 0)]
    pmf: F64 = ways[accepted] / math.comb(len(row), accepted)
    return pmf


def exact_test(counts: I64, partition: Partition) -> Statistic:
    """P(at least S) over keys. z is S standardized, and L_eff = N² γ(1 − γ) / Var S."""
    total = int(counts.sum())
    if total == 0:
        return NOTHING
    accepted, score = int(partition[0].sum()), int(counts[partition].sum())
    share = accepted / len(counts)
    pmf = acceptance_pmf(counts, accepted)
    values = np.arange(len(pmf))
    variance = float(pmf @ (values - share * total) ** 2)
    # S is the same under every key if all bins are visited equally often after each
    z = (score - share * total) / math.sqrt(variance) if variance > 1e-9 else 0.0
    effective = total**2 * share * (1.0 - share) / max(variance, 1e-9)
    return Statistic(z, min(float(pmf[score:].sum()), 1.0), min(effective, float(np.count_nonzero(counts))))


def paper_test(counts: I64, partition: Partition) -> Statistic:
    """The published test, which takes sentences as independent: z = (S − γN) / √(N γ(1 − γ))."""
    total = int(counts.sum())
    if total == 0:
        return NOTHING
    share = float(partition[0].mean())
    z = (int(counts[partition].sum()) - share * total) / math.sqrt(total * share * (1.0 - share))
    return Statistic(z, one_sided_p(z), float(total))


_NOT_ACCEPTED = -1.0  # worse than an accepted bin too near its border
UNUSABLE = -float("inf")
"""The score of a draft that changes a sentence before it."""


@dataclass(frozen=True)
class SentenceScheme(Scheme):
    """The parameters that such schemes share."""

    needs: ClassVar[Needs] = Needs(encoder=True, artifact=True, drafts=True)
    host_free: ClassVar[bool] = True  # detection only reads sentences

    gamma: Annotated[float, "in (0, 1)"] = 0.25
    """Share γ of the bins that the key accepts after each bin; γ times their number must be an integer."""
    tries: Annotated[int, "at least 1"] = 100
    """Most drafts of one sentence; after them the best one is taken, marked or not."""
    drafts: Annotated[int, "at least 1"] = 8
    """Number of drafts written at once: it affects speed only, not the text."""
    artifact: str | None = None
    """Folder of the trained artifact; by default the one that comes with the package."""

    @abstractmethod
    def bins(self, secret: bytes, space: SentenceSpace) -> SentenceBins:
        """The bins that divide the space of sentence vectors."""

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> SentenceBound:
        return self._bind(key, host, self._space(workspace))

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> SentenceBound:
        space = SentenceSpace.restored(state, workspace)
        return SentenceBound(self, host, fingerprint, secret=secret_of(state), space=space)

    def bind_keys(self, keys: Sequence[Key], host: HostInfo, workspace: Workspace) -> Iterator[SentenceBound]:
        """Bind the scheme to several keys; sentences are embedded once for all of them."""
        space = self._space(workspace).remembering()
        for key in keys:
            yield self._bind(key, host, space)

    def _space(self, workspace: Workspace) -> SentenceSpace:
        return SentenceSpace.of(load_artifact(self.artifact, scheme=self.name), workspace)

    def _bind(self, key: Key, host: HostInfo, space: SentenceSpace) -> SentenceBound:
        secret = key.subkey(f"{self.name}/sentences")
        return SentenceBound(self, host, key.fingerprint, secret=secret, space=space)


class SentenceBins(ABC):
    """``count`` = K bins that divide the space of sentence vectors."""

    count: int

    @abstractmethod
    def assign(self, vectors: F32) -> tuple[I64, F64]:
        """Unit rows (N, r) to bins (N,), and their distance from the bin's border less the margin (N,)."""


def keyed(secret: bytes, purpose: str) -> KeyStream:
    """The secret's random numbers for one purpose."""
    return KeyStream(hashlib.blake2b(purpose.encode(), key=secret, digest_size=32).digest())


class SentenceUnits(BoundScheme):
    """A bound scheme that marks whole sentences, which are the units of its detections."""

    @abstractmethod
    def least_p_value(self, evidence: Evidence) -> float:
        """The p-value of a text under the key that fits it best, which depends on the text alone."""

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Session:
        raise ConfigError(
            f"{self.scheme.name} chooses between drafts of whole sentences, which no logits processor can: "
            "write with Watermark.generate, Host.generate or dewmark generate"
        )

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Texts as sentences, numbered in order."""
        found = [[(s.start, s.end) for s in sentences(text)] for text in texts]
        return [
            Tokenized(text, tuple(range(len(spans))), tuple(spans))
            for text, spans in zip(texts, found, strict=True)
        ]

    def _mean_score(self, evidence: Evidence) -> float:
        """The mean standardized score of the text's scored sentences."""
        scored = evidence.positions[evidence.positions >= 0]
        return float(evidence.alignments[scored].mean()) if len(scored) else 0.0

    def _detection(
        self, reading: Reading, evidence: Evidence, statistic: Statistic, *, test: str, fpr: float
    ) -> Detection:
        """The result for one text; it is too short if no key could be detected in it."""
        found = super()._detection(reading, evidence, statistic, test=test, fpr=fpr)
        verdict = Verdict.MARKED if statistic.p_value <= fpr else Verdict.NOT_MARKED
        if self.least_p_value(evidence) >= fpr:
            verdict = Verdict.TOO_SHORT
        return dataclasses.replace(found, verdict=verdict)


class SentenceBound(SentenceUnits):
    """Such a scheme, bound: ``partition`` (K, K) is True where the second bin is accepted after the first."""

    tests = ("exact", "z")
    scheme: SentenceScheme

    def __init__(
        self, scheme: SentenceScheme, host: HostInfo, fingerprint: str, *, secret: bytes, space: SentenceSpace
    ) -> None:
        super().__init__(scheme, host, fingerprint)
        self.space = space
        self.artifact_identity = space.identity
        self.bins = scheme.bins(secret, space)
        self._secret = secret
        count = self.bins.count
        self._accepted = round(scheme.gamma * count)
        if not math.isclose(self._accepted, scheme.gamma * count) or not 0 < self._accepted < count:
            raise ConfigError(
                f"gamma must accept a whole number of the {count} bins, got {scheme.gamma}: "
                f"use a multiple of {1 / count:g} below 1"
            )
        self.partition: Partition = np.zeros((count, count), dtype=bool)
        for before in range(count):
            order = keyed(secret, f"after {before}").permutation(count)
            self.partition[before, order[: self._accepted]] = True

    def drafts(self, prompts: Sequence[str]) -> SentenceDrafts:
        """Start choosing the sentences that follow these prompts."""
        return SentenceDrafts(prompts, self)

    def evidence(self, readings: Sequence[Reading], *, test: str | None = None) -> Iterator[Evidence]:
        """The transitions' scores.

        Bins are drawn without replacement, so two transitions from one bin exclude each other a little: their
        scores have the correlation −1/(K − 1), that of the corners of a simplex.
        """
        return self._transitions([each.text for each in readings], [each.prompt for each in readings])

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``exact`` over random keys (the default), or the published ``z``; the key test of a passage."""
        if evidence.whole is None:
            return key_test(evidence)
        return (exact_test if test == "exact" else paper_test)(evidence.whole, self.partition)

    def least_p_value(self, evidence: Evidence) -> float:
        return float(acceptance_pmf(evidence.whole, self._accepted)[-1])

    def state(self) -> State:
        meta, arrays = self.space.stored()
        kept: dict[str, NDArray[Any]] = {"secret": np.frombuffer(self._secret, dtype=np.uint8), **arrays}
        return State(meta=meta, arrays=kept)

    def _transitions(self, texts: Texts, prompts: Texts) -> Iterator[Evidence]:
        """The transitions of each text; all sentences are embedded in one call."""
        before = [_last_sentence(prompt.text) for prompt in prompts]
        found = [sentences(text.text) for text in texts]
        read = [
            [*filter(None, [last]), *(text.text[s.start : s.end] for s in mine if s.complete)]
            for text, last, mine in zip(texts, before, found, strict=True)
        ]
        vectors = self.space.vectors([sentence for each in read for sentence in each])
        start = 0
        for last, mine, each in zip(before, found, read, strict=True):
            bins, _ = self.bins.assign(vectors[start : start + len(each)])
            start += len(each)
            yield self._evidence(bins, first=0 if last else 1, count=len(mine))

    def _evidence(self, bins: I64, *, first: int, count: int) -> Evidence:
        """Evidence of ``count`` sentences, of which ``first`` is the first with a sentence before it."""
        pairs = np.column_stack((bins[:-1], bins[1:]))
        distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
        positions = np.full(count, -1, dtype=np.int64)
        positions[first : first + len(pairs)] = inverse
        K = self.bins.count
        share = self._accepted / K
        variance = share * (1.0 - share)
        corners = (np.eye(K) - 1.0 / K) * math.sqrt(K / (K - 1.0))
        scores = self.partition[tuple(distinct.T)] - share
        counts = np.zeros((K, K), dtype=np.int64)
        np.add.at(counts, tuple(pairs.T), 1)
        return Evidence(
            scores=scores,
            alignments=scores / math.sqrt(variance),
            weights=np.bincount(inverse, minlength=len(distinct)).astype(np.float64),
            positions=positions,
            T=corners[distinct[:, 1]].astype(np.float32),
            C=distinct[:, 0],
            kernel=(variance,),
            whole=counts,
        )


@dataclass
class GrowingText:
    """A growing text: its last judged sentence, ``judged`` characters long, and what follows it.

    ``bin`` is that sentence's bin, ``previous`` the bin of the sentence before. Before the first sentence,
    ``bin`` is that of the prompt's last sentence, if there is one.
    """

    bin: int | None
    previous: int | None = None
    tail: str = ""
    judged: int = 0
    _ends_before: dict[str, bool] = dataclasses.field(default_factory=dict)

    def judge(self, tail: str) -> None:
        """Take the first sentence of ``tail`` as the judged one."""
        self.tail, self.judged = tail, first_end(tail, last=True) or 0
        self._ends_before = {}

    def certain(self, draft: str) -> bool:
        """Whether the judged sentence ends where it did if the draft follows; the next character decides."""
        after = (self.tail[self.judged :] or draft)[:1]
        if after not in self._ends_before:
            self._ends_before[after] = first_end(self.tail[: self.judged] + after) == self.judged
        return self._ends_before[after]


class SentenceDrafts(DraftJudge):
    """Accepts a sentence whose bin the key accepts after the one before it, clear of the bin's border."""

    def __init__(self, prompts: Sequence[str], bound: SentenceBound) -> None:
        self.tries, self.at_once = bound.scheme.tries, bound.scheme.drafts
        self._space, self._bins, self._partition = bound.space, bound.bins, bound.partition
        last = [_last_sentence(prompt) for prompt in prompts]
        found = iter(self._assign([text for text in last if text])[0])
        self._texts = [GrowingText(next(found) if text else None) for text in last]
        self._known: dict[str, int] = {}  # bins of all sentences judged so far

    def end(self, row: int, draft: str, *, last: bool = False) -> int | None:
        """Where the draft's sentence ends; at once if the draft changes the sentence before it."""
        text = self._texts[row]
        joined = text.tail + draft
        if text.judged and not text.certain(draft):
            before = first_end(joined, last=last)
            if before != text.judged:
                # closing quotes or brackets may still follow, which leaves that open
                unsure = before is None and first_end(joined, last=True) == len(joined)
                return None if unsure else len(draft)
        end = first_end(joined, start=text.judged, last=last)
        return None if end is None else max(end - len(text.tail), 0)

    def judge(self, rows: Sequence[int], drafts: Sequence[str]) -> list[float]:
        """How far each draft lies beyond the margin from its bin's border, if the key accepts its bin."""
        found = [self._sentence(row, draft) for row, draft in zip(rows, drafts, strict=True)]
        distinct = list(dict.fromkeys(text for text in found if text is not None))
        bins, slack = self._assign(distinct)
        self._known.update(zip(distinct, bins, strict=True))
        beyond = dict(zip(distinct, slack, strict=True))
        scores = []
        for row, text in zip(rows, found, strict=True):
            before = self._texts[row].bin
            if text is None:
                scores.append(UNUSABLE)
            elif before is None:  # the sentence depends on none, and detection does not score it
                scores.append(1.0)
            else:
                accepted = self._partition[before, self._known[text]]
                scores.append(beyond[text] if accepted else _NOT_ACCEPTED)
        return scores

    def accept(self, row: int, draft: str) -> None:
        """Make the draft's sentence the one that the next depends on."""
        text = self._texts[row]
        text.tail += draft
        if self._sentence(row, "") is None:
            # no draft was usable, and this one changed the sentence before: read that again
            text.judged, text.bin = 0, text.previous
        text.judge(text.tail[text.judged :].lstrip())
        if text.judged:
            text.previous, text.bin = text.bin, self._after(text)

    def _assign(self, texts: Sequence[str]) -> tuple[list[int], list[float]]:
        bins, slack = self._bins.assign(self._space.vectors(texts))
        return bins.tolist(), slack.tolist()

    def _after(self, text: GrowingText) -> int:
        """What the next sentence depends on: the bin of the sentence just accepted."""
        sentence = text.tail[: text.judged].rstrip()
        if sentence not in self._known:
            self._known[sentence] = self._assign([sentence])[0][0]
        return self._known[sentence]

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
class SemStamp(SentenceScheme):
    """Rejection sampling of sentences by locality-sensitive hashing."""

    name: ClassVar[str] = "semstamp"
    summary: ClassVar[str] = "sentences are drawn until secret hyperplanes put one into an accepted bin"

    dimensions: Annotated[int, "in [1, 8]"] = 3
    """Number d of hyperplanes; they make 2^d bins."""
    margin: Annotated[float, "in [0, 1)"] = 0.01
    """Least absolute cosine of an accepted sentence with every hyperplane's normal."""

    def bins(self, secret: bytes, space: SentenceSpace) -> SentenceBins:
        normals = keyed(secret, "hyperplanes").normals(self.dimensions, space.dim)
        return HyperplaneBins(normals / np.linalg.norm(normals, axis=1, keepdims=True), self.margin)


@dataclass(frozen=True)
class KSemStamp(SentenceScheme):
    """Rejection sampling of sentences by clusters."""

    name: ClassVar[str] = "ksemstamp"
    summary: ClassVar[str] = "sentences are drawn until one falls into an accepted cluster of meanings"

    margin: Annotated[float, "in [0, 2)"] = 0.035
    """Least lead of an accepted sentence's cosine with its own centroid over that with the next one."""

    def bins(self, secret: bytes, space: SentenceSpace) -> SentenceBins:
        if len(space.centroids) < 2:
            raise ArtifactError("the artifact has no centroids: train it again with dewmark train ksemstamp")
        return CentroidBins(space.centroids, self.margin)


class HyperplaneBins(SentenceBins):
    """Bins by the signs of cosines with unit normals (d, r)."""

    def __init__(self, normals: F64, margin: float) -> None:
        self.count = 1 << len(normals)
        self._normals, self._margin = normals, margin

    def assign(self, vectors: F32) -> tuple[I64, F64]:
        """The signs of the cosines as a number, and the least cosine's size less the margin."""
        cosines = vectors.astype(np.float64) @ self._normals.T
        bins = (cosines > 0.0) @ (1 << np.arange(len(self._normals)))
        return bins.astype(np.int64), np.abs(cosines).min(axis=1) - self._margin


class CentroidBins(SentenceBins):
    """Bins by the nearest of the unit centroids (k, r)."""

    def __init__(self, centroids: F32, margin: float) -> None:
        self.count = len(centroids)
        self._centroids, self._margin = centroids, margin

    def assign(self, vectors: F32) -> tuple[I64, F64]:
        """The nearest centroid, and its lead over the next one less the margin."""
        cosines = vectors.astype(np.float64) @ self._centroids.T.astype(np.float64)
        ordered = np.sort(cosines, axis=1)
        return cosines.argmax(axis=1), ordered[:, -1] - ordered[:, -2] - self._margin
