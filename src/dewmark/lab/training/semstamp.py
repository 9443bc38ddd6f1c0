"""Training of SemStamp: a linear map on a frozen encoder, so that paraphrases fall into one bin.

SemStamp fine-tunes the encoder itself. Here the encoder stays as it is and a matrix A (d, r) of a few hundred
kilobytes on top of it is trained with the same loss: for a sentence s, a paraphrase t and another sentence n

    L = max(0, 0.8 − cos(s, t) + cos(s, n))

after v = (M_C(·) − μ) A. Half of the n come from the same text as s. Sentences of one text share its subject;
a space in which that draws them together puts all of a text's sentences into one or two bins, and a draft in
an accepted bin becomes rare. A starts as the whitening of the first r principal directions.

Pairs of sentences that mean about the same, to train a space of sentences on.

Where nothing better is at hand a paraphrase is made from the sentence itself: words left out, neighbours
swapped, clauses in another order, one half alone. A file of rewrites, JSONL with ``text`` and ``paraphrase``,
adds real ones: sentences of the two are matched by the letters they share, and only where each is the other's
best match.

Boundary: text in, text out; one seed decides everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cosine_similarity

from dewmark import storage
from dewmark.arrays import F32, I64
from dewmark.baselines.sentence.sentence_space import adapt, encode
from dewmark.errors import InputError
from dewmark.lab.training.job import Arrays, FileTexts, Job, Trained
from dewmark.lab.training.loop import TorchLearner, device_of, rng, run_steps
from dewmark.text.sentences import sentences

__all__ = ["Pairs", "Space", "given_pairs", "made_pairs", "train", "train_space"]

LEAST_WORDS = 5

_VARIANTS = 3  # made of each sentence

_LEAST_OVERLAP = 0.15

_CLAUSES = re.compile(r"[,;:–—]\s+")


@dataclass
class Pairs:
    """Sentences and their paraphrases; ``owners`` number the texts that the sentences stand in."""

    sentences: list[str] = field(default_factory=list)
    paraphrases: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    def add(self, sentence: str, paraphrase: str, owner: int) -> None:
        """Append one pair."""
        self.sentences.append(sentence)
        self.paraphrases.append(paraphrase)
        self.owners.append(owner)

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(
            self.sentences + other.sentences,
            self.paraphrases + other.paraphrases,
            self.owners + other.owners,
        )

    def __len__(self) -> int:
        return len(self.sentences)


def made_pairs(texts: Sequence[str], *, seed: int) -> Pairs:
    """Three variants of every whole sentence of at least five words."""
    rng = np.random.default_rng([seed, 1])
    pairs = Pairs()
    for owner, text in enumerate(texts):
        for sentence in dict.fromkeys(_whole(text)):
            if len(sentence.split()) >= LEAST_WORDS:
                for variant in _variants(sentence, rng):
                    pairs.add(sentence, variant, owner)
    return pairs


def given_pairs(path: Path, *, first_owner: int = 0) -> Pairs:
    """The sentence pairs of a JSONL file's rows that have a ``paraphrase`` beside their ``text``."""
    pairs = Pairs()
    if path.suffix != ".jsonl":
        return pairs
    for number, row in storage.read_jsonl(path):
        if "paraphrase" not in row:
            continue
        text, rewrite = row.get("text"), row["paraphrase"]
        if not isinstance(text, str) or not isinstance(rewrite, str):
            raise InputError(f'{path}, line {number}: "text" and "paraphrase" must both be text')
        for sentence, paraphrase in _matched(_whole(text), _whole(rewrite)):
            pairs.add(sentence, paraphrase, first_owner + number)
    return pairs


def _variants(sentence: str, rng: np.random.Generator) -> Iterator[str]:
    """Another choice of three kinds each time: fewer words, other order, half of it."""
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
    """Pairs of sentences that share more three-letter pieces with each other than with any other."""
    if not ours or not theirs:
        return
    pieces = [[_pieces(sentence) for sentence in side] for side in (ours, theirs)]
    overlap = np.array([[len(a & b) / len(a | b) for b in pieces[1]] for a in pieces[0]])
    for i, j in enumerate(overlap.argmax(axis=1).tolist()):
        if overlap[i, j] >= _LEAST_OVERLAP and overlap[:, j].argmax() == i:
            yield ours[i], theirs[j]


def _whole(text: str) -> list[str]:
    return [text[sentence.start : sentence.end] for sentence in sentences(text) if sentence.complete]


def _pieces(sentence: str) -> set[str]:
    padded = f"  {sentence.lower()} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}


TEXTS = 320

STEPS = 800

WIDTH = 128

MARGIN = 0.8

_BATCH = 256

_RATE = 1e-3

_LEAST_PAIRS = 60


@dataclass(frozen=True)
class Space:
    """A trained space: ``mean`` (d,), ``matrix`` (d, r) as they are stored, and what they were trained on.

    ``sentences`` (N, d) are the encoder's vectors of the distinct sentences.
    """

    mean: NDArray[np.float16]
    matrix: NDArray[np.float16]
    sentences: F32
    report: dict[str, float]

    def vectors(self) -> F32:
        """The sentences in the trained space, unit rows (N, r)."""
        return adapt(self.sentences, self.mean.astype(np.float32), self.matrix.astype(np.float32))


def train(job: Job) -> Trained:
    """Train the map."""
    space = train_space(job)
    return Trained(
        parameters={"loss_margin": MARGIN},
        arrays={"mean": space.mean, "matrix": space.matrix},
        report=space.report,
    )


def train_space(job: Job) -> Space:
    """Train the map, and give it with what it was trained on."""
    texts = job.texts_for(1 if isinstance(job.texts, FileTexts) else TEXTS)
    kept = job.keep("pairs", lambda: _embedded(job, texts))
    anchors, paraphrases = (np.asarray(kept[name], np.float32) for name in ("anchors", "paraphrases"))
    labels, owners = (np.asarray(kept[name], np.int64) for name in ("labels", "owners"))
    sentences = anchors[np.unique(labels, return_index=True)[1]]
    mean = sentences.mean(axis=0)
    learner = Ranking(
        job,
        anchors - mean,
        paraphrases - mean,
        labels=labels,
        owners=owners,
        start=_whitening(sentences - mean),
    )
    loss = run_steps(learner, job, steps=job.steps or STEPS)
    report = {"loss": loss, "pairs": len(anchors), "sentences": len(sentences)}
    return Space(mean.astype(np.float16), learner.matrix().astype(np.float16), sentences, report)


def _embedded(job: Job, texts: Sequence[str]) -> Arrays:
    """The encoder's vectors of all pairs, with the numbers of the texts and sentences they belong to."""
    pairs = made_pairs(texts, seed=job.seed)
    if isinstance(job.texts, FileTexts):
        pairs += given_pairs(job.texts.path, first_owner=len(texts))
    if len(pairs) < _LEAST_PAIRS:
        raise InputError(
            f"the texts give {len(pairs)} pairs of sentences and {_LEAST_PAIRS} are needed: add more text"
        )
    distinct = list(dict.fromkeys([*pairs.sentences, *pairs.paraphrases]))
    vectors = []
    for start in range(0, len(distinct), 512):
        job.progress("embedding sentences", start, len(distinct))
        vectors.append(encode(job.encoder, distinct[start : start + 512]))
    job.progress("embedding sentences", len(distinct), len(distinct))
    table = np.concatenate(vectors)
    place = {sentence: i for i, sentence in enumerate(distinct)}
    labels = np.array([place[sentence] for sentence in pairs.sentences])
    return {
        "anchors": table[labels],
        "paraphrases": table[[place[sentence] for sentence in pairs.paraphrases]],
        "labels": labels,
        "owners": np.array(pairs.owners),
    }


def _whitening(centred: F32) -> F32:
    """The r strongest directions of rows (N, d), scaled towards equal variance: (d, r)."""
    variances, directions = np.linalg.eigh(centred.T.astype(np.float64) @ centred / len(centred))
    width = min(WIDTH, centred.shape[1])
    strong, basis = variances[::-1][:width], directions[:, ::-1][:, :width]
    # weak directions are noise as much as meaning: the variance's fourth root, not its square root
    return np.asarray(basis / np.maximum(strong, 1e-8) ** 0.25, dtype=np.float32)


class Ranking(TorchLearner):
    """The margin ranking loss over centred pairs (P, d).

    ``labels`` (P,) number the pairs' sentences, ``owners`` (P,) their texts.
    """

    def __init__(
        self, job: Job, anchors: F32, paraphrases: F32, *, labels: I64, owners: I64, start: F32
    ) -> None:
        device = device_of(job)
        self._map = torch.nn.Linear(start.shape[0], start.shape[1], bias=False)
        self._map.weight.data = torch.from_numpy(start.T.copy())
        self._map.to(device)
        self._adam = torch.optim.Adam(self._map.parameters(), lr=_RATE)
        super().__init__({"map": self._map}, {"adam": self._adam})
        self._anchors = torch.from_numpy(anchors).to(device)
        self._paraphrases = torch.from_numpy(paraphrases).to(device)
        self._seed = job.seed
        self._labels = labels
        self._by_text = np.argsort(owners, kind="stable")
        ordered = owners[self._by_text]
        self._first = np.searchsorted(ordered, owners)
        self._beyond = np.searchsorted(ordered, owners, side="right")

    def step(self, index: int) -> float:
        """One batch of pairs, each against a sentence of any text and one of its own."""
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
        loss = torch.cat(losses).mean()
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        return float(loss.detach())

    def matrix(self) -> F32:
        """A, (d, r)."""
        return np.asarray(self._map.weight.detach().cpu().numpy().T, dtype=np.float32)
