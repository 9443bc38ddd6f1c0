"""WaterPool (Huang and Wan 2025): every output has its own key, stored with the output's embedding.

Each output is marked by any inner scheme under a key derived from the master key and the row's seed; when it
is finished, its embedding and the encrypted key go into the pool (`key_pool`). Detection tries the keys of
the r most similar outputs. Unmarked text depends on none of them, so the smallest of r independent p-values
is corrected exactly: 1 − (1 − p)^r. That holds if the choice of the r outputs does not depend on their keys;
``correction="pool"`` counts all keys of the pool, and holds for any choice.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from scipy.special import ndtri

from dewmark.arrays import F32
from dewmark.config import parse_settings
from dewmark.core.keys import Key
from dewmark.core.whitening import normalize_rows
from dewmark.encoders import load_encoder
from dewmark.encoders.base import Encoder
from dewmark.errors import ConfigError
from dewmark.mark import Session
from dewmark.registry import SCHEMES
from dewmark.sampling import fresh_seeds
from dewmark.scheme import BoundScheme, Needs, Reading, Scheme, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING
from dewmark.stats.multiple_testing import sidak_min
from dewmark.types import Detection, Seeds
from dewmark.verdict import verdict_of
from dewmark.workspace import HostInfo, Workspace
from dewmark_lab.schemes.retrieval.key_pool import Pool
from dewmark_lab.schemes.token_schemes import secret_of

_DEFAULT, _MEMORY = "default", "memory"


@dataclass(frozen=True)
class WaterPool(Scheme):
    """Another scheme with one key per output, found again by meaning."""

    name: ClassVar[str] = "waterpool"
    summary: ClassVar[str] = "another scheme with a key per output, which the text's meaning finds again"
    needs: ClassVar[Needs] = Needs(final_distribution=True, encoder=True)

    inner: str = "exp"
    """The scheme that marks, with its parameters: exp, kgw, kgw:delta=3,hashing=self."""
    retrieved: Annotated[int, "at least 1"] = 3
    """Number r of most similar outputs whose keys are tried."""
    correction: Literal["retrieved", "pool"] = "retrieved"
    """How many keys the p-value is corrected for: those tried (retrieved), or all of the pool (pool)."""
    encoder: str = "use-m3"
    """Sentence encoder: use-m3, minilm, a folder or a hub id."""
    pool: str = _DEFAULT
    """Folder of the pool; default is one per key in the cache, memory keeps it with the scheme."""

    def validate(self) -> None:
        if self.marker.needs.drafts:
            raise ConfigError(f"inner must be a scheme that marks tokens, {self.inner} marks whole sentences")

    @property
    def marker(self) -> Scheme:
        """The inner scheme."""
        name, _, settings = self.inner.partition(":")
        if name == self.name:
            raise ConfigError("a pool cannot contain a pool: name another inner scheme, such as exp or kgw")
        chosen: Scheme = SCHEMES[name]()
        return chosen.with_settings({**parse_settings(filter(None, settings.split(",")))})

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundWaterPool:
        encoder = load_encoder(self.encoder, progress=workspace.progress)
        folder = None if self.pool == _MEMORY else Path(self.pool).expanduser().resolve()
        if self.pool == _DEFAULT:
            name = f"{key.fingerprint}|{encoder.identity}|{self.inner}"
            folder = workspace.cache / "pools" / hashlib.sha256(name.encode()).hexdigest()[:20]
        pool = self._open_pool(folder, key.subkey("waterpool/pool"), encoder, key.fingerprint)
        outputs = key.subkey("waterpool/outputs")
        return BoundWaterPool(
            self, host, key.fingerprint, outputs=outputs, pool=pool, encoder=encoder, workspace=workspace
        )

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundWaterPool:
        """Open the pool that a stored detector names or contains; the result detects but does not mark."""
        encoder = load_encoder(self.encoder, progress=workspace.progress)
        folder = state.meta.get("pool")
        pool = self._open_pool(Path(folder) if folder else None, secret_of(state), encoder, fingerprint)
        if folder is None:
            pool.take(np.asarray(state.arrays["entries"], dtype=np.uint8).tobytes())
        return BoundWaterPool(
            self, host, fingerprint, outputs=None, pool=pool, encoder=encoder, workspace=workspace
        )

    def _open_pool(self, folder: Path | None, secret: bytes, encoder: Encoder, fingerprint: str) -> Pool:
        return Pool(
            folder,
            secret=secret,
            dim=encoder.dim,
            encoder=encoder.identity,
            fingerprint=fingerprint,
            must_exist=self.pool != _DEFAULT,
        )


class BoundWaterPool(BoundScheme):
    """WaterPool for one master key; ``outputs`` derives the outputs' keys, which stored detectors lack."""

    scheme: WaterPool

    def __init__(
        self,
        scheme: WaterPool,
        host: HostInfo,
        fingerprint: str,
        *,
        outputs: bytes | None,
        pool: Pool,
        encoder: Encoder,
        workspace: Workspace,
    ) -> None:
        super().__init__(scheme, host, fingerprint)
        self.pool, self._outputs, self._encoder, self._workspace = pool, outputs, encoder, workspace
        self._marker = scheme.marker
        any_key = hashlib.blake2b(key=pool.secret, person=b"any", digest_size=32).digest()
        example = self._marker.bind(Key(any_key), host, workspace)
        self.tests = example.tests  # type: ignore[misc]  # the inner scheme's
        self.needs = dataclasses.replace(example.needs, encoder=True)

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Session:
        """Start marking prompts (batch, length), each row with its own key; call `finished` at the end."""
        rows = []
        for i, seed in enumerate(fresh_seeds(len(prompt_ids), seeds)):
            bound = self._marker.bind(Key(self._output_key(seed)), self.host, self._workspace)
            mask = None if attention_mask is None else attention_mask[i : i + 1]
            rows.append(bound.session(prompt_ids[i : i + 1], mask, seeds=[seed]))
        return PoolSession(rows)

    def finished(self, texts: Sequence[str], *, seeds: Sequence[int]) -> None:
        """Register finished texts with the keys that their seeds gave them."""
        pairs = zip(texts, seeds, strict=True)
        written = [(text, self._output_key(seed)) for text, seed in pairs if text.strip()]
        if written:
            kept, keys = zip(*written, strict=True)
            self.pool.add(keys, kept, self._vectors(kept))

    def whole(self, readings: Sequence[Reading], *, test: str, fpr: float) -> list[Detection]:
        """The best of the keys under which the texts that resemble each were written."""
        keys = self.pool.nearest(self._vectors([each.text.text for each in readings]), self.scheme.retrieved)
        return [self._whole(*each, fpr=fpr, test=test) for each in zip(readings, keys, strict=True)]

    def state(self) -> State:
        """The pool's secret, and the pool: its folder, or its entries. As secret as the key."""
        arrays = {"secret": np.frombuffer(self.pool.secret, dtype=np.uint8)}
        if self.pool.folder is not None:
            return State(meta={"pool": str(self.pool.folder)}, arrays=arrays)
        return State(meta={}, arrays={**arrays, "entries": np.frombuffer(self.pool.stored(), dtype=np.uint8)})

    def _whole(self, reading: Reading, keys: Sequence[bytes], *, fpr: float, test: str) -> Detection:
        if not keys:
            return self._nothing(reading, fpr=fpr, test=test)
        tried = [Key(key) for key in keys]
        found: list[Detection] = []
        for bound in self._marker.bind_keys(tried, self.host, self._workspace):
            own = bound.read(*(bound.tokenize([each.text]) for each in (reading.text, reading.prompt)))
            found += bound.whole(own, test=test, fpr=fpr)
        best = min(found, key=lambda detection: (detection.p_value, -detection.z))
        counted = len(tried) if self.scheme.correction == "retrieved" else len(self.pool)
        p_value = sidak_min(best.p_value, tests=counted)
        return dataclasses.replace(
            best,
            verdict=verdict_of(p_value, best.effective_length, fpr),
            p_value=p_value,
            z=-float(ndtri(np.clip(p_value, 5e-324, 1.0 - 2.0**-53))),  # finite
            scheme=self.scheme.name,
            key_fingerprint=self.fingerprint,
        )

    def _nothing(self, reading: Reading, *, fpr: float, test: str) -> Detection:
        """The result for any text while the pool is empty."""
        unscored = np.full(len(reading.text.ids), -1, dtype=np.int64)
        found = self._detection(
            reading, Evidence.independent(np.zeros(0), np.zeros(0), unscored), NOTHING, test=test, fpr=fpr
        )
        return dataclasses.replace(found, verdict=verdict_of(1.0, float(len(reading.text.ids)), fpr))

    def _output_key(self, seed: int) -> bytes:
        if self._outputs is None:
            raise ConfigError("an exported detector has no master key: it detects but does not mark")
        size = max((seed.bit_length() + 7) // 8, 8)
        return hashlib.blake2b(seed.to_bytes(size, "little"), key=self._outputs, digest_size=32).digest()

    def _vectors(self, texts: Sequence[str]) -> F32:
        return normalize_rows(np.asarray(self._encoder.encode(list(texts)), dtype=np.float32))


class PoolSession(Session):
    """Marks each row with its own session, under its own key."""

    def __init__(self, rows: Sequence[Session]) -> None:
        self._rows = list(rows)
        self.unbiased = all(row.unbiased for row in self._rows)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Ids (batch, length) and logits (batch, vocab) to marked logits, same shape."""
        rows = (slice(i, i + 1) for i in range(len(self._rows)))
        return torch.cat([mark(input_ids[i], scores[i]) for mark, i in zip(self._rows, rows, strict=True)])
