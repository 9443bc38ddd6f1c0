"""SIR and X-SIR: a trained network turns the meaning of the text so far into a bias for every token.

SIR: Liu et al. 2024, A Semantic Invariant Robust Watermark. X-SIR: He et al. 2024, Can Watermarks Survive
Translation?, where words that translate each other share one label. docs/schemes/sir.md has the equations.

**The context** of a token. A word is a run of characters without spaces; in scripts that write none, a
single character. The text before a token ends in a word that may still grow, so that word does not count
yet: with n words begun before it, a token has ⌊(n − 1)/c⌋ whole chunks of c words behind it, and its context
is the last few of them. Marking counts the words of a growing text (`GrowingWords`), detection those of a
finished one (`chunks_before`), with the same result.

**The network.** With e the centred unit embedding of the context,

    h = e W + b,    h ← h + relu(h W₁ + b₁),    h ← h + relu(h W₂ + b₂),    T = h V + c,

and the signs are those of T − mean(T). It runs in float64 on the CPU, so that marking and detection get the
same signs.

**The test.** Scores s = σ(x) t[π(x)] have the distribution of `keyed_signs`. A label that recurs in a
context of the same meaning adds nothing new, so a pair (context, label) counts once, with the weight 1 / Σ_j
max(0, ρ_ij) over all pairs of its label, where ρ_ii = 1. The weights depend on the text alone.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I8, I64
from dewmark.encoders.base import Encoder
from dewmark.errors import ArtifactError, VocabularyError
from dewmark.mark import Session
from dewmark.sampling import check_logits, left_padding
from dewmark.scheme import Needs, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.text.spelling import Spelling
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import HostInfo, Texts, Tokenized, Workspace
from dewmark_lab.artifacts import Artifact, load_artifact, named_encoder, stored_encoder
from dewmark_lab.schemes.learned.keyed_signs import (
    LAYER_ARRAYS,
    apply_layers,
    context_rows,
    exact_tail,
    keyed_places,
    keyed_signs,
    read_layers,
)
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenBound, TokenScheme, secret_of

HIDDEN, OUTPUTS = 500, 300

_GRID = 8  # weights are rounded to eighths for the exact distribution
_EXACT_LIMIT = 1000.0  # of the sum of weights; beyond, the normal approximation is as good
_CACHED_CONTEXTS = 50_000  # 15 MB
_OPEN_TRANSFORMS = 4

# Thai, Lao, Burmese, Khmer, kana and Han put no spaces between words.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_UNDECODED = "\N{REPLACEMENT CHARACTER}"
_UTF8 = 4  # most bytes of a character

_transforms: dict[tuple[str, str], Transform] = {}


@dataclass(frozen=True)
class _SemanticScheme(TokenScheme):
    """The parameters of SIR and X-SIR; defaults after the paper's comparison."""

    needs: ClassVar[Needs] = Needs(encoder=True, artifact=True)

    artifact: str | None = None
    """Folder of the trained artifact; by default the one that comes with the package."""
    delta: Annotated[float, "positive"] = 1.0
    """Bias δ added to a logit or subtracted from it."""
    chunk: Annotated[int, "at least 1"] = 10
    """Number of words after which the meaning of the text so far is computed anew."""
    reach: Annotated[int, "at least 1"] = 20
    """Number of chunks that the context reaches back."""

    @abstractmethod
    def labels(self, artifact: Artifact, host: HostInfo) -> I64:
        """The label of every id, (vocab,)."""

    def bind_secret(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSIR:
        artifact = load_artifact(self.artifact, scheme=self.name)
        labels, name = self.labels(artifact, host), artifact.identity
        transform = open_transform(artifact.open_encoder(workspace), name, artifact.arrays)
        return BoundSIR(
            self, host, fingerprint, secret=secret, transform=transform, labels=labels, artifact=name
        )

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSIR:
        secret, name = secret_of(state), str(state.meta["artifact"])
        transform = open_transform(stored_encoder(state, workspace), name, state.arrays)
        labels = np.asarray(state.arrays["labels"], dtype=np.int64)
        return BoundSIR(
            self, host, fingerprint, secret=secret, transform=transform, labels=labels, artifact=name
        )


@dataclass(frozen=True)
class SIR(_SemanticScheme):
    """The semantic invariant watermark."""

    name: ClassVar[str] = "sir"
    summary: ClassVar[str] = "a trained network turns the meaning of the text so far into token biases"

    def labels(self, artifact: Artifact, host: HostInfo) -> I64:
        return np.arange(host.vocab_size)


@dataclass(frozen=True)
class XSIR(_SemanticScheme):
    """The cross-lingual semantic invariant watermark."""

    name: ClassVar[str] = "xsir"
    summary: ClassVar[str] = "SIR with one bias for each cluster of words that translate each other"

    def labels(self, artifact: Artifact, host: HostInfo) -> I64:
        """An id's label is its cluster; clusters belong to one tokenizer."""
        artifact.require_tokenizer(host)
        if "labels" not in artifact.arrays:
            raise ArtifactError("the artifact of xsir holds no clusters: train it again")
        return np.asarray(artifact.arrays["labels"], dtype=np.int64)


class BoundSIR(TokenBound):
    """SIR or X-SIR for one key and one vocabulary."""

    tests = ("exact", "key", "mean")
    scheme: _SemanticScheme
    width = 0

    def __init__(
        self,
        scheme: _SemanticScheme,
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
            raise VocabularyError(f"the artifact has {len(labels)} labels, {host.name} {host.vocab_size} ids")
        self.transform = transform
        self.labels = labels
        self.artifact_identity = artifact
        count = int(labels.max(initial=0)) + 1
        self.places = keyed_places(self.pair_hash, count, transform.outputs)[labels]
        self.flips = keyed_signs(self.pair_hash, "signs", count)[labels]

    def start_session(self, prompts: PromptBatch) -> Session:
        return ChunkSession(prompts, self)

    @functools.cached_property
    def token_texts(self) -> Spelling:
        """The text of every token, for sessions that follow the text."""
        return Spelling(self.host.tokenizer, self.host.vocab_size)

    def pair_scores(self, contexts: I8 | I64, tokens: I64) -> F64:
        """Contexts as signs (N, K) and tokens (N,) to scores ±1, (N,)."""
        chosen = contexts[np.arange(len(tokens)), self.places[tokens]]
        return (chosen * self.flips[tokens]).astype(np.float64)

    def _read(self, texts: Texts, prompts: Texts) -> list[Evidence]:
        """The scores of the texts' distinct (context, label) pairs; all contexts are encoded in one call."""
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
        scored = self.scorable(tokens) & (which >= 0)
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

    def evidence_of(self, texts: Texts, prompts: Texts, test: str | None) -> list[Evidence]:
        """The same pairs for all tests; ``mean`` weights each by its number of occurrences."""
        found = self._read(texts, prompts)
        if test != "mean":
            return found
        return [
            dataclasses.replace(
                each,
                weights=np.bincount(each.positions[each.positions >= 0], minlength=len(each)).astype(float),
            )
            for each in found
        ]

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``exact``: the distribution of the weighted sum over keys; ``key``: its normal approximation.

        ``mean`` ranks texts by the authors' statistic, the mean bias of all tokens, and reports it as z; its
        p-value is the exact distribution of that mean over keys.
        """
        normal = key_test(evidence)
        if test == "mean" and len(evidence):
            short = evidence.length <= _EXACT_LIMIT
            p_value = exact_tail(evidence) if short else normal.p_value
            return Statistic(self._mean_score(evidence), p_value, normal.effective_length)
        if test == "key" or not 0.0 < evidence.weights.sum() <= _EXACT_LIMIT:
            return normal
        on_grid = dataclasses.replace(evidence, weights=np.maximum(np.rint(_GRID * evidence.weights), 1.0))
        return Statistic(normal.z, exact_tail(on_grid), normal.effective_length)

    def state(self) -> State:
        meta = {**named_encoder(self.transform.encoder), "artifact": self.artifact_identity}
        own = {**self.transform.arrays, "labels": self.labels}
        return State(meta=meta, arrays={**super().state().arrays, **own})


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


class Transform:
    """An encoder and a trained network. It caches the signs of contexts under a hash of their text."""

    def __init__(self, encoder: Encoder, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._layers = read_layers(arrays, np.float64)
        self.arrays = {name: arrays[name] for name in ("mean", *LAYER_ARRAYS)}
        self.encoder = encoder
        self._known: dict[bytes, I8] = {}

    @property
    def outputs(self) -> int:
        """K."""
        return len(self._layers[-1][1])

    def signs(self, contexts: Sequence[str]) -> I8:
        """Contexts (N) to signs (N, K), each −1 or 1; new contexts are encoded in one call."""
        names = [hashlib.blake2b(context.encode(), digest_size=16).digest() for context in contexts]
        pairs = zip(names, contexts, strict=True)
        new = {name: context for name, context in pairs if name not in self._known}
        found = {name: self._known[name] for name in names if name not in new}
        if new:
            rows = self.of_vectors(np.asarray(self.encoder.encode(list(new.values())), dtype=np.float64))
            found.update(zip(new, rows, strict=True))
            if len(self._known) + len(new) > _CACHED_CONTEXTS:
                self._known = {}
            self._known.update((name, found[name]) for name in new)
        return np.stack([found[name] for name in names]) if names else np.zeros((0, self.outputs), np.int8)

    def of_vectors(self, vectors: F64) -> I8:
        """Embeddings (N, d_C), of any length but 0, to signs (N, K)."""
        centred = _unit(_unit(vectors) - self.arrays["mean"].astype(np.float64))
        T = apply_layers(self._layers, centred, rectified=False)
        above = T - T.mean(axis=1, keepdims=True) >= 0.0
        return np.where(above, 1, -1).astype(np.int8)


def _unit(rows: F64) -> F64:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def open_transform(encoder: Encoder, identity: str, arrays: Mapping[str, NDArray[Any]]) -> Transform:
    """The transform of the artifact with this identity; all keys in a process share it and its cache."""
    name = (encoder.identity, identity)
    if name not in _transforms:
        while len(_transforms) >= _OPEN_TRANSFORMS:
            del _transforms[next(iter(_transforms))]
        _transforms[name] = Transform(encoder, arrays)
    return _transforms[name]


class ChunkSession(Session):
    """Keeps each row's words and its bias (vocab,), which is 0 before the row's first whole chunk.

    A row's text, prompt included, is read token by token. The bias changes when another chunk of words is
    whole; rows whose context has changed are encoded together.
    """

    def __init__(self, prompts: PromptBatch, bound: BoundSIR) -> None:
        host, scheme = prompts.host, bound.scheme
        self._delta = scheme.delta
        self._transform = bound.transform
        self._places, self._flips = bound.places, bound.flips
        self._markable = torch.from_numpy(host.markable)
        self._padding = left_padding(prompts.ids, prompts.attention_mask, pad_id=host.tokenizer.pad_id)
        size = {"size": scheme.chunk, "reach": scheme.reach}
        self._rows = [_Row(bound.token_texts, **size) for _ in range(len(prompts))]
        self._read = 0  # number of ids of each row that were read
        self._bias = torch.zeros((len(prompts), host.vocab_size))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ s added for every token that stands for text."""
        check_logits(scores, self._bias.shape[1])
        self._bias = self._bias.to(scores)
        self._follow(input_ids)
        return scores + self._bias

    def _follow(self, ids: torch.Tensor) -> None:
        """Read the new ids, and renew the bias of rows whose context has changed."""
        fresh = ids[:, self._read :].tolist()
        padding = self._padding.flatten().tolist() if self._read == 0 else [0] * len(self._rows)
        self._read = ids.shape[1]
        changed = [
            i
            for i, (row, new, skip) in enumerate(zip(self._rows, fresh, padding, strict=True))
            if row.push(new[skip:])
        ]
        if not changed:
            return
        signs = self._transform.signs([self._rows[i].context() for i in changed])
        bias = self._delta * torch.from_numpy(signs[:, self._places] * self._flips).to(self._bias)
        self._markable = self._markable.to(self._bias.device)
        self._bias[changed] = bias * self._markable


class _Row:
    """One text that grows token by token; special tokens are no text."""

    def __init__(self, token_texts: Spelling, *, size: int, reach: int) -> None:
        self._token_texts = token_texts
        self._size, self._reach = size, reach
        self._words = GrowingWords()
        self._pending: list[int] = []  # tokens that end inside a character

    def push(self, ids: Sequence[int]) -> bool:
        """Append tokens; returns whether the context of the next token has changed."""
        before = self._words.chunks(self._size)
        for token in ids:
            self._words.append(self._text(token))
        return self._words.chunks(self._size) > before

    def context(self) -> str:
        """The context of the next token."""
        return self._words.context(size=self._size, reach=self._reach)

    def _text(self, token: int) -> str:
        piece = self._token_texts.pieces[token]
        if not self._pending and _UNDECODED not in piece:
            return piece
        self._pending.append(token)
        piece = self._token_texts.decode([self._pending])[0]
        if piece.endswith(_UNDECODED) and len(self._pending) < _UTF8:
            return ""
        self._pending = []
        return piece


class GrowingWords:
    """The words of a text that is written piece by piece."""

    def __init__(self) -> None:
        self._whole: list[str] = []
        self._tail = ""  # from the last word on, which may still grow

    def append(self, piece: str) -> None:
        """Append text."""
        self._tail += piece
        found = list(_WORD.finditer(self._tail))
        if found:
            self._whole += [match.group() for match in found[:-1]]
            self._tail = self._tail[found[-1].start() :]

    def chunks(self, size: int) -> int:
        """The number of whole chunks."""
        return len(self._whole) // size

    def context(self, *, size: int, reach: int) -> str:
        """The context of the next token."""
        return context_of(self._whole, self.chunks(size), size=size, reach=reach)


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return _WORD.findall(text)


def context_of(words: Sequence[str], chunks: int, *, size: int, reach: int) -> str:
    """The text of the last ``reach`` of the first ``chunks`` chunks of ``size`` words each."""
    end = chunks * size
    return " ".join(words[max(end - reach * size, 0) : end])


def chunks_before(text: str, starts: Sequence[int], *, size: int) -> tuple[list[str], I64]:
    """The words of a text, and the number of whole chunks before tokens that start at these characters."""
    found = list(_WORD.finditer(text))
    begun = np.searchsorted([match.start() for match in found], np.asarray(starts, dtype=np.int64))
    return [match.group() for match in found], np.maximum(begun - 1, 0) // size
