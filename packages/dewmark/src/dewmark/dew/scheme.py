"""DEW as a scheme: its settings joined to a key and a host's vocabulary."""

from __future__ import annotations

import copy
import functools
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark import config
from dewmark.arrays import F32, I64, Mask
from dewmark.core.keys import Key
from dewmark.dew.ablation import HashedContexts
from dewmark.dew.attribution import head_of
from dewmark.dew.detection import SIMULATION, TESTS, TextEvidence, mean_score, run_test
from dewmark.dew.expected import check_read_test, read
from dewmark.dew.many_keys import detect_keys
from dewmark.dew.origin import OriginStatistic, find_uses, with_origin
from dewmark.dew.projection import Fold, FoldedRows
from dewmark.dew.reading import (
    KeyIndependent,
    LexiconReader,
    Reading,
    TokenReader,
    WordReader,
    open_key_independent,
    restore_key_independent,
)
from dewmark.dew.ring import Asked, KeyMatrices, KeyUse, random_member
from dewmark.dew.sequential import SequentialDetector
from dewmark.dew.settings import DewSettings
from dewmark.encoders.contexts import ComposedContexts, WindowContexts
from dewmark.encoders.token_tables import rows_of
from dewmark.errors import ArtifactError, ConfigError
from dewmark.scheme import DEFAULT_FPR, UNITS_PER_CHUNK, BoundScheme, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.types import Detection
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.dew.alignment import Batch, LexiconAligner, TokenAligner, WordAligner
    from dewmark.dew.marking import MatrixOf
    from dewmark.dew.stateless import StatelessMarker
    from dewmark.sampling import Session
    from dewmark.serving_rows import Rows

__all__ = ["DEW", "BoundDEW"]

_MATRICES_KEPT = 256  # of members and payloads, on a device
_CHUNK_BYTES = 32 << 20  # of the vectors read at once on a CPU


@dataclass(frozen=True)
class DEW(DewSettings):
    """Dual-Embedding Watermarking."""

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundDEW:
        """Draw the projections and open (or build) the token table and the contexts."""
        shared = open_key_independent(self, host, workspace)
        uses = None if key.is_plain else KeyMatrices.of(key, d_T=shared.d_T, d_C=shared.d_C)
        if uses is None:
            fold = Fold.of(key, d_T=shared.d_T, d_C=shared.d_C, kind=self.key_matrix, n=shared.n)
        else:
            fold = Fold.of_matrix(uses.matrix(KeyUse()))
        return BoundDEW(
            shared,
            key.fingerprint,
            fold=fold,
            uses=uses,
            source=shared.sources_of(key),
            hashed=shared.contexts_of(key),
            simulation_secret=key.subkey(SIMULATION),
            workspace=workspace,
        )

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
        """Score texts under many keys, reading them once."""
        if not all(key.is_plain for key in keys):  # each pays for its own members and payloads
            return super().detect_keys(keys, texts, host, workspace, prompts=prompts, fpr=fpr, test=test)
        shared = open_key_independent(self, host, workspace)
        return detect_keys(
            shared,
            keys,
            texts,
            prompts=prompts,
            fpr=fpr,
            test=test,
            expectations=workspace.expectations,
            progress=workspace.progress,
        )

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundDEW:
        """A detector from stored tables: no key, no host weights."""
        arrays = state.arrays
        try:
            shared = restore_key_independent(self, state, host, workspace)
            fold = Fold.stored(arrays, shared.n)
            source = None if self.token_semantics else arrays["source"]
            hashed = None
            if not self.context_semantics:
                hashed = HashedContexts(arrays["context_secret"].tobytes(), shared.d_C)
            secret = arrays["simulation_secret"].tobytes()
            uses = KeyMatrices.stored(state.meta["uses"], arrays) if "uses" in state.meta else None
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        return BoundDEW(
            shared,
            fingerprint,
            fold=fold,
            uses=uses,
            source=source,
            hashed=hashed,
            simulation_secret=secret,
            workspace=workspace,
        )


class BoundDEW(BoundScheme):
    """DEW under one key: ``shared`` is common to all keys, the rest comes from this one.

    ``source`` (vocab,) and ``hashed`` serve the ablation modes that ignore the meaning of tokens or of
    contexts; otherwise they are None. The keys of the Monte-Carlo test follow from ``simulation_secret``.
    ``uses`` are the members, payloads and epochs of a key that has any; ``fold`` is the use that marks, as
    ``asked`` by `writing`.
    """

    tests = TESTS
    scheme: DewSettings

    def __init__(
        self,
        shared: KeyIndependent,
        fingerprint: str,
        *,
        fold: Fold,
        uses: KeyMatrices | None = None,
        source: I64 | None = None,
        hashed: HashedContexts | None = None,
        simulation_secret: bytes,
        workspace: Workspace,
    ) -> None:
        super().__init__(shared.scheme, shared.host, fingerprint)
        self.shared = shared
        self.reader = shared.reader
        self.fold = fold
        self.uses = uses
        self.asked = Asked()
        self.source = source
        self.hashed = hashed
        self._simulation_secret = simulation_secret
        # without its ways to open hosts, which may lead back here
        self.workspace = Workspace(cache=workspace.cache, progress=workspace.progress)
        # the vectors of units, and of contexts before and after scaling, fit in _CHUNK_BYTES
        self.units_per_chunk = max(_CHUNK_BYTES // (4 * (shared.d_T + 2 * shared.d_C)), 1)
        self._folded = FoldedRows(fold, shared.host.vocab_size)
        self._device: torch.device | None = None
        self._aligners: dict[torch.device, TokenAligner | WordAligner | LexiconAligner] = {}
        self._lock = threading.Lock()

    # Members, payloads and epochs

    def writing(self, *, member: int | None = None, payload: int | None = None) -> BoundDEW:
        """The same scheme, marking as one member of the key's ring and with a payload.

        Without a ``member``, each text's seed chooses one (`by_text`).
        """
        changed = copy.copy(self)
        changed.asked = Asked(member, payload)
        changed.fold = Fold.of_matrix(self.matrices.matrix(changed.asked.use))
        changed._aligners, changed._lock = {}, threading.Lock()
        return changed

    def by_text(self, seeds: Sequence[int]) -> list[tuple[BoundScheme, list[int]]]:
        """Texts by the member that marks them, chosen by each text's seed unless `writing` named it."""
        if not self._chooses_members or isinstance(self.reader, LexiconReader):
            return super().by_text(seeds)  # a lexicon's rows have their own matrices
        assert self.uses is not None
        chosen: dict[int, list[int]] = {}
        for place, seed in enumerate(seeds):
            chosen.setdefault(random_member(seed, self.uses.current.members), []).append(place)
        return [
            (self.writing(member=member, payload=self.asked.payload), places)
            for member, places in chosen.items()
        ]

    @property
    def matrices(self) -> KeyMatrices:
        """The matrices of all uses of the key; a plain key has one."""
        if not self.scheme.by_matrix:
            raise ConfigError("members and payloads need units=word with its own projection and score")
        return self.uses or KeyMatrices.of_matrix(self.fold.product)

    @property
    def tried(self) -> int:
        """The number of uses among which detection chooses."""
        return 1 if self.uses is None else self.uses.count

    @property
    def config_hash(self) -> str:
        """Also identifies the member and the payload that were asked for."""
        whole = super().config_hash
        asked = self.asked
        return whole if asked == Asked() else config.config_hash(whole, asked.member, asked.payload)

    @property
    def attributes(self) -> bool:
        """Whether it can tell the holder's texts from forged ones: a ring can, a plain key cannot."""
        return self.scheme.attributes and self.uses is not None and self.uses.attributes

    def public(self) -> BoundDEW:
        """The half of this detector that may be published: it detects, but attributes nothing."""
        if not self.scheme.attributes:
            raise ConfigError("a public detector needs vocabulary=lexicon, whose coordinates have an order")
        changed = copy.copy(self)
        changed.uses = self.matrices.published(self.head())
        changed.fold = Fold.of_matrix(changed.uses.matrix(KeyUse()))
        changed._simulation_secret = b""
        return changed

    def head(self) -> Mask:
        """The coordinates that a forger learns first, (d_T, d_C)."""
        return head_of(self.shared, members=1 if self.uses is None else self.uses.current.members)

    # Marking

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.dew.alignment import LexiconAligner, LexiconBatch, TokenBatch, WordAligner, WordBatch
        from dewmark.dew.marking import BiasSession, GumbelSession

        aligner, size = self._aligner(prompt_ids.device), self.host.vocab_size
        batch: Batch
        if isinstance(aligner, WordAligner):
            batch = WordBatch(aligner, prompt_ids, attention_mask)
        elif isinstance(aligner, LexiconAligner):
            W = self._members_of(len(prompt_ids), seeds, prompt_ids.device)
            batch = LexiconBatch(aligner, prompt_ids, attention_mask, W=W)
        else:
            batch = TokenBatch(aligner, prompt_ids, attention_mask)
        if self.scheme.sampler == "gumbel":
            return GumbelSession(self.scheme, batch, vocab_size=size, prompt_ids=prompt_ids, seeds=seeds)
        return BiasSession(self.scheme, batch, vocab_size=size)

    def rows(self, device: torch.device) -> Rows:
        """Mark the rows of a changing batch together."""
        from dewmark.dew.alignment import LexiconAligner
        from dewmark.dew.marking import DewRows, LexiconRows

        aligner = self._aligner(device)
        if isinstance(aligner, LexiconAligner):
            return LexiconRows(
                self.scheme, aligner, vocab_size=self.host.vocab_size, matrix_of=self._matrix_of(device)
            )
        if isinstance(self.reader, WordReader):
            self.reader.vectors.load()  # seconds that requests of a running engine would otherwise wait
        return DewRows(self.scheme, aligner, vocab_size=self.host.vocab_size)

    def _members_of(
        self, rows: int, seeds: Sequence[int] | None, device: torch.device
    ) -> torch.Tensor | None:
        """The rows' own matrices (rows, d_T, d_C), if their seeds choose members of a ring."""
        import torch

        if not self._chooses_members:
            return None
        matrix_of = self._matrix_of(device)
        drawn = seeds or [secrets.randbits(63) for _ in range(rows)]
        found = [matrix_of(seed, None, None) for seed in drawn]
        return torch.stack([each for each in found if each is not None])

    def _matrix_of(self, device: torch.device) -> MatrixOf:
        """A text's matrix on a device by its seed, member and payload; None for the one in ``fold``."""
        import torch

        @functools.lru_cache(maxsize=_MATRICES_KEPT)
        def on_device(use: KeyUse) -> torch.Tensor:
            return torch.from_numpy(self.matrices.matrix(use)).to(device)

        def matrix_of(seed: int, member: int | None, payload: int | None) -> torch.Tensor | None:
            if member is None and payload is None and not self._chooses_members:
                return None
            if member is None and self._chooses_members:
                assert self.uses is not None
                member = random_member(seed, self.uses.current.members)
            wanted = Asked(
                self.asked.member if member is None else member,
                self.asked.payload if payload is None else payload,
            )
            return on_device(wanted.use)

        return matrix_of

    @property
    def _chooses_members(self) -> bool:
        """Whether each text's seed chooses a member of the key's ring."""
        return self.uses is not None and self.uses.current.members > 1 and self.asked.member is None

    def stateless(self, device: torch.device) -> StatelessMarker:
        """Mark from the last tokens of a text alone."""
        from dewmark.dew.alignment import LexiconAligner
        from dewmark.dew.stateless import StatelessMarker

        aligner = self._aligner(device)
        if not isinstance(aligner, LexiconAligner):
            raise ConfigError("a mark without state needs the words of a lexicon: use vocabulary=lexicon")
        return StatelessMarker(self.scheme, aligner)

    def _aligner(self, device: torch.device) -> TokenAligner | WordAligner | LexiconAligner:
        """This key's tables on a device, built for the first session there and shared by all."""
        with self._lock:
            if device not in self._aligners:
                self._aligners[device] = self._make_aligner(device)
            return self._aligners[device]

    def _make_aligner(self, device: torch.device) -> TokenAligner | WordAligner | LexiconAligner:
        from dewmark.dew.alignment import LexiconAligner, TokenAligner, WordAligner
        from dewmark.dew.word_step import word_tables

        if isinstance(self.reader, LexiconReader):
            tables = word_tables(self.host, self.reader, device=device, workspace=self.workspace)
            return LexiconAligner(
                tables,
                self.fold,
                k=self.scheme.k,
                pad_id=self.host.tokenizer.pad_id,
                fresh_on_repeat=self.scheme.fresh_on_repeat,
            )
        if isinstance(self.reader, WordReader):
            return WordAligner(self.host, self.reader, self.fold, device, progress=self.workspace.progress)
        assert isinstance(self.reader, TokenReader)
        contexts = self.hashed or self.reader.contexts
        assert contexts is not None
        return TokenAligner(self.reader, self.fold, contexts, device, source=self.source)

    # Detection

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into the host's tokens, or into words."""
        return self.reader.tokenize(texts)

    def test_texts(
        self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized], *, test: str, fpr: float
    ) -> Iterator[tuple[Evidence, Statistic]]:
        """Evidence and result of each text. Tests: ``key`` (default), its simulation, and the paper's two."""
        check_read_test(test, self.expectations)
        reading = read(self.reader, self.expectations, texts, prompts)
        head = self.head if self.attributes else None
        if self.uses is not None and test == "key":
            yield from find_uses(
                reading, self._context_rows(reading), self.uses, self.scheme, fpr=fpr, head=head
            )
            return
        G = self.fold.G
        if self._device is not None and test == "key" and self.scheme.flattens and self.expectations is None:
            from dewmark.dew.batch_detection import flat_batch

            yield from flat_batch(self._device, reading, W=self.fold.product, scheme=self.scheme)
            return
        if self._device is not None and G is not None and test == "key" and self.scheme.mode == "both":
            from dewmark.dew.batch_detection import MAX_PAIRS, score_batch

            if max(len(pairs.tokens) for pairs in reading.texts) <= MAX_PAIRS:
                Q, n = self._folded_rows(reading), self.fold.n
                found = score_batch(self._device, reading, Q=Q, G=G, n=n, scheme=self.scheme)
                yield from ((evidence, key_test(evidence, variance=v)) for evidence, v in found)
                return
        for text, evidence in self._score(reading, test=test):
            secret, n = self._simulation_secret, self.fold.n
            yield (
                evidence,
                run_test(text, evidence, self.scheme, test=test, n=n, fpr=fpr, secret=secret),
            )

    def follow(self, *, prompt: str | None = None, fpr: float = DEFAULT_FPR) -> SequentialDetector:
        """Watch a text while it arrives; its p-value is valid whenever you stop."""
        if self.expectations is not None:
            raise ConfigError("a stream is followed word by word, without a reader: leave the reader out")
        return SequentialDetector(self.reader, self.matrices, prompt=prompt, fpr=fpr)

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The evidence of texts, as the key test sees it; under the use of the key that fits each best."""
        reading = read(self.reader, self.expectations, texts, prompts)
        if self.uses is not None:
            if self.uses.is_public:
                raise ConfigError("a public detector has half of the key, which does not find passages")
            contexts = self._context_rows(reading)
            found = find_uses(reading, contexts, self.uses, self.scheme, fpr=0.0, head=None)
            return [evidence for evidence, _ in found]
        return [evidence for _, evidence in self._score(reading, test="key")]

    def detection(
        self, text: Tokenized, evidence: Evidence, statistic: Statistic, *, test: str, fpr: float
    ) -> Detection:
        """The result for one text, with what is known of its origin."""
        made = super().detection(text, evidence, statistic, test=test, fpr=fpr)
        return with_origin(made, statistic, self.uses) if isinstance(statistic, OriginStatistic) else made

    def mean_score(self, evidence: Evidence) -> float:
        """The mean score per unit; with a bias it is the paper's."""
        return mean_score(evidence, self.scheme)

    def on(self, device: str) -> BoundDEW:
        """The same detector with its key test on a torch device; on the CPU it uses numpy."""
        from torch import device as torch_device

        moved = copy.copy(self)
        moved._device = None if device == "cpu" else torch_device(device)
        if moved._device is not None:
            moved.units_per_chunk = UNITS_PER_CHUNK
        return moved

    def _score(self, reading: Reading, *, test: str) -> Iterator[tuple[TextEvidence, Evidence]]:
        """One text at a time: a text's evidence is much larger than what is kept of it."""
        context_rows = self._context_rows(reading)
        scaled = self.fold.contexts(context_rows, parts=reading.parts)
        Q = self._folded_rows(reading)
        for text in TextEvidence.each(reading.texts, reading, context_rows, self.scheme, test=test):
            yield text, text.under(Q, scaled)

    def _folded_rows(self, reading: Reading) -> F32:
        """Rows of Q for the reading's units (V, d_C)."""
        if not isinstance(self.reader, TokenReader):
            return self.fold.rows(reading.token_rows)
        if self.source is None:
            return self._folded.rows(reading.token_rows, reading.ids)
        used = self.source[reading.ids]
        return self._folded.rows(rows_of(self.reader.token_rows, used), used)

    def _context_rows(self, reading: Reading) -> F32:
        if self.hashed is not None:
            return self.hashed.vectors(reading.windows)
        assert reading.context_rows is not None
        return reading.context_rows

    def state(self) -> State:
        """The fold and what reading needs. As secret as the key."""
        meta: dict[str, Any] = {"n": self.fold.n}
        if isinstance(self.reader, WordReader):
            arrays = self.fold.arrays() | self.reader.arrays() | self._secret_arrays()
            if self.uses is not None:
                meta["uses"] = self.uses.meta()
                arrays |= self.uses.arrays()
            return State(meta=meta | self.reader.meta(), arrays=arrays)
        assert isinstance(self.reader, TokenReader)
        arrays = self.fold.arrays(self.reader.token_rows) | self._secret_arrays()
        arrays["token_rows"] = self.reader.token_rows
        if self.source is not None:
            arrays["source"] = self.source
        if self.hashed is not None:
            arrays["context_secret"] = self.hashed.secret_array()
        contexts = self.reader.contexts
        if isinstance(contexts, ComposedContexts):
            arrays["context_rows"] = contexts.table
        elif isinstance(contexts, WindowContexts):
            meta["encoder"] = contexts.encoder.identity
            if contexts.whitening is not None:
                arrays["mean"] = contexts.whitening.mean
                arrays["matrix"] = contexts.whitening.matrix
        return State(meta=meta, arrays=arrays)

    def _secret_arrays(self) -> dict[str, NDArray[Any]]:
        return {"simulation_secret": np.frombuffer(self._simulation_secret, dtype=np.uint8)}
