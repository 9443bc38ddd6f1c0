"""Words under a key whose secret is one matrix W: what `dew` and `dew-open` share beside the way they mark.

They detect by the text's matrix (`dewmark.dew.matrix`), and so have members, payloads and epochs
(`dewmark.dew.ring`), streams (`dewmark.dew.sequential`), readers and stored detectors alike.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from dewmark import config
from dewmark.arrays import F32
from dewmark.config import check_rules
from dewmark.core.keys import Key
from dewmark.core.projections import draw_matrix
from dewmark.dew.expected import read
from dewmark.dew.key_test import detect_keys
from dewmark.dew.matrix import TextMatrix, text_matrices
from dewmark.dew.origin import OpenHead, OriginStatistic, find_uses, with_origin
from dewmark.dew.passage_test import KeyedEvidence, passage_test
from dewmark.dew.reading import WordReader
from dewmark.dew.ring import Asked, KeyMatrices, KeyUse
from dewmark.dew.sequential import SequentialDetector
from dewmark.errors import ArtifactError, ConfigError
from dewmark.scheme import UNITS_PER_CHUNK, BoundScheme, Needs, Scheme, State, check_test
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.types import Detection
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import HostInfo, NoReader, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.dew.sessions import Batch

__all__ = ["BoundWords"]

TESTS = ("key",)
_CHUNK_BYTES = 32 << 20  # of the vectors read at once on a CPU


R = TypeVar("R", bound=WordReader)


@dataclass(frozen=True)
class WordScheme(Scheme, Generic[R]):
    """A scheme over words; the session draws the token, so it must see the final distribution."""

    needs: ClassVar[Needs] = Needs(final_distribution=True)

    k: int = 3
    """Context width: how many words before the scored one."""
    alpha: float = 0.95
    """Share of the sampler's randomness that comes from the key."""
    m: int = 256
    """How many of the likeliest tokens are scored."""
    flatten: float | None = 1.75
    """How many times the root mean square of all directions one direction of the text's evidence may have
    before the key test cuts it; None for no limit."""

    def validate(self) -> None:
        """Reject values out of range."""
        check_rules(
            (self.k >= 1, "k", "be at least 1", self.k),
            (0.0 < self.alpha <= 1.0, "alpha", "lie in (0, 1]", self.alpha),
            (self.m >= 1, "m", "be at least 1", self.m),
            (self.flatten is None or self.flatten >= 1.0, "flatten", "be at least 1", self.flatten),
        )

    @abstractmethod
    def open_reader(self, workspace: Workspace) -> R:
        """What reads texts, shared by all keys of a process."""

    @abstractmethod
    def restored_reader(self, state: State, workspace: Workspace) -> R:
        """The reader of a stored detector."""

    @abstractmethod
    def under(
        self,
        W: F32,
        uses: KeyMatrices | None,
        reader: R,
        host: HostInfo,
        fingerprint: str,
        workspace: Workspace,
    ) -> BoundWords[R]:
        """The scheme under a key with matrix W (d_T, d_C), and its ``uses`` if it is not a plain one."""

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundWords[R]:
        """Draw the key's matrices."""
        reader = self.open_reader(workspace)
        d_T, d_C = reader.shape
        if key.is_plain:
            W, uses = draw_matrix(key, d_T=d_T, d_C=d_C).astype(np.float32), None
        else:
            uses = KeyMatrices.of(key, d_T=d_T, d_C=d_C)
            W = uses.matrix(KeyUse())
        return self.under(W, uses, reader, host, key.fingerprint, workspace)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundWords[R]:
        """A detector from stored matrices: no key, no host."""
        try:
            reader = self.restored_reader(state, workspace)
            W = np.array(state.arrays["W"], dtype=np.float32)
            uses = KeyMatrices.stored(state.meta["uses"], state.arrays) if "uses" in state.meta else None
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        return self.under(W, uses, reader, host, fingerprint, workspace)

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
        check_test(test, TESTS)
        if not all(key.is_plain for key in keys):  # each pays for its own members and payloads
            return super().detect_keys(keys, texts, host, workspace, prompts=prompts, fpr=fpr, test=test)
        return detect_keys(
            self.name,
            self.open_reader(workspace),
            keys,
            texts,
            limit=self.flatten,
            prompts=prompts,
            fpr=fpr,
            expectations=workspace.expectations,
            progress=workspace.progress,
        )

    @property
    def host_free(self) -> bool:
        """Words are found without the host's tokenizer."""
        return True

    @property
    def reads_rings(self) -> bool:
        """Each member and payload has a matrix of its own."""
        return True

    @property
    def takes_reader(self) -> bool:
        """What a language model expected in each place can replace the text's mean word."""
        return True

    @property
    def language_free(self) -> bool:
        """Unrelated texts of any language are nearly uncorrelated under one key, if they are flattened.

        Measured: docs/results/one-key.md.
        """
        return self.flatten is not None


class BoundWords(BoundScheme, Generic[R]):
    """A scheme over words under one key with matrix ``W`` (d_T, d_C), which is the use that marks.

    ``uses`` are the members, payloads and epochs of a key that has any, and ``asked`` what `for_member` was
    asked for.
    """

    tests = TESTS
    scheme: WordScheme[R]

    def __init__(
        self,
        scheme: WordScheme[R],
        W: F32,
        uses: KeyMatrices | None,
        reader: R,
        host: HostInfo,
        fingerprint: str,
        workspace: Workspace,
    ) -> None:
        super().__init__(scheme, host, fingerprint)
        self.reader = reader
        self.W = W
        self.uses = uses
        self.asked = Asked()
        # without its ways to open hosts, which may lead back here
        self.workspace = Workspace(cache=workspace.cache, progress=workspace.progress)
        self._units_per_chunk = max(_CHUNK_BYTES // (4 * (W.shape[0] + 2 * W.shape[1])), 1)
        self._device: torch.device | None = None
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        """Forget what was derived from W for marking."""

    def under(self, W: F32) -> Self:
        """The same scheme under a plain key with another matrix W (d_T, d_C)."""
        changed = copy.copy(self)
        changed.W, changed.uses, changed.asked, changed._lock = W, None, Asked(), threading.Lock()
        changed._forget()
        return changed

    @abstractmethod
    def batch(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Batch[Any]:
        """The texts of a session that begins with prompts (batch, length)."""

    def alignments(self, T: F32, C: F32) -> F32:
        """u (N,) of units T (N, d_T) in contexts C (N, d_C)."""
        return np.asarray(np.einsum("ij,ij->i", T @ self.W, C))

    # Members, payloads and epochs

    def for_member(self, *, member: int | None = None, payload: int | None = None) -> Self:
        """The same scheme, marking as one member of the key's ring and with a payload.

        Without a ``member``, each text's seed chooses one.
        """
        asked = Asked(member, payload)
        changed = self.under(self.matrices.matrix(asked.use))
        changed.uses, changed.asked = self.uses, asked
        return changed

    def by_text(self, seeds: Sequence[int]) -> list[tuple[BoundScheme, list[int]]]:
        """The schemes that mark texts with these seeds: this one, where each row has its own matrix."""
        return [(self, list(range(len(seeds))))]

    @property
    def matrices(self) -> KeyMatrices:
        """The matrices of all uses of the key; a plain key has one."""
        return self.uses or KeyMatrices.of_matrix(self.W)

    @property
    def n_hypotheses(self) -> int:
        """The number of uses among which detection chooses."""
        return 1 if self.uses is None else self.uses.count

    @property
    def config_hash(self) -> str:
        """Also identifies the member and the payload that were asked for."""
        whole = super().config_hash
        asked = self.asked
        return whole if asked == Asked() else config.config_hash(whole, asked.member, asked.payload)

    @property
    def members_chosen(self) -> int | None:
        """The members of the key's ring among which each text's seed chooses, if it does."""
        if self.uses is None or self.uses.current.members == 1 or self.asked.member is not None:
            return None
        return self.uses.current.members

    @property
    def attributes(self) -> bool:
        """Whether it can tell the holder's texts from forged ones."""
        return False

    def open_head(self) -> OpenHead | None:
        """The coordinates that a forger learns first, where texts are attributed by the others."""
        return None

    # Detection

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into words."""
        return self.reader.tokenize(texts)

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Iterator[TextMatrix]:
        """The matrices of texts, each after its prompt."""
        reading = read(self.reader, self.expectations, texts, prompts)
        return text_matrices(reading, limit=self.scheme.flatten)

    def test_texts(
        self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized], *, test: str, fpr: float
    ) -> Iterator[tuple[Evidence, Statistic]]:
        """Evidence and result of each text."""
        limit = self.scheme.flatten
        if self.uses is not None:
            yield from find_uses(self.read(texts, prompts), self.uses, fpr=fpr, head=self.open_head())
        elif self._device is not None and limit is not None:
            from dewmark.dew.torch_matrix import test_batch

            reading = read(self.reader, self.expectations, texts, prompts)
            yield from test_batch(self._device, reading, W=self.W, limit=limit)
        else:
            for text in self.read(texts, prompts):
                yield text.under(self.W), text.test(self.W)

    def follow(self, *, prompt: str | None = None, fpr: float = DEFAULT_FPR) -> SequentialDetector:
        """Watch a text while it arrives; its p-value is valid whenever you stop."""
        if not isinstance(self.expectations, NoReader | None):
            raise ConfigError("a stream is followed word by word, without a reader: leave the reader out")
        return SequentialDetector(
            self.reader, self.matrices, prompt=prompt, fpr=fpr, limit=self.scheme.flatten
        )

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The evidence of texts, as the key test sees it; under the use of the key that fits each best."""
        if self.uses is not None and self.uses.is_public:
            raise ConfigError("a public detector has half of the key, which does not find passages")
        found: list[Evidence] = []
        for text in self.read(texts, prompts):
            W = self.W if self.uses is None else self.uses.matrix(self.uses.find(text.F).use)
            found.append(KeyedEvidence.of(text.under(W), W))
        return found

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """The key test of one text's evidence, or of a passage of it."""
        return passage_test(evidence, limit=self.scheme.flatten)

    def _detection(
        self, text: Tokenized, evidence: Evidence, statistic: Statistic, *, test: str, fpr: float
    ) -> Detection:
        """The result for one text, with what is known of its origin."""
        made = super()._detection(text, evidence, statistic, test=test, fpr=fpr)
        made = dataclasses.replace(made, carrying=self.reader.carrying(text))
        return with_origin(made, statistic, self.uses) if isinstance(statistic, OriginStatistic) else made

    def _mean_score(self, evidence: Evidence) -> float:
        """The mean score per word."""
        return evidence.total / max(evidence.length, 1)

    def on(self, device: str) -> Self:
        """The same detector with its key test on a torch device; on the CPU it uses numpy."""
        from torch import device as torch_device

        moved = copy.copy(self)
        moved._device = None if device == "cpu" else torch_device(device)
        if moved._device is not None:
            moved._units_per_chunk = UNITS_PER_CHUNK
        return moved

    def state(self) -> State:
        """The key's matrices and what reading needs. As secret as the key."""
        meta: dict[str, Any] = self.reader.meta()
        arrays = {"W": self.W} | self.reader.arrays()
        if self.uses is not None:
            meta["uses"] = self.uses.meta()
            arrays |= self.uses.arrays()
        return State(meta=meta, arrays=arrays)
