"""`dew-paper`: the host's tokens under a key, with the paper's names and values.

The four modes of the ablation (appendix C.1) are keyed and reproducible. ``both`` is DEW itself;
``context_only`` removes the semantics of tokens (the key permutes their rows), ``token_only`` those of
contexts (a context's vector is a pseudo-random direction that depends only on the key and the context's ids),
``neither`` both. The direction is drawn in the context space and then projected like any other vector: over
keys its projection is uniform on the unit sphere of R^n, and the folded table serves it unchanged.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.core.keys import Key
from dewmark.core.whitening import Whitening
from dewmark.dew.paper.monte_carlo import monte_carlo_test
from dewmark.dew.paper.null_distribution import beta_test, saturate, tanh_kernel
from dewmark.dew.paper.projection import Fold
from dewmark.dew.paper.reading import HashedContexts, NoContexts, TokenReader, TokenReading
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
from dewmark.errors import ConfigError, VocabularyError
from dewmark.scheme import BoundScheme, Needs, Reading, Scheme, State
from dewmark.stats.evidence import Evidence, Factor
from dewmark.stats.key_test import Statistic, gaussian_test, key_test
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.dew.paper.marking import Alignments, Bias, TokenAligner
    from dewmark.mark import Session
    from dewmark.types import Seeds

__all__ = ["BoundDewPaper"]


def permuted_rows(key: Key, markable: I64, vocab_size: int) -> I64:
    """The row each token borrows: a keyed permutation of the markable ids; other ids keep their own."""
    source = np.arange(vocab_size, dtype=np.int64)
    source[markable] = markable[key.stream("dew/context_only").permutation(len(markable))]
    return source


TESTS = ("key", "monte-carlo", "gaussian", "beta")
PLAIN = ("gaussian", "beta")
"""The paper's own tests, which take tokens as they are.

The others subtract the text's mean unit from each, which is what all texts of a language share, and normalise
the differences.
"""
_SIMULATION = "dew/monte-carlo"  # the purpose of the sub-key from which the Monte-Carlo test draws its keys
# Opening checks and whitens tables for about a second, and a table takes tens of megabytes: keys bound at
# the same time share them, and nothing outlives the last one.
_READERS: weakref.WeakValueDictionary[tuple[object, ...], TokenReader] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class DewPaper(Scheme):
    """Dual-Embedding Watermarking as the paper has it; what is ours is said so."""

    name: ClassVar[str] = "dew-paper"
    summary: ClassVar[str] = "the paper's scheme: a bias on tokens that align with the encoded context"
    needs: ClassVar[Needs] = Needs(embeddings=True, encoder=True)

    lambda_: Annotated[float, "positive"] = 2.0
    """Strength λ of the bias: the most that a logit can gain."""
    gamma: Annotated[float, "positive"] = 0.5
    """Saturation γ: how fast tanh(γu) reaches its limits."""
    k: Annotated[int, "at least 1"] = 3
    """Context width: how many tokens before the scored one."""
    m: Annotated[int, "at least 1"] = 32
    """How many of the likeliest tokens are scored."""
    n: Annotated[int | None, "at least 2"] = None
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
    whiten_tokens: bool = True
    """Whether token embeddings are whitened."""
    donor: str | None = None
    """Another model whose input embeddings replace the host's (appendix C.2)."""

    def validate(self) -> None:
        """Reject settings without effect."""
        if not self.context_semantics and (self.context_encoding != "window" or self.whiten_contexts):
            raise ConfigError(
                f"context_encoding and whiten_contexts have no effect with mode={self.mode}: leave them out"
            )

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
        rows, d_C = reader.token_rows, reader.contexts.dim
        source = hashed = None
        if not self.token_semantics:
            markable = np.flatnonzero(np.any(rows != 0, axis=1))
            source = permuted_rows(key, markable, host.vocab_size)
        if not self.context_semantics:
            hashed = HashedContexts(key.subkey("dew/token_only"), d_C)
        return BoundDewPaper(
            self,
            reader,
            key.fingerprint,
            fold=Fold.of(key, d_T=rows.shape[1], d_C=d_C, kind=self.projection, n=self.n),
            source=source,
            hashed=hashed,
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
                encoder, host, encoding=self.context_encoding, k=self.k, workspace=workspace
            )
        if self.context_encoding == "window":
            return WindowContexts(encoder, host.tokenizer, whitening)
        return ComposedContexts(token_vectors(encoder, host, whitening=whitening, workspace=workspace))

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundDewPaper:
        """A detector from stored tables: no key, no host weights."""
        arrays, rows = state.arrays, state.arrays["token_rows"]
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
        self.reader, self.fold, self.source, self.hashed = reader, fold, source, hashed
        self.secret = secret
        self._aligners: dict[torch.device, TokenAligner] = {}
        self._lock = threading.Lock()

    def under(self, W: F32) -> Self:
        """The same scheme marking with u = ê_T W ê_C for a matrix W (d_T, d_C)."""
        return self._with(fold=Fold.of_matrix(W), _lock=threading.Lock(), _aligners={})

    def alignments(self, T: F32, C: F32) -> F32:
        """u (N,) of units T (N, d_T) in contexts C (N, d_C)."""
        return np.asarray(np.einsum("ij,ij->i", self.fold.rows(T), self.fold.contexts(C)))

    # Marking

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.dew.paper.marking import BiasSession

        alignments = self.follow_alignments(prompt_ids, attention_mask)
        return BiasSession(self._bias, alignments, vocab_size=self.host.vocab_size)

    def follow_alignments(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> Alignments:
        """From ids (batch, length) that grow and candidates (batch, m) to u (batch, m) of the candidates."""
        return self._aligner(prompt_ids.device).follow(prompt_ids, attention_mask)

    @property
    def _bias(self) -> Bias:
        from dewmark.dew.paper.marking import Bias

        return Bias(self.scheme.lambda_, self.scheme.gamma, self.scheme.m)

    def _aligner(self, device: torch.device) -> TokenAligner:
        """This key's tables on a device, built for the first session there and shared by all."""
        from dewmark.dew.paper.marking import TokenAligner

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

    def evidence(self, readings: Sequence[Reading], *, test: str | None = None) -> Iterator[Evidence]:
        """The evidence of texts, as the key test sees it, or as the paper's own tests do."""
        read = self.reader.read([each.text for each in readings], [each.prompt for each in readings])
        return self._score(read, centred=test not in PLAIN)

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """The key test (default), its simulation, or one of the paper's two.

        The simulation draws its keys from a secret and the text, as many as the level ``fpr`` requires.
        """
        gamma, n, kind = self.scheme.gamma, self.fold.n, self.scheme.projection
        if test == "gaussian":
            return gaussian_test(evidence)
        if test == "beta":
            return beta_test(evidence, gamma=gamma, n=n)
        if test == "monte-carlo":
            score = functools.partial(saturate, gamma)
            return monte_carlo_test(evidence, score, n=n, kind=kind, secret=self.secret, level=fpr)
        return key_test(evidence)

    def _score(self, reading: TokenReading, *, centred: bool) -> Iterator[Evidence]:
        """One text at a time: a text's evidence is much larger than what is kept of it."""
        tokens, contexts = reading.token_rows, reading.context_rows
        if self.source is not None:
            tokens = rows_of(self.reader.token_rows, self.source[reading.ids])
        if self.hashed is not None:
            contexts = self.hashed.vectors(reading.windows)
        Q, scaled = self.fold.rows(tokens), self.fold.contexts(contexts)
        for pairs in reading.texts:
            T: Factor = pairs.tokens
            rows = Q[pairs.tokens]
            if self.scheme.token_semantics:
                T = reading.token_rows[pairs.tokens]
                if centred and np.any(pairs.tokens != pairs.tokens[:1]):  # a lone unit is not its own mean
                    share = (pairs.weights / pairs.weights.sum()).astype(np.float32)
                    T -= share @ T
                    norms = np.linalg.norm(T, axis=1)[:, None]
                    T /= norms
                    rows = (rows - share @ rows) / norms
            u: F32 = np.einsum("ij,ij->i", rows, scaled[pairs.windows])
            yield Evidence(
                scores=saturate(self.scheme.gamma, u.astype(np.float64)),
                alignments=u,
                weights=pairs.weights,
                positions=pairs.positions,
                T=T,
                C=contexts[pairs.windows] if self.scheme.context_semantics else pairs.windows,
                kernel=tanh_kernel(self.scheme.gamma),
            )

    def _mean_score(self, evidence: Evidence) -> float:
        """The mean score per token, which is the paper's: the bias itself."""
        return self.scheme.lambda_ * evidence.total / max(evidence.length, 1)

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
        if contexts.encoder is not None:
            meta["encoder"] = contexts.encoder.identity
        if contexts.whitening is not None:
            arrays |= {"mean": contexts.whitening.mean, "matrix": contexts.whitening.matrix}
        return State(meta=meta, arrays=arrays)
