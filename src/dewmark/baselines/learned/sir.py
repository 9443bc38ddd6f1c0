"""SIR: a semantic invariant robust watermark (Liu et al. 2024).

The text so far, up to its last whole chunk of ten words, is embedded; a small trained network turns the
embedding into signs, alike for texts that mean alike and independent for others; and each token's logit goes
up or down by δ, after the sign at the place that the key gave the token. A paraphrase keeps the meaning of
what comes before, so it keeps the signs, and words that it keeps still tell.

The context of a token in SIR: the whole chunks of words that stand before it.

A word is a run of characters without spaces; in scripts that write none, one character. What stands before
a token ends in a word that may still grow, so that one does not count yet: with n words begun before it, a
token has ⌊(n − 1)/c⌋ whole chunks of c words behind it, and its context is the last few of them. Spaces are
not looked at, so it does not matter whether they belong to the token before or after. Marking counts the
words of a text that grows (`GrowingWords`), scoring those of a finished one (`chunks_before`): both agree.

Boundary: text only.

SIR's transform: the meaning of a context becomes K signs, one for each part of the vocabulary.

With e the centred unit embedding of the context, the network

    h = e W + b,    h ← h + relu(h W₁ + b₁),    h ← h + relu(h W₂ + b₂),    T = h V + c

has d_C inputs, 500 hidden units and K = 300 outputs; the signs are those of T − mean(T). (The original takes
tanh(1000 (T − mean)), which is the sign of all but one output in thousands: training keeps them off zero.)

Boundary: numpy in float64 on the CPU, so marking and scoring get the same signs; no key enters.
`dewmark.lab.training.sir` trains the same network.

How SIR and X-SIR mark: each row's bias over the vocabulary stays until ten more words are whole.

A row's text is read piece by piece as the host writes it, the prompt included; rows whose context has changed
are encoded together.

SIR and X-SIR with a key: scores, their law over keys, verdicts, and what a detector stores.

The key gives every label x (a token, or a cluster of tokens) a place π(x) among the K outputs of the network
and a sign σ(x), uniform and independent. After a context with signs t a token with label x scores

    s = σ(x) t[π(x)] ∈ {−1, 1},

and marking adds δ s to its logit. The text fixes all t; over keys scores have mean 0, labels are
independent, and the same label after two contexts has covariance ⟨t, t'⟩/K. That is all that the tests need.

A label that recurs under a context that means the same tells nothing new. So a pair (context, label) counts
once, with the weight 1 / Σ_j max(0, ρ_ij) over all pairs of its label, ρ_ii = 1: ten times "the" in one topic
weigh about as much as one. Weights depend on the text alone.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I8, I64
from dewmark.artifacts import Artifact, load_artifact
from dewmark.baselines.learned.atw import context_rows, exact_tail
from dewmark.baselines.token_schemes import TokenBound, TokenScheme, TokenSession, check, stored_secret
from dewmark.encoders import load_encoder
from dewmark.encoders.base import Encoder
from dewmark.errors import ArtifactError, VocabularyError
from dewmark.scheme import Needs, Session, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.text.growing_text import Spelling
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = [
    "HIDDEN",
    "LAYERS",
    "OUTPUTS",
    "SIR",
    "BoundSIR",
    "ChunkSession",
    "GrowingWords",
    "InvariantScheme",
    "Transform",
    "chunks_before",
    "context_of",
    "open_transform",
    "words_of",
]


# Thai, Lao, Burmese, Khmer, kana and Han put no spaces between words.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"

_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return _WORD.findall(text)


def context_of(words: Sequence[str], chunks: int, *, size: int, reach: int) -> str:
    """The text of the last ``reach`` of the first ``chunks`` chunks of ``size`` words each."""
    end = chunks * size
    return " ".join(words[max(end - reach * size, 0) : end])


def chunks_before(text: str, starts: Sequence[int], *, size: int) -> tuple[list[str], I64]:
    """The words of a text, and for tokens that start at these characters, how many chunks are whole."""
    found = list(_WORD.finditer(text))
    begun = np.searchsorted([match.start() for match in found], np.asarray(starts, dtype=np.int64))
    return [match.group() for match in found], np.maximum(begun - 1, 0) // size


class GrowingWords:
    """The words of a text that is written piece by piece."""

    def __init__(self) -> None:
        self._whole: list[str] = []
        self._tail = ""  # from the last word on, which may still grow

    def append(self, piece: str) -> None:
        """The text goes on with ``piece``."""
        self._tail += piece
        found = list(_WORD.finditer(self._tail))
        if found:
            self._whole += [match.group() for match in found[:-1]]
            self._tail = self._tail[found[-1].start() :]

    def chunks(self, size: int) -> int:
        """How many chunks are whole."""
        return len(self._whole) // size

    def context(self, *, size: int, reach: int) -> str:
        """The context of the next token."""
        return context_of(self._whole, self.chunks(size), size=size, reach=reach)


HIDDEN, OUTPUTS = 500, 300

LAYERS = ("input", "first", "second", "output")

_REMEMBERED = 50_000  # contexts: 15 MB

_KEPT_OPEN = 4


class Transform:
    """An encoder and a trained network. It remembers the signs of contexts, under a hash of their text."""

    def __init__(self, encoder: Encoder, arrays: Mapping[str, NDArray[Any]]) -> None:
        try:
            named = ("mean", *(f"{name}.{part}" for name in LAYERS for part in "Wb"))
            self.arrays = {name: arrays[name] for name in named}
        except KeyError as missing:
            raise ArtifactError(f"the transform network lacks {missing}: train or export it again") from None
        self.encoder = encoder
        self._layers = [
            tuple(np.asarray(self.arrays[f"{name}.{part}"], dtype=np.float64) for part in "Wb")
            for name in LAYERS
        ]
        self._known: dict[bytes, I8] = {}

    @property
    def outputs(self) -> int:
        """K."""
        return len(self._layers[-1][1])

    def signs(self, contexts: Sequence[str]) -> I8:
        """Contexts (N) to signs (N, K), each −1 or 1; those that are new are encoded at once."""
        names = [hashlib.blake2b(context.encode(), digest_size=16).digest() for context in contexts]
        new = {
            name: context for name, context in zip(names, contexts, strict=True) if name not in self._known
        }
        found = {name: self._known[name] for name in names if name not in new}
        if new:
            rows = self.of_vectors(np.asarray(self.encoder.encode(list(new.values())), dtype=np.float64))
            found.update(zip(new, rows, strict=True))
            if len(self._known) + len(new) > _REMEMBERED:
                self._known = {}
            self._known.update((name, found[name]) for name in new)
        return np.stack([found[name] for name in names]) if names else np.zeros((0, self.outputs), np.int8)

    def of_vectors(self, vectors: F64) -> I8:
        """Embeddings (N, d_C), of any length but 0, to signs (N, K)."""
        (W, b), *residual, (V, c) = self._layers
        h = _unit(_unit(vectors) - self.arrays["mean"].astype(np.float64)) @ W + b
        for W, b in residual:
            h = h + np.maximum(h @ W + b, 0.0)
        T = h @ V + c
        above = T - T.mean(axis=1, keepdims=True) >= 0.0
        return np.where(above, 1, -1).astype(np.int8)


def _unit(rows: F64) -> F64:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


_OPEN: dict[tuple[str, str], Transform] = {}


def open_transform(encoder: Encoder, identity: str, arrays: Mapping[str, NDArray[Any]]) -> Transform:
    """The transform of the artifact with this identity; all keys of a process share it and what it knows."""
    name = (encoder.identity, identity)
    if name not in _OPEN:
        while len(_OPEN) >= _KEPT_OPEN:
            del _OPEN[next(iter(_OPEN))]
        _OPEN[name] = Transform(encoder, arrays)
    return _OPEN[name]


_UNDECODED = "\N{REPLACEMENT CHARACTER}"

_UTF8 = 4  # bytes that a character has at most


class ChunkSession(TokenSession):
    """Keeps each row's words and its bias (vocab,), 0 before its first whole chunk."""

    def __init__(
        self, bound: BoundSIR, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._bound = bound
        self._rows = [_Row(bound) for _ in range(len(prompt_ids))]
        self._read = 0  # ids of each row that were read
        self._bias = torch.zeros((len(prompt_ids), bound.host.vocab_size))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        self._ids = input_ids
        return super().__call__(input_ids, scores)

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ s added to every token that stands for text."""
        self._bias = self._bias.to(scores)
        self._follow()
        return scores + self._bias

    def _follow(self) -> None:
        """Read the ids that are new, and renew the bias of rows whose context is another one now."""
        fresh = self._ids[:, self._read :].tolist()
        padding = [0] * len(self._rows)
        if self._read == 0:
            padding = self._padding.flatten().tolist()
        self._read = self._ids.shape[1]
        changed = [
            i
            for i, (row, ids, skip) in enumerate(zip(self._rows, fresh, padding, strict=True))
            if row.push(ids[skip:])
        ]
        if not changed:
            return
        bound = self._bound
        signs = bound.transform.signs([self._rows[i].context() for i in changed])
        bias = bound.scheme.delta * torch.from_numpy(signs[:, bound.places] * bound.flips).to(self._bias)
        self._bias[changed] = bias * self._markable


class _Row:
    """One text that grows token by token; special tokens are no text."""

    def __init__(self, bound: BoundSIR) -> None:
        self._spelling = bound.spelling
        self._scheme = bound.scheme
        self._words = GrowingWords()
        self._pending: list[int] = []  # bytes of one character wait for each other

    def push(self, ids: Sequence[int]) -> bool:
        """The text goes on; says whether the context of the next token is a new one."""
        before = self._words.chunks(self._scheme.chunk)
        for token in ids:
            self._words.append(self._text(token))
        return self._words.chunks(self._scheme.chunk) > before

    def context(self) -> str:
        """The context of the next token."""
        return self._words.context(size=self._scheme.chunk, reach=self._scheme.reach)

    def _text(self, token: int) -> str:
        piece = self._spelling.pieces[token]
        if not self._pending and _UNDECODED not in piece:
            return piece
        self._pending.append(token)
        piece = self._spelling.decode([self._pending])[0]
        if piece.endswith(_UNDECODED) and len(self._pending) < _UTF8:
            return ""
        self._pending = []
        return piece


_GRID = 8  # weights are rounded to eighths for the exact law

_EXACT_LIMIT = 1000.0  # of the sum of weights; beyond, the normal law is as good


@dataclass(frozen=True)
class InvariantScheme(TokenScheme):
    """What SIR and X-SIR share; defaults after the paper's comparison."""

    artifact: str | None = None
    """Folder of the trained artifact; by default the one that comes with the package."""
    delta: float = 1.0
    """What is added to a logit or taken from it, δ."""
    chunk: int = 10
    """After how many words the meaning of the text so far is taken anew."""
    reach: int = 20
    """How many chunks back the text so far reaches."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (self.delta > 0.0, "delta", "be positive", self.delta),
            (self.chunk >= 1, "chunk", "be at least 1", self.chunk),
            (self.reach >= 1, "reach", "be at least 1", self.reach),
        )

    @abstractmethod
    def labels(self, arrays: dict[str, NDArray[Any]], host: HostInfo) -> I64:
        """The label of every id, (vocab,), from the arrays of an artifact or a stored detector."""

    def require(self, artifact: Artifact, host: HostInfo) -> None:
        """Refuse an artifact that was not made for this host."""

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSIR:
        """The scheme with a secret, a vocabulary and its artifact."""
        artifact = load_artifact(self.artifact, scheme=self.name)
        self.require(artifact, host)
        encoder = load_encoder(artifact.encoder, progress=workspace.progress)
        artifact.require_encoder(encoder.identity, name=encoder.name)
        arrays = dict(artifact.arrays)
        transform = open_transform(encoder, artifact.identity, arrays)
        return BoundSIR(
            self,
            host,
            fingerprint,
            secret=secret,
            transform=transform,
            labels=self.labels(arrays, host),
            artifact=artifact.identity,
        )

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSIR:
        """Take secret, network and labels from a stored detector; the encoder is loaded by its name."""
        try:
            name, identity = str(state.meta["encoder"]), str(state.meta["encoder_identity"])
            artifact, arrays = str(state.meta["artifact"]), dict(state.arrays)
            labels = np.asarray(arrays["labels"], dtype=np.int64)
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        encoder = load_encoder(name, progress=workspace.progress)
        if encoder.identity != identity:
            raise ArtifactError(
                f"the encoder {name} is not the one the detector was made with: export it again"
            )
        return BoundSIR(
            self,
            host,
            fingerprint,
            secret=stored_secret(state),
            transform=open_transform(encoder, artifact, arrays),
            labels=labels,
            artifact=artifact,
        )


class BoundSIR(TokenBound):
    """SIR or X-SIR for one key and one vocabulary."""

    tests = ("exact", "key")
    scheme: InvariantScheme
    width = 0

    def __init__(
        self,
        scheme: InvariantScheme,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        transform: Transform,
        labels: I64,
        artifact: str,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        if len(labels) != host.vocab_size:
            raise VocabularyError(f"there are labels of {len(labels)} ids, {host.name} has {host.vocab_size}")
        self.transform = transform
        self.labels = labels
        self.artifact_identity = artifact
        number = int(labels.max(initial=0)) + 1
        words = self.hash.table("places", number).astype(np.uint64)
        places = ((words * np.uint64(transform.outputs)) >> np.uint64(32)).astype(np.int64)
        signs = np.where(self.hash.table("signs", number) >> np.uint32(31), 1, -1).astype(np.int8)
        self.places, self.flips = places[labels], signs[labels]

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        return ChunkSession(self, prompt_ids, attention_mask)

    @functools.cached_property
    def spelling(self) -> Spelling:
        """The text of every token, for sessions that read along."""
        return Spelling(self.host.tokenizer, self.host.vocab_size)

    def pair_scores(self, contexts: I8 | I64, tokens: I64) -> F64:
        """Contexts as signs (N, K) and tokens (N,) to scores ±1, (N,)."""
        chosen = contexts[np.arange(len(tokens)), self.places[tokens]]
        return (chosen * self.flips[tokens]).astype(np.float64)

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The scores of texts' distinct (context, label) pairs; all contexts are encoded at once."""
        size, reach = self.scheme.chunk, self.scheme.reach
        read = []
        contexts: dict[str, int] = {}
        for text, prompt in zip(texts, prompts, strict=True):
            at = len(prompt.text)
            starts = [at + start for start, _ in text.offsets]
            words, chunks = chunks_before(prompt.text + text.text, starts, size=size)
            known = {
                count: contexts.setdefault(context_of(words, count, size=size, reach=reach), len(contexts))
                for count in np.unique(chunks[chunks > 0]).tolist()
            }
            read.append(np.array([known.get(count, -1) for count in chunks.tolist()], dtype=np.int64))
        signs = self.transform.signs(list(contexts))
        return [self._evidence(text, which, signs) for text, which in zip(texts, read, strict=True)]

    def _evidence(self, text: Tokenized, which: I64, signs: I8) -> Evidence:
        """Evidence of one text whose tokens have the contexts ``which`` (L,), −1 for none."""
        tokens = np.array(text.ids, dtype=np.int64)
        scored = np.append(self.markable, False)[np.minimum(tokens, len(self.markable))] & (which >= 0)
        rows = np.column_stack((which[scored], self.labels[tokens[scored]]))
        distinct, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        positions = np.full(len(tokens), -1, dtype=np.int64)
        positions[scored] = inverse
        mine = signs[distinct[:, 0]]
        scores = self.pair_scores(mine, tokens[scored][first])
        return Evidence(
            scores=scores,
            alignments=scores,
            weights=_weights(distinct[:, 0], distinct[:, 1], signs),
            positions=positions,
            T=distinct[:, 1],
            C=context_rows(mine),
            kernel=(1.0,),
        )

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``exact``: the law of the weighted sum over keys; ``key``: its normal approximation."""
        normal = key_test(evidence)
        if test == "key" or not 0.0 < evidence.weights.sum() <= _EXACT_LIMIT:
            return normal
        on_grid = dataclasses.replace(evidence, weights=np.maximum(np.rint(_GRID * evidence.weights), 1.0))
        return Statistic(normal.z, exact_tail(on_grid), normal.effective_length)

    def state(self) -> State:
        """The secret, the network and the labels. As secret as the key."""
        encoder = self.transform.encoder
        meta = {
            "encoder": encoder.name,
            "encoder_identity": encoder.identity,
            "artifact": self.artifact_identity,
        }
        return State(
            meta=meta, arrays={**super().state().arrays, **self.transform.arrays, "labels": self.labels}
        )


def _weights(contexts: I64, labels: I64, signs: I8) -> F64:
    """1 / Σ_j max(0, ρ_ij) over the pairs j of i's label: contexts and labels (N,) to (N,)."""
    rows, which = np.unique(contexts, return_inverse=True)
    mine = signs[rows].astype(np.float32)
    similar = np.maximum(mine @ mine.T / signs.shape[1], 0.0)
    weights = np.ones(len(labels))
    order = np.argsort(labels, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        if len(members) > 1:
            here = which[members]
            weights[members] = 1.0 / similar[np.ix_(here, here)].sum(axis=1)
    return weights


@dataclass(frozen=True)
class SIR(InvariantScheme):
    """The semantic invariant watermark."""

    name: ClassVar[str] = "sir"
    summary: ClassVar[str] = "a trained network turns the meaning of the text so far into token biases"
    needs: ClassVar[Needs] = Needs(encoder=True, artifact=True)

    def labels(self, arrays: dict[str, NDArray[Any]], host: HostInfo) -> I64:
        """Every id has a label of its own."""
        return np.arange(host.vocab_size)
