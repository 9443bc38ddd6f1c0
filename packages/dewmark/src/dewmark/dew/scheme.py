"""`dew`, the default scheme: the words of a lexicon under a key whose secret is one matrix W.

It detects by the text's matrix (`dewmark.dew.matrix`), and so has members, payloads and epochs
(`dewmark.dew.ring`), streams (`dewmark.dew.sequential`), readers and stored detectors alike.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np

from dewmark import config
from dewmark.arrays import F32
from dewmark.core.keys import Key
from dewmark.core.projections import draw_matrix
from dewmark.dew.form import FormKey
from dewmark.dew.key_test import whole_under
from dewmark.dew.matrix import KeyedEvidence, TextMatrix, UseKey, WordReading, passage_test, text_matrices
from dewmark.dew.origin import UseEvidence, tested_use, with_origin
from dewmark.dew.reading import LexiconReader, check_stored, read
from dewmark.dew.reference import ALPHA, BETA, CANDIDATES, CONTEXT, LAMBDA, LIMIT
from dewmark.dew.ring import AskedUse, KeyMatrices, KeyUse, random_member
from dewmark.dew.sequential import SequentialDetector
from dewmark.encoders.lexicon import lexicon_languages, load_lexicon
from dewmark.errors import ConfigError
from dewmark.scheme import BoundScheme, Needs, Reading, Scheme, State, reader_name
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.text.words import VERSION
from dewmark.types import Detection, Seeds
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import NO_READER, HostInfo, Texts, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.dew.race import KeyOf, WordRace, WordRows, WordSession
    from dewmark.dew.word_step import KeyTensors, WordTables
    from dewmark.mark import Rows

__all__ = ["DEW", "BoundDEW"]

STRENGTHS = {"exact": 0.0, "free": LAMBDA, "strong": 2.0}
TESTS = ("key",)
_MATRICES_KEPT = 256  # of members and payloads, on a device
_READERS: weakref.WeakValueDictionary[tuple[str, int, str], LexiconReader] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class DEW(Scheme):
    """Dual-Embedding Watermarking over the words of a lexicon (`dewmark.dew.reference`)."""

    name: ClassVar[str] = "dew"
    summary: ClassVar[str] = "dual-embedding watermark: keyed alignment of words with the words before them"
    needs: ClassVar[Needs] = Needs(final_distribution=True)  # the session draws the token
    reads_rings: ClassVar[bool] = True
    host_free: ClassVar[bool] = True
    takes_reader: ClassVar[bool] = True
    language_free: ClassVar[bool] = True  # once texts are flattened: docs/results/one-key.md

    k: Annotated[int, "at least 1"] = CONTEXT
    """Context width: how many words before the scored one."""
    alpha: Annotated[float, "in (0, 1]"] = ALPHA
    """Share of the sampler's randomness that comes from the key by the meaning of words."""
    beta: Annotated[float, "in [0, 1)"] = BETA
    """Share of it that comes from the key by the exact words, at most what alpha leaves; 0 is none."""
    m: Annotated[int, "at least 1"] = CANDIDATES
    """How many of the likeliest tokens are scored."""
    flatten: Annotated[float, "at least 1"] = LIMIT
    """How many times the root mean square of all directions one direction of the text's evidence may have
    before the key test cuts it."""
    lexicon: str = "default"
    """The lexicon: ``default``, or a folder written by ``dewmark build-lexicon``."""
    strength: Annotated[float, "at least 0"] = STRENGTHS["free"]
    """λ, the most that a logit gains beside the keyed noise: ``exact``, ``free``, ``strong`` or a number."""

    def validate(self) -> None:
        """Raise `ConfigError` if the key has more than all of the randomness."""
        if self.alpha + self.beta > 1.0:
            raise ConfigError(f"alpha + beta is at most 1, got {self.alpha} + {self.beta}: lower one of them")

    @property
    def languages(self) -> frozenset[str] | None:
        """The languages of the lexicon's words."""
        return lexicon_languages(self.lexicon)

    def with_settings(self, settings: dict[str, object]) -> Scheme:
        """A copy with some fields changed, by their public names."""
        strength = settings.get("strength")
        if isinstance(strength, str):
            try:
                chosen = STRENGTHS[strength] if strength in STRENGTHS else float(strength)
            except ValueError:
                said = f"strength must be exact, free, strong or a number from 0 on, got {strength!r}"
                raise ConfigError(said) from None
            settings = settings | {"strength": chosen}
        alpha = settings.get("alpha")
        if isinstance(alpha, float | int) and "beta" not in settings:  # what is left
            settings = settings | {"beta": max(min(self.beta, 1.0 - alpha), 0.0)}
        return super().with_settings(settings)

    def open_reader(self, workspace: Workspace) -> LexiconReader:
        """The reader of the lexicon, shared by all keys of a process."""
        name = (self.lexicon, self.k, str(workspace.cache))
        found = _READERS.get(name)
        if found is None:
            found = LexiconReader(load_lexicon(self.lexicon, workspace=workspace), k=self.k)
            _READERS[name] = found
        return found

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundDEW:
        """Draw the key's matrices."""
        reader = self.open_reader(workspace)
        d = reader.lexicon.dim
        if key.is_plain:
            form = FormKey.of(key) if self.beta else None
            own = UseKey(draw_matrix(key, d_T=d, d_C=d).astype(np.float32), form)
            return BoundDEW(self, own, None, reader, host, key.fingerprint, workspace)
        uses = KeyMatrices.of(key, d_T=d, d_C=d, form=self.beta > 0.0)
        return BoundDEW(self, uses.key(KeyUse()), uses, reader, host, key.fingerprint, workspace)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundDEW:
        """A detector from stored matrices: no key, no host."""
        reader = self.open_reader(workspace)
        check_stored(state, "lexicon", reader.lexicon.identity)
        check_stored(state, "words", VERSION)
        form = FormKey.stored(state.arrays["form"]) if "form" in state.arrays else None
        own = UseKey(np.array(state.arrays["W"], dtype=np.float32), form)
        uses = KeyMatrices.stored(state.meta["uses"], state.arrays) if "uses" in state.meta else None
        return BoundDEW(self, own, uses, reader, host, fingerprint, workspace)

    def whole_under(
        self, keys: Sequence[Key], readings: Sequence[Reading], *, fpr: float, workspace: Workspace
    ) -> list[list[Detection]] | None:
        """The texts' matrices under all keys in one product; None where keys have members or payloads."""
        if not all(key.is_plain for key in keys):  # each pays for its own
            return None
        return whole_under(
            self.name,
            keys,
            [each for each in readings if isinstance(each, WordReading)],
            form=self.beta > 0.0,
            fpr=fpr,
            reader=None if workspace.expectations is None else workspace.expectations.name,
            progress=workspace.progress,
        )


class BoundDEW(BoundScheme):
    """DEW under one key, whose numbers ``own`` are those of the use that marks.

    ``uses`` are the members, payloads and epochs of a key that has any, and ``asked`` what `for_member` was
    asked for.
    """

    tests = TESTS
    scheme: DEW

    def __init__(
        self,
        scheme: DEW,
        own: UseKey,
        uses: KeyMatrices | None,
        reader: LexiconReader,
        host: HostInfo,
        fingerprint: str,
        workspace: Workspace,
    ) -> None:
        super().__init__(scheme, host, fingerprint)
        self.reader, self.own, self.uses = reader, own, uses
        self.asked = AskedUse()
        # without its ways to open hosts, which may lead back here
        self.workspace = Workspace(cache=workspace.cache, progress=workspace.progress)
        self._lock = threading.Lock()
        self._tables: dict[torch.device, WordTables] = {}

    def under(self, own: UseKey) -> Self:
        """The same scheme under a plain key with other numbers."""
        return self._with(own=own, uses=None, asked=AskedUse())

    def alignments(self, T: F32, C: F32) -> F32:
        """u (N,) of units T (N, d_T) in contexts C (N, d_C)."""
        return np.asarray(np.einsum("ij,ij->i", T @ self.own.W, C))

    # Members, payloads and epochs

    def for_member(self, *, member: int | None = None, payload: int | None = None) -> Self:
        """The same scheme, marking as one member of the key's ring and with a payload.

        Without a ``member``, each text's seed chooses one.
        """
        asked = AskedUse(member, payload)
        return self._with(own=self.matrices.key(asked.use), asked=asked)

    @property
    def matrices(self) -> KeyMatrices:
        """The matrices of all uses of the key; a plain key has one."""
        return self.uses or KeyMatrices.plain(self.own)

    @property
    def n_hypotheses(self) -> int:
        """The number of uses among which detection chooses."""
        return 1 if self.uses is None else self.uses.count

    @property
    def config_hash(self) -> str:
        """Also identifies the member and the payload that were asked for."""
        whole = super().config_hash
        asked = self.asked
        return whole if asked == AskedUse() else config.config_hash(whole, asked.member, asked.payload)

    @property
    def members_chosen(self) -> int | None:
        """The members of the key's ring among which each text's seed chooses, if it does."""
        if self.uses is None or self.uses.current.members == 1 or self.asked.member is not None:
            return None
        return self.uses.current.members

    def leading_member(self, text: str) -> int:
        """The member of the key's ring under which a text scores highest, with the payload asked for."""
        (reading,) = self.read(self.tokenize([text]), self.tokenize([""]))
        assert isinstance(reading, WordReading)
        return self.matrices.current.leading_member(reading.matrix, payload=self.asked.payload or 0)

    def member_of(self, seed: int) -> int | None:
        """The member that marks a text with this seed; None under a key without members."""
        if self.members_chosen is not None:
            return random_member(seed, self.members_chosen)
        return self.asked.member if self.uses is not None else None

    # Attribution

    @property
    def attributes(self) -> bool:
        """Whether it can tell the holder's texts from forged ones; a public detector cannot."""
        return self.own.form is not None

    def public(self) -> BoundDEW:
        """This detector without form, which may be published: it detects, but attributes nothing."""
        uses = self.matrices.published()
        return self._with(own=uses.key(KeyUse()), uses=uses, asked=AskedUse())

    # Marking

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> WordSession:
        """Start marking a batch of prompts (batch, length)."""
        return self._word_rows(prompt_ids.device).stay(prompt_ids, seeds=seeds)

    def rows(self, device: torch.device) -> Rows[Any]:
        """Mark the texts of an engine's changing batch together; under a policy, each by its own writer."""
        return self._word_rows(device) if self.policy is None else super().rows(device)

    def follow_alignments(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """From ids (batch, length) that grow and candidates (batch, m) to u (batch, m) of the candidates."""
        import torch

        session, W = self.session(prompt_ids), torch.from_numpy(self.own.W).to(prompt_ids.device)
        return lambda ids, candidates: session.read(ids).align(candidates, W).u

    @property
    def race(self) -> WordRace:
        """How tokens are drawn."""
        from dewmark.dew.noise import mixture_of
        from dewmark.dew.race import WordRace

        scheme = self.scheme
        beta = 0.0 if self.own.form is None else scheme.beta  # who knows no h marks without it
        return WordRace(mixture_of(alpha=scheme.alpha, beta=beta, strength=scheme.strength), scheme.m)

    def _word_rows(self, device: torch.device) -> WordRows:
        from dewmark.dew.race import WordRows
        from dewmark.dew.word_step import key_tensors

        own, k = key_tensors(self.own, device), self.scheme.k
        return WordRows(self.race, self.word_tables(device), own, k=k, key_of=self._key_of(device))

    def _key_of(self, device: torch.device) -> KeyOf:
        """A text's key on a device by its seed, member and payload; None for the key's own."""
        from dewmark.dew.word_step import key_tensors

        @functools.lru_cache(maxsize=_MATRICES_KEPT)
        def on_device(use: KeyUse) -> KeyTensors:
            return key_tensors(self.matrices.key(use), device)

        def key_of(seed: int, member: int | None, payload: int | None) -> KeyTensors | None:
            among = self.members_chosen
            if member is None and payload is None and among is None:
                return None
            if member is None:
                member = self.asked.member if among is None else random_member(seed, among)
            return on_device(AskedUse(member, self.asked.payload if payload is None else payload).use)

        return key_of

    def word_tables(self, device: torch.device) -> WordTables:
        """The host's tables on a device, shared by all keys while one of them is used."""
        from dewmark.dew.word_step import word_tables

        with self._lock:
            self._tables[device] = word_tables(
                self.host, self.reader.lexicon, device=device, workspace=self.workspace
            )
            return self._tables[device]

    # Detection

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into words."""
        return self.reader.tokenize(texts)

    def read(self, texts: Texts, prompts: Texts) -> list[Reading]:
        """The words of each text, after its prompt, as one matrix."""
        batch = read(self.reader, self.expectations, texts, prompts)
        shares, matrices = batch.carrying, text_matrices(batch, limit=self.scheme.flatten)
        del batch  # it goes as soon as the matrices are made
        return [WordReading(*each) for each in zip(texts, prompts, matrices, shares, strict=True)]

    @property
    def reads_as(self) -> Hashable:
        """Detectors with the same lexicon, limit and reader read alike."""
        return (BoundDEW, self.reader, self.scheme.flatten, self.expectations)

    def evidence(self, readings: Sequence[Reading], *, test: str | None = None) -> Iterator[Evidence]:
        """Each text under W, or under the use of the key that fits it best."""
        for reading in readings:
            assert isinstance(reading, WordReading)
            if self.uses is None:
                yield reading.matrix.under(self.own)
                continue
            found = self.uses.find(reading.matrix)
            evidence = reading.matrix.under(self.uses.key(found.use))
            yield UseEvidence(**vars(evidence), found=found)

    def views(self, evidence: Evidence) -> Sequence[Evidence]:
        """Meaning alone, and together with form where that is known."""
        known = isinstance(evidence, KeyedEvidence) and isinstance(evidence.whole, TextMatrix)
        return evidence.whole.views(evidence) if known else [evidence]

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """The key test of a whole text, flattened already, or of a passage of it."""
        if not isinstance(evidence.whole, TextMatrix):
            return passage_test(evidence, limit=self.scheme.flatten)
        if isinstance(evidence, UseEvidence) and evidence.found is not None:
            return tested_use(evidence.whole, evidence.found)
        return evidence.whole.test(self.own)

    def follow(self, *, prompt: str | None = None, fpr: float = DEFAULT_FPR) -> SequentialDetector:
        """Watch a text while it arrives; its p-value is valid whenever you stop."""
        if reader_name(self) not in (None, NO_READER.name):
            raise ConfigError("a stream is followed word by word, without a reader: leave the reader out")
        limit = self.scheme.flatten
        return SequentialDetector(self.reader, self.matrices, prompt=prompt, fpr=fpr, limit=limit)

    def _detection(
        self, reading: Reading, evidence: Evidence, statistic: Statistic, *, test: str, fpr: float
    ) -> Detection:
        """The result for one text, with what is known of its origin."""
        assert isinstance(reading, WordReading)
        made = super()._detection(reading, evidence, statistic, test=test, fpr=fpr)
        return with_origin(dataclasses.replace(made, carrying=reading.carrying), statistic, self.uses)

    def state(self) -> State:
        """The key's matrices and what reading needs. As secret as the key."""
        meta: dict[str, Any] = {"lexicon": self.reader.lexicon.identity, "words": VERSION}
        arrays: dict[str, Any] = {"W": self.own.W}
        if self.own.form is not None:
            arrays["form"] = self.own.form.words
        if self.uses is not None:
            meta["uses"] = self.uses.meta()
            arrays |= self.uses.arrays()
        return State(meta=meta, arrays=arrays)
