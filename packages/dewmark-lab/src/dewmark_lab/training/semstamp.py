"""Training of SemStamp: a linear map on top of a frozen encoder that puts paraphrases into the same bin.

A matrix A (d, r) is trained with the authors' loss: for a sentence s, a paraphrase t and another sentence n,
half of them from the same text,

    L = max(0, 0.8 − cos(s, t) + cos(s, n))      after v = (M_C(·) − μ) A.

Paraphrases come from a JSONL file with ``text`` and ``paraphrase``: sentences are matched by their shared
character trigrams, where each is the other's best match. If there are few or none, others are made from the
sentences themselves. k-SemStamp (`train_clusters`) then clusters the sentences' unit vectors by k-means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cosine_similarity

from dewmark import storage
from dewmark.arrays import F16, F32, I64
from dewmark.errors import InputError
from dewmark.models.devices import torch_device
from dewmark_lab.schemes.sentence.sentence_space import adapt, cut
from dewmark_lab.sentences import sentences
from dewmark_lab.training.job import Arrays, Trained, TrainingJob
from dewmark_lab.training.loop import TorchLearner, rng, run_steps
from dewmark_lab.training.texts import FileTexts

TEXTS, STEPS = 320, 800
WIDTH = 128
MARGIN = 0.8
_BATCH, _RATE = 256, 1e-3
_AT_ONCE = 512
_MIN_PAIRS = 60
_ENOUGH_PAIRS = 500  # real ones, to need no others
_MIN_WORDS = 5  # of a sentence that is paraphrased
_MIN_OVERLAP = 0.15
_CLAUSES = re.compile(r"[,;:–—]\s+")


@dataclass(frozen=True)
class Space:
    """A trained space: ``mean`` (d,) and ``matrix`` (d, r) as they are stored.

    ``sentences`` (N, d) are the encoder's vectors of the distinct training sentences.
    """

    mean: F16
    matrix: F16
    sentences: F32
    report: dict[str, float]

    def vectors(self) -> F32:
        """The sentences in the trained space, unit rows (N, r)."""
        return adapt(self.sentences, self.mean.astype(np.float32), self.matrix.astype(np.float32))


def train(job: TrainingJob) -> Trained:
    """Train the map."""
    space = train_space(job)
    arrays = {"mean": space.mean, "matrix": space.matrix}
    return Trained({"loss_margin": MARGIN}, arrays, space.report)


def train_space(job: TrainingJob) -> Space:
    """Train the map; returns it together with its training sentences."""
    texts = job.texts_for(1 if isinstance(job.texts, FileTexts) else TEXTS)
    cached = job.cached("pairs", lambda: _encoded_pairs(job, texts))
    anchors, paraphrases = (np.asarray(cached[name], np.float32) for name in ("anchors", "paraphrases"))
    labels, owners = (np.asarray(cached[name], np.int64) for name in ("labels", "owners"))
    sentences = anchors[np.unique(labels, return_index=True)[1]]
    mean = sentences.mean(axis=0)
    start = _whitening(sentences - mean)
    learner = Ranking(job, anchors - mean, paraphrases - mean, labels=labels, owners=owners, start=start)
    loss = run_steps(learner, job, steps=job.steps or STEPS)
    report = {"loss": loss, "pairs": len(anchors), "sentences": len(sentences)}
    return Space(mean.astype(np.float16), learner.matrix().astype(np.float16), sentences, report)


class Ranking(TorchLearner):
    """The margin ranking loss over centred pairs (P, d).

    ``labels`` (P,) are the numbers of the pairs' sentences, ``owners`` (P,) those of their texts.
    """

    def __init__(
        self, job: TrainingJob, anchors: F32, paraphrases: F32, *, labels: I64, owners: I64, start: F32
    ) -> None:
        device = torch_device(job.device)
        self._map = torch.nn.Linear(start.shape[0], start.shape[1], bias=False)
        self._map.weight.data = torch.from_numpy(start.T.copy())
        self._map.to(device)
        super().__init__({"map": self._map}, {"adam": torch.optim.Adam(self._map.parameters(), lr=_RATE)})
        self._anchors = torch.from_numpy(anchors).to(device)
        self._paraphrases = torch.from_numpy(paraphrases).to(device)
        self._seed = job.seed
        self._labels = labels
        self._by_text = np.argsort(owners, kind="stable")
        ordered = owners[self._by_text]
        self._first = np.searchsorted(ordered, owners)
        self._beyond = np.searchsorted(ordered, owners, side="right")

    def step(self, index: int) -> float:
        """One batch of pairs, each against a sentence of any text and one of the same text."""
        draw = rng(self._seed, index)
        chosen = draw.integers(len(self._labels), size=_BATCH)
        others = (
            draw.integers(len(self._labels), size=_BATCH),
            self._by_text[draw.integers(self._first[chosen], self._beyond[chosen])],
        )
        s = self._map(self._anchors[chosen])
        near = cosine_similarity(s, self._map(self._paraphrases[chosen]))
        losses = []
        for other in others:
            far = cosine_similarity(s, self._map(self._anchors[other]))
            differ = torch.from_numpy(self._labels[other] != self._labels[chosen]).to(far.device)
            losses.append((MARGIN - near + far).relu()[differ])
        return self.minimize(torch.cat(losses).mean())

    def matrix(self) -> F32:
        """A, (d, r)."""
        return np.asarray(self._map.weight.detach().cpu().numpy().T, dtype=np.float32)


def _whitening(centred: F32) -> F32:
    """The r principal components of rows (N, d), scaled towards equal variance: (d, r)."""
    variances, directions = np.linalg.eigh(centred.T.astype(np.float64) @ centred / len(centred))
    width = min(WIDTH, centred.shape[1])
    strong, basis = variances[::-1][:width], directions[:, ::-1][:, :width]
    # the fourth root of the variance, not the square root: weak components are mostly noise
    return np.asarray(basis / np.maximum(strong, 1e-8) ** 0.25, dtype=np.float32)


Pairs = list[tuple[str, str, int]]
"""Sentences, their paraphrases, and the numbers of the sentences' texts."""


def synthetic_pairs(texts: Sequence[str], *, seed: int, first_owner: int = 0) -> Pairs:
    """Three variants of every complete sentence of at least five words."""
    rng = np.random.default_rng([seed, 1])
    pairs: Pairs = []
    for owner, text in enumerate(texts, start=first_owner):
        for sentence in dict.fromkeys(_complete_sentences(text)):
            if len(sentence.split()) >= _MIN_WORDS:
                pairs += [(sentence, variant, owner) for variant in _variants(sentence, rng)]
    return pairs


def file_pairs(path: Path) -> Pairs:
    """The matched sentences of a JSONL file's rows that have both ``text`` and ``paraphrase``."""
    pairs: Pairs = []
    if path.suffix != ".jsonl":
        return pairs
    for number, row in storage.read_jsonl(path):
        if "paraphrase" not in row:
            continue
        text, rewrite = row.get("text"), row["paraphrase"]
        if not isinstance(text, str) or not isinstance(rewrite, str):
            raise InputError(f'{path}, line {number}: "text" and "paraphrase" must both be strings')
        matched = _matched(_complete_sentences(text), _complete_sentences(rewrite))
        pairs += [(sentence, paraphrase, number) for sentence, paraphrase in matched]
    return pairs


def _encoded_pairs(job: TrainingJob, texts: Sequence[str]) -> Arrays:
    """The encoder's vectors of all pairs, and the numbers of their sentences and texts."""
    pairs = file_pairs(job.texts.path) if isinstance(job.texts, FileTexts) else []
    if len(pairs) < _ENOUGH_PAIRS:
        pairs += synthetic_pairs(texts, seed=job.seed, first_owner=len(texts))
    if len(pairs) < _MIN_PAIRS:
        raise InputError(f"the texts give {len(pairs)} pairs of sentences, {_MIN_PAIRS} are needed: add some")
    anchors, paraphrases, owners = zip(*pairs, strict=True)
    distinct = list(dict.fromkeys([*anchors, *paraphrases]))
    table = job.encode("embedding sentences", [cut(each) for each in distinct], batch_size=_AT_ONCE)
    index = {sentence: i for i, sentence in enumerate(distinct)}
    labels = np.array([index[sentence] for sentence in anchors])
    return {
        "anchors": table[labels],
        "paraphrases": table[[index[sentence] for sentence in paraphrases]],
        "labels": labels,
        "owners": np.array(owners),
    }


def _variants(sentence: str, rng: np.random.Generator) -> Iterator[str]:
    """Three random variants: fewer words, another order, one half."""
    words = sentence.split()
    kept = rng.random(len(words)) >= rng.uniform(0.1, 0.4)
    yield " ".join(word for word, keep in zip(words, kept, strict=True) if keep) or sentence
    clauses = _CLAUSES.split(sentence)
    if len(clauses) > 1:
        turn = int(rng.integers(1, len(clauses)))
        yield ", ".join(clauses[turn:] + clauses[:turn])
    else:
        swapped = list(words)
        for i in rng.choice(len(words) - 1, size=max(len(words) // 5, 1), replace=False).tolist():
            swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
        yield " ".join(swapped)
    middle = len(words) // 2
    yield " ".join(words[:middle] if rng.random() < 0.5 else words[middle:])


def _matched(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of sentences that share more trigrams with each other than with any other sentence."""
    if not ours or not theirs:
        return
    trigrams = [[_trigrams(sentence) for sentence in side] for side in (ours, theirs)]
    overlap = np.array([[len(a & b) / len(a | b) for b in trigrams[1]] for a in trigrams[0]])
    for i, j in enumerate(overlap.argmax(axis=1).tolist()):
        if overlap[i, j] >= _MIN_OVERLAP and overlap[:, j].argmax() == i:
            yield ours[i], theirs[j]


def _complete_sentences(text: str) -> list[str]:
    return [text[sentence.start : sentence.end] for sentence in sentences(text) if sentence.complete]


def _trigrams(sentence: str) -> set[str]:
    padded = f"  {sentence.lower()} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}


CLUSTERS = 8
_STARTS = 8
_ITERATIONS = 100


def train_clusters(job: TrainingJob) -> Trained:
    """Train the map and cluster the sentences that it was trained on."""
    space = train_space(job)
    vectors = space.vectors()
    if len(vectors) < 10 * CLUSTERS:
        raise InputError(f"the texts have {len(vectors)} sentences, clusters need {10 * CLUSTERS}: add some")
    found = [cosine_k_means(vectors, CLUSTERS, rng(job.seed, start)) for start in range(_STARTS)]
    centroids, cosine = max(found, key=lambda each: each[1])
    sizes = np.bincount((vectors @ centroids.T).argmax(axis=1), minlength=CLUSTERS)
    return Trained(
        parameters={"loss_margin": MARGIN, "clusters": CLUSTERS},
        arrays={"mean": space.mean, "matrix": space.matrix, "centroids": centroids.astype(np.float16)},
        report={**space.report, "centroid_cosine": cosine, "largest_cluster": sizes.max() / len(vectors)},
    )


def cosine_k_means(vectors: F32, k: int, draw: np.random.Generator) -> tuple[F32, float]:
    """Unit rows (N, r) to unit centroids (k, r), and the mean cosine of rows with their nearest centroid."""
    centroids = vectors[[int(draw.integers(len(vectors)))]]
    while len(centroids) < k:
        distance = np.maximum(1.0 - (vectors @ centroids.T).max(axis=1).astype(np.float64), 1e-9)
        chosen = int(draw.choice(len(vectors), p=distance / distance.sum()))
        centroids = np.concatenate((centroids, vectors[[chosen]]))
    labels = np.full(len(vectors), -1)
    for _ in range(_ITERATIONS):
        nearest = (vectors @ centroids.T).argmax(axis=1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        sums = np.zeros_like(centroids)
        np.add.at(sums, labels, vectors)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        # an empty cluster keeps its centroid
        centroids = np.where(norms > 0.0, sums / np.maximum(norms, 1e-12), centroids).astype(np.float32)
    return centroids, float((vectors @ centroids.T).max(axis=1).mean())
