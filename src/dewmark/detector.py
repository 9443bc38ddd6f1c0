"""A detector in a folder: tokenizer, folded table, configuration; no key, no host weights (Algorithm 2).

``detector.json`` holds the configuration and what the folder belongs to, ``tokenizer/`` the host's tokenizer
(unless the scheme does without one), ``state/`` the scheme's arrays with their checksums. The folder detects,
so it is as secret as the key: all its files have mode 0600. A scheme that runs its host to detect finds it by
the name in ``detector.json``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
from pathlib import Path
from typing import Any, NoReturn

from dewmark.config import cache_dir
from dewmark.errors import ArtifactError, ModelError, StorageError, VocabularyError
from dewmark.hosts import load_host
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme, State
from dewmark.storage import atomic_folder, load_bundle, write_bundle
from dewmark.workspace import HostInfo, LanguageModel, Progress, Workspace, no_host, silent

__all__ = ["export_detector", "load_detector"]

_FORMAT = 1


def export_detector(bound: BoundScheme, folder: str | Path) -> None:
    """Write a detector for ``bound`` into a new folder."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(f"{folder} exists already and is not overwritten; choose another name")
    state, host = bound.state(), None if bound.scheme.host_free else bound.host
    index = {
        "format": _FORMAT,
        "scheme": bound.scheme.name,
        "config": bound.scheme.to_dict(),
        "key_fingerprint": bound.fingerprint,
        "host": host and {"name": host.name, "identity": host.identity, "vocab_size": host.vocab_size},
        "tokenizer": host and host.tokenizer.identity,
    }
    with atomic_folder(folder, private=True) as temporary:
        (temporary / "state").mkdir()
        if host is not None:
            (temporary / "tokenizer").mkdir()
            host.tokenizer.save(temporary / "tokenizer")
        write_bundle(temporary / "state", meta=state.meta, arrays=state.arrays)
        (temporary / "detector.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def load_detector(
    folder: str | Path, *, verify: bool = True, progress: Progress | None = None
) -> BoundScheme:
    """Open an exported detector; it gives the verdicts of the scheme it was exported from.

    ``verify`` checks the tables against their checksums. The tables are memory-mapped, so that processes
    which open the same folder share them.
    """
    folder = Path(folder)
    index = _read_index(folder)
    scheme = SCHEMES[index["scheme"]]().with_settings(index["config"])
    host = no_host() if index["host"] is None else _host(folder, index)
    bundle = load_bundle(folder / "state", verify=verify)

    @functools.cache
    def open_host(name: str | None) -> LanguageModel:
        loaded = load_host(name or host.name, progress=progress)
        if name is None and loaded.info.tokenizer.identity != host.tokenizer.identity:
            raise VocabularyError(
                f"{host.name} has another tokenizer than the detector in {folder}: export it again"
            )
        return loaded

    workspace = Workspace(cache=cache_dir(), progress=progress or silent, open_host=open_host)
    state = State(meta=bundle.meta, arrays=bundle.arrays)
    bound: BoundScheme = scheme.restore(state, host, index["key_fingerprint"], workspace)
    _give_back_memory()
    return bound


def _host(folder: Path, index: dict[str, Any]) -> HostInfo:
    tokenizer = HFTokenizer.load(folder / "tokenizer")
    if tokenizer.identity != index["tokenizer"]:
        raise VocabularyError(
            f"{folder}/tokenizer is not the one the detector was made with; export it again"
        )
    return HostInfo(**index["host"], tokenizer=tokenizer, embeddings=_no_weights)


def _give_back_memory() -> None:
    """Let the C library return what parsing left over: tens of megabytes after a large tokenizer."""
    with contextlib.suppress(OSError, AttributeError):  # other systems than Linux with glibc
        ctypes.CDLL(None).malloc_trim(0)


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / "detector.json"
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        known = (
            index["format"] == _FORMAT
            and {"scheme", "config", "host", "tokenizer", "key_fingerprint"} <= index.keys()
        )
    except FileNotFoundError:
        raise ArtifactError(
            f"{folder} is no detector: it has no detector.json; make one with: dewmark detector export"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ArtifactError(f"{path} is corrupt; export the detector again") from None
    if not known:
        raise ArtifactError(f"{path} has a format this version does not read; export the detector again")
    return dict(index)


def _no_weights() -> NoReturn:
    raise ModelError("an exported detector holds no host weights: it detects, it does not mark")
