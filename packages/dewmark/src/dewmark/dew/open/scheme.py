"""`dew-open`: words of any script under a key.

W, the test and flattening are those of `dew`. The encoder runs when a word first occurs, and there is neither
a bias nor independent noise.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from dewmark.arrays import F32
from dewmark.dew.bound import BoundWords, WordScheme
from dewmark.dew.open.reading import OpenReader
from dewmark.dew.reading import check_stored
from dewmark.dew.ring import KeyMatrices, random_member
from dewmark.encoders import load_encoder
from dewmark.encoders.word_vectors import STATISTICS, WordStatistics, WordVectors, load_word_statistics
from dewmark.scheme import BoundScheme, Needs, State
from dewmark.text.words import VERSION
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.dew.open.texts import WordAligner, WordBatch
    from dewmark.dew.sessions import KeyedRace, KeyedSession, Texts
    from dewmark.serving_rows import Rows

__all__ = ["BoundDewOpen", "DewOpen"]

_WORDS_FOLDER = "words"
_READERS: weakref.WeakValueDictionary[tuple[DewOpen, str], OpenReader] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class DewOpen(WordScheme[OpenReader]):
    """Dual-Embedding Watermarking over words of any script."""

    name: ClassVar[str] = "dew-open"
    summary: ClassVar[str] = "dew for any word of any script, which an encoder gives its vector"
    needs: ClassVar[Needs] = Needs(encoder=True, final_distribution=True)

    encoder: str = "use-m3"
    """The encoder: a packaged name, a folder, or a hub id of a sentence-transformers model."""
    statistics: str = "default"
    """Whitening statistics of words: ``default``, or a folder written by `save_word_statistics`."""
    word_centre: Literal["running", "rare"] = "running"
    """The mean subtracted from word vectors: that of running text, for the stronger mark, or of rare words.
    """
    alpha: float = 0.8
    """Share of the sampler's randomness that comes from the key."""

    def open_reader(self, workspace: Workspace) -> OpenReader:
        """The reader of words with the encoder's vectors."""
        name = (self, str(workspace.cache))
        found = _READERS.get(name)
        if found is None:
            vectors = self._vectors(workspace)
            statistics = load_word_statistics(self.statistics, vectors=vectors, workspace=workspace)
            found = OpenReader(vectors, statistics, k=self.k, centre=self.word_centre)
            _READERS[name] = found
        return found

    def restored_reader(self, state: State, workspace: Workspace) -> OpenReader:
        """The reader of a stored detector, which holds the statistics."""
        vectors = self._vectors(workspace)
        check_stored(state, "encoder", vectors.encoder.identity)
        check_stored(state, "words", VERSION)
        arrays = (np.array(state.arrays[name], dtype=np.float32) for name in STATISTICS)
        return OpenReader(vectors, WordStatistics(*arrays), k=self.k, centre=self.word_centre)

    def _vectors(self, workspace: Workspace) -> WordVectors:
        encoder = load_encoder(self.encoder, progress=workspace.progress)
        return WordVectors(encoder, workspace.cache / _WORDS_FOLDER)

    def under(
        self,
        W: F32,
        uses: KeyMatrices | None,
        reader: OpenReader,
        host: HostInfo,
        fingerprint: str,
        workspace: Workspace,
    ) -> BoundDewOpen:
        """The scheme under a key."""
        return BoundDewOpen(self, W, uses, reader, host, fingerprint, workspace)


class BoundDewOpen(BoundWords[OpenReader]):
    """`DewOpen` under one key."""

    scheme: DewOpen

    def _forget(self) -> None:
        self._aligners: dict[torch.device, WordAligner] = {}

    def by_text(self, seeds: Sequence[int]) -> list[tuple[BoundScheme, list[int]]]:
        """Texts by the member that marks them, chosen by each text's seed unless `for_member` named it."""
        members = self.members_chosen
        if members is None:
            return super().by_text(seeds)
        chosen: dict[int, list[int]] = {}
        for place, seed in enumerate(seeds):
            chosen.setdefault(random_member(seed, members), []).append(place)
        return [
            (self.for_member(member=member, payload=self.asked.payload), places)
            for member, places in chosen.items()
        ]

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> KeyedSession[Texts]:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.dew.sessions import KeyedSession

        return KeyedSession(
            self.race,
            self.batch(prompt_ids, attention_mask),
            vocab_size=self.host.vocab_size,
            prompt_ids=prompt_ids,
            seeds=seeds,
        )

    @property
    def race(self) -> KeyedRace:
        """How tokens are drawn."""
        from dewmark.dew.sessions import KeyedRace

        return KeyedRace(self.scheme.alpha, strength=0.0, gamma=1.0, m=self.scheme.m)

    def batch(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> WordBatch:
        """The texts of a session that begins with prompts (batch, length)."""
        return self._aligner(prompt_ids.device).batch(prompt_ids, attention_mask)

    def rows(self, device: torch.device) -> Rows:
        """Mark the rows of a changing batch together."""
        from dewmark.dew.sessions import FollowedRows, draw_rows

        self.reader.vectors.load()  # seconds that requests of a running engine would otherwise wait
        return FollowedRows(self._aligner(device), draw_rows(self.race), vocab_size=self.host.vocab_size)

    def _aligner(self, device: torch.device) -> WordAligner:
        """This key's tables on a device, built for the first session there and shared by all."""
        from dewmark.dew.open.texts import WordAligner

        with self._lock:
            if device not in self._aligners:
                self._aligners[device] = WordAligner(
                    self.host, self.reader, self.W, device, progress=self.workspace.progress
                )
            return self._aligners[device]
