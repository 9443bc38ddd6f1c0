"""A detector in a folder: tokenizer, folded table, configuration; no key, no host weights (Algorithm 2).

``detector.json`` holds the configuration and what the folder belongs to, ``tokenizer/`` the host's tokenizer,
``state/`` the scheme's arrays with their checksums. The folder detects, so it is as secret as the key: all
its files have mode 0600.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dewmark.config import cache_dir
from dewmark.errors import ArtifactError, ModelError, StorageError, VocabularyError
from dewmark.hosts.tokenizers import HFTokenizer
from dewmark.registry import SCHEMES
from dewmark.scheme import DEFAULT_FPR, BoundScheme, HostInfo, State, Workspace
from dewmark.storage import atomic_folder, load_bundle, write_bundle
from dewmark.types import Detection

__all__ = ["Detector"]

_FORMAT = 1


class Detector:
    """An exported detector, opened: same verdicts as the scheme it was exported from."""

    def __init__(self, bound: BoundScheme) -> None:
        self.bound = bound

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key it detects."""
        return self.bound.fingerprint

    @staticmethod
    def export(bound: BoundScheme, folder: str | Path) -> None:
        """Write a detector for ``bound`` into a new folder."""
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StorageError(f"{folder} exists already and is not overwritten; choose another name")
        state = bound.state()
        index = {
            "format": _FORMAT,
            "scheme": bound.scheme.name,
            "config": bound.scheme.to_dict(),
            "key_fingerprint": bound.fingerprint,
            "host": {
                "name": bound.host.name,
                "identity": bound.host.identity,
                "vocab_size": bound.host.vocab_size,
            },
            "tokenizer": bound.host.tokenizer.identity,
        }
        with atomic_folder(folder, private=True) as temporary:
            for name in ("tokenizer", "state"):
                (temporary / name).mkdir()
            bound.host.tokenizer.save(temporary / "tokenizer")
            write_bundle(temporary / "state", meta=state.meta, arrays=state.arrays)
            (temporary / "detector.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        verify: bool = True,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Detector:
        """Open an exported detector; ``verify`` checks the tables against their checksums."""
        folder = Path(folder)
        index = _read_index(folder)
        scheme = SCHEMES[index["scheme"]]().with_settings(index["config"])
        tokenizer = HFTokenizer.load(folder / "tokenizer")
        if tokenizer.identity != index["tokenizer"]:
            raise VocabularyError(
                f"{folder}/tokenizer is not the one the detector was made with; export it again"
            )
        bundle = load_bundle(folder / "state", verify=verify)
        host = HostInfo(
            name=index["host"]["name"],
            identity=index["host"]["identity"],
            vocab_size=index["host"]["vocab_size"],
            tokenizer=tokenizer,
            embeddings=_no_weights,
        )
        workspace = (
            Workspace(cache=cache_dir())
            if progress is None
            else Workspace(cache=cache_dir(), progress=progress)
        )
        state = State(meta=bundle.meta, arrays=bundle.arrays)
        return cls(scheme.restore(state, host, index["key_fingerprint"], workspace))

    def detect(
        self, text: str, *, prompt: str | None = None, fpr: float = DEFAULT_FPR, test: str | None = None
    ) -> Detection:
        """Score one completion; a prompt, if known, serves as context only."""
        return self.bound.detect(text, prompt=prompt, fpr=fpr, test=test)

    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Detection]:
        """Score completions in one batch."""
        return self.bound.detect_batch(texts, prompts=prompts, fpr=fpr, test=test)


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
