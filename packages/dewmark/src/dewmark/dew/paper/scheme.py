"""`dew-paper`: the host's tokens under a key, with the paper's names and values.

The four modes of the ablation (appendix C.1) are keyed and reproducible. ``both`` is DEW itself;
``context_only`` removes the semantics of tokens (the key permutes their rows), ``token_only`` those of
contexts (a context's vector is a pseudo-random direction that depends only on the key and the context's ids),
``neither`` both. The direction is drawn in the context space and then projected like any other vector: over
keys its projection is uniform on the unit sphere of R^n, and the folded table serves it unchanged.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.config import check_rules
from dewmark.core.keys import Key, KeyStream
from dewmark.core.projections import projection_dim
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.dew.paper.evidence import TESTS, Scoring, TextEvidence, run_test
from dewmark.dew.paper.projection import Fold
from dewmark.dew.paper.reading import TokenReader, TokenReading
from dewmark.dew.reading import check_stored
from dewmark.encoders import load_encoder
from dewmark.encoders.contexts import (
    ComposedContexts,
    Contexts,
    WindowContexts,
    load_context_whitening,
    token_vectors,
)
from dewmark.encoders.token_tables import rows_of, token_table
from dewmark.errors import ArtifactError, ConfigError, VocabularyError
from dewmark.scheme import BoundScheme, Needs, Scheme, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.text.windows import ABSENT
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.dew.paper.bias import Bias
    from dewmark.dew.paper.texts import TokenAligner, TokenBatch
    from dewmark.dew.sessions import KeyedRace
    from dewmark.sampling import Session
    from dewmark.serving_rows import Rows

__all__ = ["BoundDewPaper"]


def permuted_rows(key: Key, markable: I64, vocab_size: int) -> I64:
    """The row each token borrows: a keyed permutation of the markable ids; other ids keep their own."""
    source = np.arange(vocab_size, dtype=np.int64)
    source[markable] = markable[key.stream("dew/context_only").permutation(len(markable))]
    return source


class NoContexts(Contexts):
    """Stands for contexts that only a key can make; their vectors (N, 0) are empty."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) to nothing."""
        return np.zeros((len(windows), 0), dtype=np.float32)


class HashedContexts(Contexts):
    """A pseudo-random unit vector per window, from the key and the window's ids."""

    def __init__(self, secret: bytes, dim: int) -> None:
        self._secret = secret
        self.dim = dim

    def secret_array(self) -> NDArray[np.uint8]:
        """The secret, for a stored detector. As secret as the key."""
        return np.frombuffer(self._secret, dtype=np.uint8)

    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) to pseudo-random unit rows (N, dim); empty windows give zero rows."""
        out = np.zeros((len(windows), self.dim))
        for i, window in enumerate(np.ascontiguousarray(windows, dtype="<i8")):
            if (window != ABSENT).any():
                seed = hmac.digest(self._secret, window.tobytes(), hashlib.sha256)
                out[i] = KeyStream(seed).normals(self.dim)
        return normalize_rows(out)


_SIMULATION = "dew/monte-carlo"  # the purpose of the sub-key from which the Monte-Carlo test draws its keys
_CHUNK_BYTES = 32 << 20  # of the vectors read at once
_CANDIDATES = {"bias": 32, "gumbel": 256}
# Opening checks and whitens tables for about a second, and a table takes tens of megabytes: keys bound at
# the same time share them, and nothing outlives the last one.
_READERS: weakref.WeakValueDictionary[tuple[object, ...], TokenReader] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class DewPaper(Scheme):
    """Dual-Embedding Watermarking as the paper has it; what is ours is said so."""

    name: ClassVar[str] = "dew-paper"
    summary: ClassVar[str] = "the paper's scheme: a bias on tokens that align with the encoded context"
    needs: ClassVar[Needs] = Needs(embeddings=True, encoder=True)

    lambda_: float | None = None
    """Strength λ of the bias: the most that a logit can gain. By default 2, with keyed sampling 0."""
    gamma: float = 0.5
    """Saturation γ: how fast tanh(γu) reaches its limits."""
    k: int = 3
    """Context width: how many tokens before the scored one."""
    m: int | None = None
    """How many of the likeliest tokens are scored; by default 32, with keyed sampling 256."""
    nucleus: float | None = None
    """If set, bias the smallest set of tokens with this much probability instead of the top m."""
    n: int | None = None
    """Projection dimensionality; by default max(d_T, d_C), for orthogonal projections lcm(d_T, d_C)."""
    projection: Literal["gaussian", "orthogonal"] = "gaussian"
    """The key's matrices: Gaussian R_T and R_C (section 3.1), or the isometric blocks of appendix B."""
    mode: Literal["both", "context_only", "token_only", "neither"] = "both"
    """Which meanings are used: both, or one of the paper's ablations (appendix C.1)."""
    context_encoding: Literal["window", "composed"] = "window"
    """How a context is embedded: the encoder run on its text, or the mean of its tokens' vectors (ours)."""
    whiten_contexts: bool = False
    """Whether context vectors are whitened (ours) or used as they come."""
    encoder: str = "use-m3"
    """The context encoder M_C: a packaged name, a folder, or a hub id of a sentence-transformers model."""
    statistics: str = "default"
    """Whitening statistics of the contexts: ``default``, or a folder written by `save_context_whitening`."""
    whiten_tokens: bool = True
    """Whether token embeddings are whitened."""
    donor: str | None = None
    """Another model whose input embeddings replace the host's (appendix C.2)."""
    sampler: Literal["bias", "gumbel"] = "bias"
    """How the mark is embedded: a bias on the logits, or keyed noise in Gumbel sampling (ours)."""
    alpha: float | None = None
    """Share of the randomness that comes from the key, with keyed sampling; by default 0.5."""

    def validate(self) -> None:
        """Reject values out of range, and settings without effect."""
        check_rules(
            (self.lambda_ is None or self.lambda_ >= 0.0, "lambda", "be at least 0", self.lambda_),
            (self.sampler == "gumbel" or self.strength > 0.0, "lambda", "be positive", self.lambda_),
            (self.gamma > 0.0, "gamma", "be positive", self.gamma),
            (self.k >= 1, "k", "be at least 1", self.k),
            (self.alpha is None or 0.0 < self.alpha <= 1.0, "alpha", "lie in (0, 1]", self.alpha),
            (self.m is None or self.m >= 1, "m", "be at least 1", self.m),
            (self.nucleus is None or 0.0 < self.nucleus <= 1.0, "nucleus", "lie in (0, 1]", self.nucleus),
            (self.n is None or self.n >= 2, "n", "be at least 2", self.n),
        )
        if self.sampler == "bias":
            self._without_effect("sampler=bias", "alpha")
        else:
            self._without_effect("sampler=gumbel", "nucleus")
        if self.nucleus is not None:
            self._without_effect("a nucleus", "m")
        if not self.context_semantics:
            self._without_effect(f"mode={self.mode}", "context_encoding", "whiten_contexts")
        if not (self.whiten_contexts and self.context_semantics):
            self._without_effect("contexts that are not whitened", "statistics")

    def _without_effect(self, why: str, *names: str) -> None:
        """Raise `ConfigError` for those of some settings that were changed."""
        defaults = {field.name: field.default for field in fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise ConfigError(f"{name} has no effect with {why}: leave it out")

    @property
    def needs_as_set(self) -> Needs:
        """Keyed sampling draws the token, so it must see the final distribution."""
        return Needs(embeddings=True, encoder=True, final_distribution=self.sampler == "gumbel")

    @property
    def strength(self) -> float:
        """λ."""
        if self.lambda_ is not None:
            return self.lambda_
        return 2.0 if self.sampler == "bias" else 0.0

    @property
    def keyed_share(self) -> float | None:
        """α, with keyed sampling."""
        return None if self.sampler == "bias" else self.alpha or 0.5

    @property
    def candidates(self) -> int:
        """How many of the likeliest tokens are scored."""
        return _CANDIDATES[self.sampler] if self.m is None else self.m

    @property
    def token_semantics(self) -> bool:
        """Whether similar tokens get similar scores."""
        return self.mode in ("both", "token_only")

    @property
    def context_semantics(self) -> bool:
        """Whether similar contexts give similar scores."""
        return self.mode in ("both", "context_only")

    # Binding

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundDewPaper:
        """Draw the projections and open (or build) the token table and the contexts."""
        reader = self.open_reader(host, workspace)
        return BoundDewPaper(
            self,
            reader,
            key.fingerprint,
            fold=self.fold_of(key, reader),
            source=self.sources_of(key, reader),
            hashed=self.hashed_of(key, reader),
            secret=key.subkey(_SIMULATION),
        )

    def open_reader(self, host: HostInfo, workspace: Workspace) -> TokenReader:
        """The token table and the contexts, shared by all keys of a process."""
        name = (self, host.identity, host.tokenizer.identity, str(workspace.cache))
        found = _READERS.get(name)
        if found is None:
            found = _READERS[name] = self._open_reader(host, workspace)
        return found

    def _open_reader(self, host: HostInfo, workspace: Workspace) -> TokenReader:
        donor = None
        if self.donor is not None:
            if workspace.find_host is None:
                raise ConfigError(
                    f"the donor {self.donor!r} cannot be looked up here; bind through dewmark.load_scheme"
                )
            donor = workspace.find_host(self.donor)
        rows = token_table(host, whiten=self.whiten_tokens, donor=donor, workspace=workspace)
        return TokenReader(host, rows, self._contexts(host, workspace), k=self.k)

    def _contexts(self, host: HostInfo, workspace: Workspace) -> Contexts:
        encoder = load_encoder(self.encoder, progress=workspace.progress)
        if not self.context_semantics:
            return NoContexts(encoder.dim)
        whitening = None
        if self.whiten_contexts:
            whitening = load_context_whitening(
                self.statistics,
                encoder=encoder,
                host=host,
                encoding=self.context_encoding,
                k=self.k,
                workspace=workspace,
            )
        if self.context_encoding == "window":
            return WindowContexts(encoder, host.tokenizer, whitening)
        return ComposedContexts(token_vectors(encoder, host, whitening=whitening, workspace=workspace))

    def scoring(self, reader: TokenReader) -> Scoring:
        """What tests must know of the scheme."""
        d_T, d_C = reader.token_rows.shape[1], reader.contexts.dim
        return Scoring(
            self.gamma,
            projection_dim(d_T, d_C, kind=self.projection, n=self.n),
            self.projection,
            linear=self.sampler == "gumbel",
            tokens=self.token_semantics,
            contexts=self.context_semantics,
        )

    def fold_of(self, key: Key, reader: TokenReader) -> Fold:
        """A key's projections, folded."""
        d_T, d_C = reader.token_rows.shape[1], reader.contexts.dim
        return Fold.of(key, d_T=d_T, d_C=d_C, kind=self.projection, n=self.scoring(reader).n)

    def sources_of(self, key: Key, reader: TokenReader) -> I64 | None:
        """The row of Ê_T that each token uses under a key, (vocab,); None where each uses its own."""
        if self.token_semantics:
            return None
        markable = np.flatnonzero(np.any(reader.token_rows != 0, axis=1))
        return permuted_rows(key, markable, reader.host.vocab_size)

    def hashed_of(self, key: Key, reader: TokenReader) -> HashedContexts | None:
        """The contexts that a key makes itself; None where they come from the text's meaning."""
        if self.context_semantics:
            return None
        return HashedContexts(key.subkey("dew/token_only"), reader.contexts.dim)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundDewPaper:
        """A detector from stored tables: no key, no host weights."""
        arrays = state.arrays
        try:
            rows = arrays["token_rows"]
            if len(rows) != host.vocab_size:
                raise VocabularyError(
                    f"the stored table has {len(rows)} tokens, but the vocabulary has {host.vocab_size}"
                )
            contexts = self._restored_contexts(state, host, workspace)
            fold = Fold.stored(arrays, int(state.meta["n"]))
            source = None if self.token_semantics else arrays["source"]
            hashed = None
            if not self.context_semantics:
                hashed = HashedContexts(arrays["context_secret"].tobytes(), contexts.dim)
            secret = arrays["simulation_secret"].tobytes()
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        reader = TokenReader(host, rows, contexts, k=self.k)
        return BoundDewPaper(
            self, reader, fingerprint, fold=fold, source=source, hashed=hashed, secret=secret
        )

    def _restored_contexts(self, state: State, host: HostInfo, workspace: Workspace) -> Contexts:
        arrays = state.arrays
        if not self.context_semantics:
            return NoContexts(len(arrays["fold_G"]))
        if self.context_encoding == "composed":
            return ComposedContexts(arrays["context_rows"])
        encoder = load_encoder(self.encoder, progress=workspace.progress)
        check_stored(state, "encoder", encoder.identity)
        whitening = None
        if self.whiten_contexts:
            whitening = Whitening(np.array(arrays["mean"]), np.array(arrays["matrix"]))
        return WindowContexts(encoder, host.tokenizer, whitening)


class BoundDewPaper(BoundScheme):
    """The paper's scheme under one key; the keys of the Monte-Carlo test follow from ``secret``.

    ``source`` (vocab,) and ``hashed`` serve the modes that ignore the meaning of tokens or of contexts;
    otherwise they are None.
    """

    tests = TESTS
    scheme: DewPaper

    def __init__(
        self,
        scheme: DewPaper,
        reader: TokenReader,
        fingerprint: str,
        *,
        fold: Fold,
        source: I64 | None,
        hashed: HashedContexts | None,
        secret: bytes,
    ) -> None:
        super().__init__(scheme, reader.host, fingerprint)
        self.reader = reader
        self.scoring = scheme.scoring(reader)
        self.fold = fold
        self.source = source
        self.hashed = hashed
        self.secret = secret
        # the vectors of units, and of contexts before and after scaling, fit in _CHUNK_BYTES
        d_T, d_C = reader.token_rows.shape[1], reader.contexts.dim
        self._units_per_chunk = max(_CHUNK_BYTES // (4 * (d_T + 2 * d_C)), 1)
        self._aligners: dict[torch.device, TokenAligner] = {}
        self._lock = threading.Lock()

    def under(self, W: F32) -> Self:
        """The same scheme marking with u = ê_T W ê_C for a matrix W (d_T, d_C)."""
        changed = copy.copy(self)
        changed.fold, changed._lock, changed._aligners = Fold.of_matrix(W), threading.Lock(), {}
        return changed

    def alignments(self, T: F32, C: F32) -> F32:
        """u (N,) of units T (N, d_T) in contexts C (N, d_C)."""
        return np.asarray(np.einsum("ij,ij->i", self.fold.rows(T), self.fold.contexts(C)))

    @property
    def attributes(self) -> bool:
        """It cannot tell the holder's texts from forged ones."""
        return False

    # Marking

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.dew.paper.bias import BiasSession
        from dewmark.dew.sessions import KeyedSession

        batch, size = self.batch(prompt_ids, attention_mask), self.host.vocab_size
        if self.scheme.sampler == "bias":
            return BiasSession(self._bias, batch, vocab_size=size)
        return KeyedSession(self._race, batch, vocab_size=size, prompt_ids=prompt_ids, seeds=seeds)

    def batch(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> TokenBatch:
        """The texts of a session that begins with prompts (batch, length)."""
        return self._aligner(prompt_ids.device).batch(prompt_ids, attention_mask)

    def rows(self, device: torch.device) -> Rows:
        """Mark the rows of a changing batch together."""
        from dewmark.dew.paper.bias import bias_rows
        from dewmark.dew.sessions import FollowedRows, draw_rows

        mark = bias_rows(self._bias) if self.scheme.sampler == "bias" else draw_rows(self._race)
        return FollowedRows(self._aligner(device), mark, vocab_size=self.host.vocab_size)

    @property
    def _bias(self) -> Bias:
        from dewmark.dew.paper.bias import Bias

        chosen = self.scheme
        return Bias(chosen.strength, chosen.gamma, chosen.candidates, chosen.nucleus)

    @property
    def _race(self) -> KeyedRace:
        from dewmark.dew.sessions import KeyedRace

        chosen = self.scheme
        return KeyedRace(chosen.keyed_share or 1.0, chosen.strength, chosen.gamma, chosen.candidates)

    def _aligner(self, device: torch.device) -> TokenAligner:
        """This key's tables on a device, built for the first session there and shared by all."""
        from dewmark.dew.paper.texts import TokenAligner

        with self._lock:
            if device not in self._aligners:
                contexts = self.hashed or self.reader.contexts
                self._aligners[device] = TokenAligner(
                    self.reader, self.fold, contexts, device, source=self.source
                )
            return self._aligners[device]

    # Detection

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into the host's tokens."""
        return self.reader.tokenize(texts)

    def test_texts(
        self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized], *, test: str, fpr: float
    ) -> Iterator[tuple[Evidence, Statistic]]:
        """Evidence and result of each text. Tests: ``key`` (default), its simulation, and the paper's two."""
        for text, evidence in self._score(self.reader.read(texts, prompts), test=test):
            yield evidence, run_test(text, evidence, self.scoring, test=test, fpr=fpr, secret=self.secret)

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The evidence of texts, as the key test sees it."""
        return [evidence for _, evidence in self._score(self.reader.read(texts, prompts), test="key")]

    def _score(self, reading: TokenReading, *, test: str) -> Iterator[tuple[TextEvidence, Evidence]]:
        """One text at a time: a text's evidence is much larger than what is kept of it."""
        tokens, contexts = reading.token_rows, reading.context_rows
        if self.source is not None:
            tokens = rows_of(self.reader.token_rows, self.source[reading.ids])
        if self.hashed is None:
            scaled = self.fold.contexts(contexts, parts=reading.contexts)
        else:
            contexts = self.hashed.vectors(reading.windows)
            scaled = self.fold.contexts(contexts)
        Q = self.fold.rows(tokens)
        for pairs in reading.texts:
            text = TextEvidence.of(pairs, reading, contexts, self.scoring, test=test)
            yield text, text.under(Q, scaled)

    def _mean_score(self, evidence: Evidence) -> float:
        """The mean score per token; with a bias it is the paper's, the bias itself."""
        scale = self.scheme.strength if self.scheme.sampler == "bias" else 1.0
        return scale * evidence.total / max(evidence.length, 1)

    def state(self) -> State:
        """The fold and what reading needs. As secret as the key."""
        meta: dict[str, Any] = {"n": self.fold.n}
        arrays: dict[str, NDArray[Any]] = self.fold.arrays() | {"token_rows": self.reader.token_rows}
        arrays["simulation_secret"] = np.frombuffer(self.secret, dtype=np.uint8)
        if self.source is not None:
            arrays["source"] = self.source
        if self.hashed is not None:
            arrays["context_secret"] = self.hashed.secret_array()
        contexts = self.reader.contexts
        if contexts.table is not None:
            arrays["context_rows"] = contexts.table
        if isinstance(contexts, WindowContexts):
            meta["encoder"] = contexts.encoder.identity
            if contexts.whitening is not None:
                arrays |= {"mean": contexts.whitening.mean, "matrix": contexts.whitening.matrix}
        return State(meta=meta, arrays=arrays)
