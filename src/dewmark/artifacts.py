"""Trained parts of schemes: a folder with ``card.json`` and ``artifact.safetensors``.

The card says what the arrays are, for which host and encoder they were made, by which command, from which
seed and texts, and holds their SHA-256; it has no date, so the same training gives the same bytes. An
artifact is public: keys are no part of it. Small ones for the default host and encoder come with the package.

Boundary: files and what they claim; what the arrays mean is up to the scheme.
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

from dewmark.errors import ArtifactError, ConfigError
from dewmark.storage import atomic_write
from dewmark.workspace import HostInfo

__all__ = ["CARD", "Artifact", "load_artifact", "save_artifact", "shipped"]

CARD = "card.json"
_ARRAYS = "artifact.safetensors"
_FORMAT = 1


@dataclass(frozen=True)
class Artifact:
    """A loaded artifact. Two of them have the same ``identity`` only if card and arrays are the same."""

    path: Path
    scheme: str
    card: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    identity: str

    @property
    def parameters(self) -> dict[str, Any]:
        """What the scheme's training wrote beside the arrays."""
        return dict(self.card["parameters"])

    @property
    def encoder(self) -> str:
        """The name of the encoder that it was trained with."""
        return str(self.card["encoder"]["name"])

    def require_host(self, host: HostInfo) -> None:
        """Refuse a host with other input embeddings or another tokenizer than it was trained for."""
        made_for = self.card["host"]
        if made_for["identity"] != host.identity:
            raise self._mismatch(f"the host {made_for['name']}", host.name, f"--host {host.name}")

    def require_tokenizer(self, host: HostInfo) -> None:
        """Refuse a host that cuts texts otherwise than the one it was trained for; weights may differ."""
        made_for = self.card["host"]
        if made_for["tokenizer"] != host.tokenizer.identity or made_for["vocab_size"] != host.vocab_size:
            raise self._mismatch(f"the vocabulary of {made_for['name']}", host.name, f"--host {host.name}")

    def require_encoder(self, identity: str, *, name: str) -> None:
        """Refuse an encoder that gives other vectors than the one it was trained with."""
        made_for = self.card["encoder"]
        if made_for["identity"] != identity:
            raise self._mismatch(f"the encoder {made_for['name']}", name, f"--encoder {name}")

    def _mismatch(self, made_for: str, asked: str, option: str) -> ConfigError:
        return ConfigError(
            f"the artifact {self.path} of {self.scheme} was trained for {made_for}, not for {asked}: "
            f"train one with: dewmark train {self.scheme} {option} --out DIR, and give it by artifact=DIR"
        )


def shipped() -> Path:
    """The folder of the artifacts that come with the package, one sub-folder per scheme."""
    return Path(str(resources.files("dewmark"))) / "data" / "artifacts"


def load_artifact(where: str | None, *, scheme: str) -> Artifact:
    """Read a scheme's artifact from a folder; None means the one that comes with the package."""
    folder = shipped() / scheme if where is None else Path(where).expanduser()
    card = _read_card(folder, scheme)
    if card["scheme"] != scheme:
        raise ArtifactError(
            f"{folder} holds an artifact of {card['scheme']}, not of {scheme}: {_remedy(scheme)}"
        )
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
    """Write an artifact; the card comes last, so a folder with a card is whole.

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
            raise ArtifactError(f"{file} has the format {card['format']}, known is {_FORMAT}: train it again")
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
