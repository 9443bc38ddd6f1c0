"""Detectors: a bound scheme without a host's weights, and its folder on disk (Algorithm 2).

``detector.json`` has the configuration, the languages that it judges and what the folder belongs to,
``tokenizer/`` is the host's tokenizer (unless the scheme needs none), ``state/`` the scheme's arrays with
their checksums. A reader is stored by its name. Neither the key nor host weights are stored. Anyone with the
folder can detect the mark, so it is as secret as the key: all its files have mode 0600. A scheme that runs
its host to detect loads it by the name in ``detector.json``.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack

from dewmark.arguments import checked
from dewmark.config import cache_dir
from dewmark.detect import Examined, detect_texts
from dewmark.errors import ArtifactError, ModelError, StorageError, VocabularyError
from dewmark.opening import load_scheme, open_reader
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme, State, for_languages, reader_name
from dewmark.storage import atomic_folder, load_bundle, write_bundle
from dewmark.types import Detection
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import HostInfo, Progress, Workspace, no_host, silent

if TYPE_CHECKING:
    from dewmark.core.keys import Key
    from dewmark.hosts.base import Host
    from dewmark.opening import Opening, Reads
    from dewmark.streams import Stream

__all__ = ["Detector"]

T = TypeVar("T")

_FORMAT = 1


@checked
class DetectsMarks:
    """Detection with a bound ``scheme``, shared by `Detector` and `dewmark.Watermark`."""

    scheme: BoundScheme

    @property
    def detecting(self) -> BoundScheme:
        """The scheme as it detects: with the reader, if there is one."""
        return self.scheme

    def detect(
        self, text: str, *, prompt: str | None = None, fpr: float = DEFAULT_FPR, test: str | None = None
    ) -> Detection:
        """Score one completion, and say where in it the mark is; a prompt, if known, is only context."""
        return detect_texts([text], self.detecting, prompts=[prompt], fpr=fpr, test=test)[0].judged

    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Detection]:
        """As `detect`, in one batch."""
        found = detect_texts(texts, self.detecting, prompts=prompts, fpr=fpr, test=test)
        return [each.judged for each in found]

    def examine(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Examined]:
        """As `detect_batch`, with everything that was found (`dewmark.detect`)."""
        return detect_texts(texts, self.detecting, prompts=prompts, fpr=fpr, test=test)

    def follow(self, *, prompt: str | None = None, fpr: float = DEFAULT_FPR) -> Stream:
        """Watch a text while it arrives: ``update`` takes the next piece and returns the p-value so far.

        Unlike that of `detect`, it is valid whenever you stop.
        """
        from dewmark.streams import Stream

        return Stream([self.scheme], prompt=prompt, fpr=fpr)


@functools.partial(checked, options=load_scheme)
class Detector(DetectsMarks):
    """A bound ``scheme`` to detect with, from a key or from a folder that `save` wrote."""

    def __init__(self, scheme: BoundScheme) -> None:
        self.scheme = scheme

    @classmethod
    def from_key(cls, key: Key, **options: Unpack[Opening]) -> Detector:
        """The detector of a key's marks; ``options`` are those of `load_scheme`."""
        return cls(load_scheme(key, **options))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        verify: bool = True,
        reader: Reads = None,
        progress: Progress | None = None,
    ) -> Detector:
        """Open a saved detector; it gives the same verdicts as the scheme it was saved from.

        ``verify`` checks the tables against their checksums. The tables are memory-mapped, so that processes
        that open the same folder share them. ``reader`` replaces the one it was saved with; ``none`` leaves
        that out.
        """
        folder = Path(folder)
        index = _read_index(folder)
        scheme = SCHEMES[index["scheme"]]().with_settings(index["config"])
        host = no_host() if index["host"] is None else _read_host(folder, index)
        bundle = load_bundle(folder / "state", verify=verify)

        @functools.cache
        def open_host(name: str | None) -> Host:
            from dewmark.hosts import load_host

            loaded = load_host(name or host.name, progress=progress)
            if name is None and loaded.info.tokenizer.identity != host.tokenizer.identity:
                raise VocabularyError(
                    f"{host.name} has another tokenizer than the detector in {folder}: save it again"
                )
            return loaded

        workspace = Workspace(cache=cache_dir(), progress=progress or silent, open_host=open_host)
        state = State(meta=bundle.meta, arrays=bundle.arrays)
        bound = scheme.restore(state, host, index["key_fingerprint"], workspace)
        allowed = index["languages"]
        languages = dataclasses.replace(
            bound.languages, audited=frozenset(allowed["audited"]), every=allowed["every"]
        )
        _trim_memory()
        expectations = open_reader(index.get("reader") if reader is None else reader, progress=progress)
        return cls(for_languages(bound, languages).reading_with(expectations))

    def save(self, folder: str | Path) -> None:
        """Write the detector into a new folder."""
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StorageError(f"{folder} already exists and is not overwritten: choose another name")
        bound = self.scheme
        state, host = bound.state(), None if bound.scheme.host_free else bound.host
        index = {
            "format": _FORMAT,
            "scheme": bound.scheme.name,
            "config": bound.scheme.to_dict(),
            "key_fingerprint": bound.fingerprint,
            "host": host and {"name": host.name, "identity": host.identity, "vocab_size": host.vocab_size},
            "tokenizer": host and host.tokenizer.identity,
            "languages": {"audited": sorted(bound.languages.audited), "every": bound.languages.every},
            "reader": reader_name(bound),
        }
        with atomic_folder(folder, private=True) as temporary:
            (temporary / "state").mkdir()
            if host is not None:
                (temporary / "tokenizer").mkdir()
                host.tokenizer.save(temporary / "tokenizer")
            write_bundle(temporary / "state", meta=state.meta, arrays=state.arrays)
            (temporary / "detector.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / "detector.json"
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        known = (
            index["format"] == _FORMAT
            and {"scheme", "config", "host", "tokenizer", "key_fingerprint", "languages"} <= index.keys()
        )
    except FileNotFoundError:
        raise ArtifactError(
            f"{folder} is not a detector, it has no detector.json: create one with: dewmark detector export"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ArtifactError(f"{path} is corrupt: save the detector again") from None
    if not known:
        raise ArtifactError(f"{path} has a format that this version cannot read: save the detector again")
    return dict(index)


def _read_host(folder: Path, index: dict[str, Any]) -> HostInfo:
    from dewmark.hosts.transformers.tokenizer import HFTokenizer

    tokenizer = HFTokenizer.load(folder / "tokenizer")
    if tokenizer.identity != index["tokenizer"]:
        raise VocabularyError(
            f"{folder}/tokenizer is not the one that the detector was made with: save it anew"
        )
    return HostInfo(**index["host"], tokenizer=tokenizer, embeddings=_no_weights)


def _no_weights() -> NoReturn:
    raise ModelError("a saved detector has no host weights: it detects, but cannot mark")


def _trim_memory() -> None:
    """Return freed memory to the system: parsing a large tokenizer leaves tens of megabytes behind."""
    with contextlib.suppress(OSError, AttributeError):  # other systems than Linux with glibc
        ctypes.CDLL(None).malloc_trim(0)
