"""Artifacts, the trained parts of schemes: folders with ``card.json`` and ``artifact.safetensors``.

The card describes the arrays: the host and encoder they were trained for, the command, seed and texts, and
their SHA-256. It has no date, so the same training gives the same bytes. An artifact is public and
independent of keys. Small ones for the default host and encoder ship with the package.

Boundary: files and their metadata; schemes interpret the arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.encoders import load_encoder
from dewmark.encoders.base import Encoder
from dewmark.errors import ArtifactError, ConfigError, VocabularyError
from dewmark.scheme import State
from dewmark.storage import atomic_write
from dewmark.workspace import HostInfo, Workspace

CARD = "card.json"
_ARRAYS = "artifact.safetensors"
_FORMAT = 1


@dataclass(frozen=True)
class Artifact:
    """A loaded artifact; two share an ``identity`` only if their cards and arrays are equal."""

    path: Path
    scheme: str
    card: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    identity: str

    @property
    def encoder(self) -> str:
        """The name of the encoder it was trained with."""
        return str(self.card["encoder"]["name"])

    def require_host(self, host: HostInfo) -> None:
        """Raise unless the host has the input embeddings and tokenizer it was trained for."""
        made_for = self.card["host"]
        if made_for["identity"] != host.identity:
            raise self._mismatch(f"the host {made_for['name']}", host.name, f"--host {host.name}")

    def require_tokenizer(self, host: HostInfo) -> None:
        """Raise unless the host has the tokenizer it was trained for; weights may differ."""
        made_for = self.card["host"]
        if made_for["tokenizer"] != host.tokenizer.identity or made_for["vocab_size"] != host.vocab_size:
            raise self._mismatch(f"the vocabulary of {made_for['name']}", host.name, f"--host {host.name}")

    def open_encoder(self, workspace: Workspace) -> Encoder:
        """The encoder it was trained with; raises if another one has the name now."""
        encoder = load_encoder(self.encoder, progress=workspace.progress)
        if self.card["encoder"]["identity"] != encoder.identity:
            raise self._mismatch(f"the encoder {self.encoder}", encoder.name, f"--encoder {encoder.name}")
        return encoder

    def _mismatch(self, made_for: str, asked: str, option: str) -> ConfigError:
        return ConfigError(
            f"the artifact {self.path} of {self.scheme} was trained for {made_for}, not for {asked}: "
            f"train one with: dewmark train {self.scheme} {option} --out DIR, and set artifact=DIR"
        )


def stored_encoder(state: State, workspace: Workspace) -> Encoder:
    """The encoder that a stored detector was made with."""
    encoder = load_encoder(state.meta["encoder"], progress=workspace.progress)
    if encoder.identity != state.meta["encoder_identity"]:
        raise VocabularyError(
            f"the detector was made with encoder {state.meta['encoder_identity']}, "
            f"but {encoder.identity} is installed; export the detector again"
        )
    return encoder


def named_encoder(encoder: Encoder) -> dict[str, str]:
    """What `stored_encoder` finds an encoder by."""
    return {"encoder": encoder.name, "encoder_identity": encoder.identity}


def shipped() -> Path:
    """The folder of the artifacts that ship with the package, one subfolder per scheme."""
    return Path(str(resources.files("dewmark_lab"))) / "data" / "artifacts"


def load_artifact(where: str | None, *, scheme: str) -> Artifact:
    """Read a scheme's artifact from a folder, or from the package if ``where`` is None."""
    folder = shipped() / scheme if where is None else Path(where).expanduser()
    card = _read_card(folder, scheme)
    if card["scheme"] != scheme:
        raise ArtifactError(f"{folder} has one of {card['scheme']}, not {scheme}: {_remedy(scheme)}")
    file = folder / _ARRAYS
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read {file}: {error.strerror}; {_remedy(scheme)}") from None
    if hashlib.sha256(data).hexdigest() != card["sha256"]:
        raise ArtifactError(f"{file} is corrupt (its checksum is wrong): {_remedy(scheme)}")
    from safetensors import numpy as safe

    arrays = dict(sorted(safe.load(data).items()))
    for array in arrays.values():
        array.flags.writeable = False
    canonical = json.dumps(card, sort_keys=True, separators=(",", ":"))
    identity = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    return Artifact(folder, scheme, card, arrays, identity)


def save_artifact(folder: Path, card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an artifact; the card comes last, so a folder with a card is complete.

    ``card`` holds ``scheme``, ``host`` (name, identity, tokenizer, vocab_size), ``encoder`` (name, identity,
    dim), ``parameters`` and ``training``, all plain JSON values.
    """
    from safetensors import numpy as safe

    plain = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    data = safe.save(plain)
    full = {
        **card,
        "format": _FORMAT,
        "arrays": {name: {"shape": list(a.shape), "dtype": str(a.dtype)} for name, a in plain.items()},
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    text = json.dumps(full, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_write(folder / _ARRAYS) as stream:
        stream.write(data)
    with atomic_write(folder / CARD) as stream:
        stream.write(text.encode())


def _read_card(folder: Path, scheme: str) -> dict[str, Any]:
    file = folder / CARD
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
        if card["format"] != _FORMAT:
            raise ArtifactError(f"{file} has format {card['format']}, expected {_FORMAT}: train it again")
        missing = {"scheme", "host", "encoder", "parameters", "training", "sha256"} - set(card)
        if missing:
            raise KeyError(*missing)
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(f"there is no artifact at {folder}: {_remedy(scheme)}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ArtifactError(f"{file} is corrupt: {_remedy(scheme)}") from None
    return dict(card)


def _remedy(scheme: str) -> str:
    return f"make one with: dewmark train {scheme} --host MODEL --out DIR"
