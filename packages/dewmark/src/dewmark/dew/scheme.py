"""`dew`, the default scheme: the words of a lexicon under a key."""

from __future__ import annotations

import functools
import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dewmark.arrays import F32, Mask
from dewmark.config import check_rules
from dewmark.dew.attribution import head_of
from dewmark.dew.bound import BoundWords, WordScheme
from dewmark.dew.origin import OpenHead
from dewmark.dew.reading import LexiconReader, check_stored
from dewmark.dew.ring import Asked, KeyMatrices, KeyUse, random_member
from dewmark.encoders.lexicon import lexicon_languages, load_lexicon
from dewmark.errors import ConfigError
from dewmark.scheme import Scheme, State
from dewmark.text.words import VERSION
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.dew.engine_rows import LexiconRows, MatrixOf
    from dewmark.dew.race import LexiconAligner, LexiconBatch, LexiconSession, WordRace

__all__ = ["DEW", "BoundDEW"]

STRENGTHS = {"exact": 0.0, "free": 0.35, "strong": 2.0}
_MATRICES_KEPT = 256  # of members and payloads, on a device
_ELSEWHERE = {
    **dict.fromkeys(("encoder", "statistics", "vocabulary", "word_centre"), "dew-open"),
    **dict.fromkeys(("context_encoding", "donor", "mode", "n", "nucleus", "projection"), "dew-paper"),
    **dict.fromkeys(("sampler", "units", "whiten_contexts", "whiten_tokens"), "dew-paper"),
}
"""Settings of the other schemes of this family."""
_READERS: weakref.WeakValueDictionary[tuple[str, int, str], LexiconReader] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class DEW(WordScheme[LexiconReader]):
    """Dual-Embedding Watermarking over the words of a lexicon (`dewmark.dew.reference`)."""

    name: ClassVar[str] = "dew"
    summary: ClassVar[str] = "dual-embedding watermark: keyed alignment of words with the words before them"

    lexicon: str = "default"
    """The lexicon: ``default``, or a folder written by ``dewmark build-lexicon``."""
    flatten: float | None = 2.5
    """As in `WordScheme`, but higher: the packaged reader subtracts most of what texts have in common."""
    strength: float = STRENGTHS["free"]
    """λ, the most that a logit gains beside the keyed noise: ``exact``, ``free``, ``strong`` or a number."""

    def validate(self) -> None:
        """Reject values out of range."""
        super().validate()
        check_rules(
            (self.strength >= 0.0, "strength", "be exact, free, strong or a number from 0 on", self.strength),
        )

    @property
    def languages(self) -> frozenset[str] | None:
        """The languages of the lexicon's words."""
        return lexicon_languages(self.lexicon)

    def with_settings(self, settings: dict[str, object]) -> Scheme:
        """A copy with some fields changed, by their public names."""
        for name in settings:
            other = _ELSEWHERE.get(name.rstrip("_"))
            if other is not None:
                raise ConfigError(f"dew has no setting {name!r}: use the scheme {other}")
        strength = settings.get("strength")
        if isinstance(strength, str):
            try:
                settings = settings | {
                    "strength": STRENGTHS[strength] if strength in STRENGTHS else float(strength)
                }
            except ValueError:
                said = f"strength must be exact, free, strong or a number from 0 on, got {strength!r}"
                raise ConfigError(said) from None
        return super().with_settings(settings)

    def open_reader(self, workspace: Workspace) -> LexiconReader:
        """The reader of the lexicon."""
        name = (self.lexicon, self.k, str(workspace.cache))
        found = _READERS.get(name)
        if found is None:
            found = LexiconReader(load_lexicon(self.lexicon, workspace=workspace), k=self.k)
            _READERS[name] = found
        return found

    def restored_reader(self, state: State, workspace: Workspace) -> LexiconReader:
        """The reader of a stored detector, which names its lexicon."""
        reader = self.open_reader(workspace)
        check_stored(state, "lexicon", reader.lexicon.identity)
        check_stored(state, "words", VERSION)
        return reader

    def under(
        self,
        W: F32,
        uses: KeyMatrices | None,
        reader: LexiconReader,
        host: HostInfo,
        fingerprint: str,
        workspace: Workspace,
    ) -> BoundDEW:
        """The scheme under a key."""
        return BoundDEW(self, W, uses, reader, host, fingerprint, workspace)


class BoundDEW(BoundWords[LexiconReader]):
    """DEW under one key."""

    scheme: DEW

    # Attribution

    @property
    def attributes(self) -> bool:
        """Whether it can tell the holder's texts from forged ones: a ring can, a plain key cannot."""
        return self.uses is not None and self.uses.attributes

    def open_head(self) -> OpenHead | None:
        """The coordinates that a forger learns first, where texts are attributed by the others."""
        return self.head if self.attributes else None

    def head(self) -> Mask:
        """The coordinates that a forger learns first, (d_T, d_C)."""
        return head_of(self.reader, members=1 if self.uses is None else self.uses.current.members)

    def public(self) -> BoundDEW:
        """The half of this detector that may be published: it detects, but attributes nothing."""
        uses = self.matrices.published(self.head())
        changed = self.under(uses.matrix(KeyUse()))
        changed.uses = uses
        return changed

    # Marking

    def member_of(self, seed: int) -> int | None:
        """The member that marks a text with this seed; None under a key without members."""
        if self.members_chosen is not None:
            return random_member(seed, self.members_chosen)
        return self.asked.member if self.uses is not None else None

    def _forget(self) -> None:
        self._aligners: dict[torch.device, LexiconAligner] = {}

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> LexiconSession:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.dew.race import LexiconSession

        return LexiconSession(
            self.race,
            self.batch(prompt_ids, attention_mask, seeds=seeds),
            vocab_size=self.host.vocab_size,
            prompt_ids=prompt_ids,
            seeds=seeds,
        )

    @property
    def race(self) -> WordRace:
        """How tokens are drawn."""
        from dewmark.dew.noise import mixture_of
        from dewmark.dew.race import WordRace

        return WordRace(mixture_of(alpha=self.scheme.alpha, strength=self.scheme.strength), self.scheme.m)

    def batch(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> LexiconBatch:
        """The texts of a session that begins with prompts (batch, length)."""
        from dewmark.dew.race import LexiconBatch

        W = self._members_of(len(prompt_ids), seeds, prompt_ids.device)
        return LexiconBatch(self._aligner(prompt_ids.device), prompt_ids, W=W)

    def rows(self, device: torch.device) -> LexiconRows:
        """Mark the rows of a changing batch together."""
        from dewmark.dew.engine_rows import LexiconRows

        return LexiconRows(
            self.race,
            self._aligner(device),
            vocab_size=self.host.vocab_size,
            matrix_of=self._matrix_of(device),
        )

    def _members_of(
        self, rows: int, seeds: Sequence[int] | None, device: torch.device
    ) -> torch.Tensor | None:
        """The rows' own matrices (rows, d_T, d_C), if their seeds choose members of a ring."""
        import torch

        if self.members_chosen is None:
            return None
        matrix_of = self._matrix_of(device)
        drawn = seeds or [secrets.randbits(63) for _ in range(rows)]
        found = [matrix_of(seed, None, None) for seed in drawn]
        return torch.stack([each for each in found if each is not None])

    def _matrix_of(self, device: torch.device) -> MatrixOf:
        """A text's matrix on a device by its seed, member and payload; None for W."""
        import torch

        @functools.lru_cache(maxsize=_MATRICES_KEPT)
        def on_device(use: KeyUse) -> torch.Tensor:
            return torch.from_numpy(self.matrices.matrix(use)).to(device)

        def matrix_of(seed: int, member: int | None, payload: int | None) -> torch.Tensor | None:
            among = self.members_chosen
            if member is None and payload is None and among is None:
                return None
            if member is None:
                member = self.asked.member if among is None else random_member(seed, among)
            return on_device(Asked(member, self.asked.payload if payload is None else payload).use)

        return matrix_of

    def _aligner(self, device: torch.device) -> LexiconAligner:
        """This key's tables on a device, built for the first session there and shared by all."""
        from dewmark.dew.race import LexiconAligner
        from dewmark.dew.word_step import word_tables

        with self._lock:
            if device not in self._aligners:
                tables = word_tables(self.host, self.reader, device=device, workspace=self.workspace)
                self._aligners[device] = LexiconAligner(tables, self.W, k=self.scheme.k)
            return self._aligners[device]
