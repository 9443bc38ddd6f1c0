"""Scorers: batches of texts in, one result per text out, under one key or several.

A `DetectorSpec` names the keys or the exported detector to score texts with. It holds paths and names only,
never a key, so it can be sent to other processes and machines, which `open` it from their own files.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dewmark.batch.inputs import Document, warn_other_scheme
from dewmark.batch.keyring import Kind, load_keys, read_kinds
from dewmark.core.keys import Key, is_engine_key
from dewmark.detect import Examined, KeySet, detect_texts
from dewmark.detector import Detector
from dewmark.errors import ConfigError, MissingExtraError, ModelError
from dewmark.manifests import layers
from dewmark.opening import Keys, load_scheme
from dewmark.registry import AUDITS, SCHEMES
from dewmark.scheme import BoundScheme, check_test, for_languages
from dewmark.types import EMPIRICAL, Calibration, Detection
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Progress, silent

_BATCH_SIZE = 32
_RESULTS_PER_BATCH = 1 << 18  # texts × keys


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of one text.

    ``row`` is the result as JSON values, and ``detection`` that of the best of several keys, after all
    corrections; ``located`` is everything that was found.
    """

    id: str | int | None
    text: str
    detection: Detection
    row: dict[str, Any]
    located: Examined
    key_file: str | None = None


class BackTranslation(Protocol):
    """Translates texts before they are tested; dewmark-lab has one."""

    def identity(self) -> dict[str, str]:
        """The identity of every translator that may be asked."""

    def versions(self, texts: Sequence[str], *, progress: Progress) -> list[list[str]]:
        """The translations of each text, of which there may be none; how many must not depend on a key."""


@dataclass(frozen=True)
class DetectorSpec:
    """What to score texts with, by names and paths.

    Either ``detector``, an exported folder, or ``keys`` with a host and a scheme. ``keys`` are key files, or
    folders of ``*.key`` files; several keys, or a folder, ask which key a text carries. A folder's
    ``keyring.toml`` gives keys another host and scheme (`dewmark.batch.keyring`).

    - ``calibration``: a file that ``dewmark calibrate`` wrote, for one key; z becomes a rank among its texts.
    - ``tokens`` adds every token's score to the rows, ``coverage`` says where in a short marked text the mark
      is; of a long one it is always said.
    - ``attempts`` counts the versions of each text that are tried.
    - ``translate_back`` also scores translations of the texts, and counts all of them.
    - ``reader``: a host's name or path, ``host``, ``none``, or None for that of the exported detector.
    - ``roots`` are certificates under which signers of manifests are trusted.
    """

    keys: tuple[Path, ...] = ()
    detector: Path | None = None
    host: str | None = None
    scheme: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fpr: float = DEFAULT_FPR
    test: str | None = None
    tokens: bool = False
    calibration: Path | None = None
    coverage: bool = False
    attempts: int = 1
    translate_back: BackTranslation | None = None
    reader: str | None = None
    roots: Path | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.fpr < 1.0:
            raise ConfigError(f"fpr must lie in (0, 1), got {self.fpr:g}")
        if self.attempts < 1:
            raise ConfigError(f"attempts must be at least 1, got {self.attempts}")
        if self.calibration is None:
            if self.test == EMPIRICAL:
                raise ConfigError("the empirical test needs a calibration, made by: dewmark calibrate")
        elif self.test not in (None, EMPIRICAL):
            raise ConfigError(f"a calibration is for the empirical test, not {self.test}: leave out one")
        elif self.many_keys:
            raise ConfigError("a calibration belongs to one key: give one key with it")
        elif self.translate_back is not None:
            raise ConfigError("a calibration holds for texts as they are: leave out translating back")

    @property
    def many_keys(self) -> bool:
        """Whether to ask which of several keys a text carries."""
        return len(self.keys) > 1 or any(path.is_dir() for path in self.keys)

    def absolute(self) -> DetectorSpec:
        """The same with absolute paths, for processes with another working directory."""
        paths: dict[str, Any] = {
            name: getattr(self, name) and getattr(self, name).absolute()
            for name in ("detector", "calibration", "roots")
        }
        keys = (path if is_engine_key(path) else path.absolute() for path in self.keys)
        return dataclasses.replace(self, keys=tuple(keys), **paths)

    def open(self, *, progress: Progress = silent) -> Scorer:
        """Load keys, detector and calibration, and check that they belong together."""
        groups, not_tested = self._open_groups(progress)
        bound = groups[0].bound
        for group in groups:
            check_test(self.test, (*group.bound.tests, EMPIRICAL))
        calibration = None
        if self.calibration is not None:
            calibration = AUDITS["calibration"].load(self.calibration)
            calibration.check(
                scheme=bound.scheme.name, config_hash=bound.config_hash, key_fingerprint=bound.fingerprint
            )
            # ranks among the user's own unmarked texts do not depend on the encoder's languages
            bound = for_languages(bound, dataclasses.replace(bound.languages, every=True))
        groups[0] = dataclasses.replace(groups[0], bound=bound)
        return Scorer(self, groups, not_tested, calibration=calibration, progress=progress)

    def _open_groups(self, progress: Progress) -> tuple[list[_Group], list[dict[str, str]]]:
        """Keys that make marks of one kind, together; and the keys of kinds that cannot be tested here."""
        own = Kind(self.scheme, self.host, dict(self.settings))
        folders = filter(Path.is_dir, self.keys)
        named = {str(file): kind for path in folders for file, kind in read_kinds(path).items()}
        keys = load_keys(self.keys) if self.many_keys else {}
        kinds: list[tuple[Kind, dict[str, Key]]] = [] if keys else [(own, {})]
        for name, key in keys.items():
            kind = named.get(name, own)
            same = next((some for each, some in kinds if each == kind), None)
            if same is None:
                kinds.append((kind, same := {}))
            same[name] = key
        groups, not_tested = [], []
        for kind, some in kinds:
            takes = kind is own or SCHEMES[kind.scheme or "dew"]().takes_reader
            try:
                bound = open_detector(
                    folder=self.detector,
                    key=next(iter(some.values())) if some else next(iter(self.keys), None),
                    host=kind.host,
                    scheme=kind.scheme,
                    settings=kind.settings,
                    reader=self.reader if takes else None,
                    progress=progress,
                )
            except (ModelError, MissingExtraError) as error:
                if len(kinds) == 1:
                    raise
                scheme, reason = kind.scheme or "dew", f"no tokenizer: {error}"
                not_tested += [{"key_file": name, "scheme": scheme, "reason": reason} for name in some]
                continue
            groups.append(_Group(bound, some))
        if not groups:
            raise ModelError(f"no key of the keyring can be tested: {not_tested[0]['reason']}")
        return groups, not_tested


@dataclass(frozen=True)
class _Group:
    """Keys whose marks are of one kind, by the names of their files, and the scheme under the first.

    No keys: the scheme has the only one.
    """

    bound: BoundScheme
    keys: Mapping[str, Key]


class Scorer:
    """Scores batches of texts under one key or several.

    ``identity`` names everything in the detector that decides the results: scheme, configuration, keys.
    ``bound`` is the scheme under the first key, ``key_files`` has the names of several by their fingerprints,
    ``not_tested`` the keys whose tokenizer is missing, and ``batch_size`` is a good number of texts per call.
    """

    def __init__(
        self,
        spec: DetectorSpec,
        groups: Sequence[_Group],
        not_tested: Sequence[Mapping[str, str]] = (),
        *,
        calibration: Calibration | None = None,
        progress: Progress = silent,
    ) -> None:
        """``groups`` are the keys of each kind of mark."""
        self._groups, self.not_tested = groups, not_tested
        self._places = [(group, name) for group in groups for name in group.keys]
        keys = {name: group.keys[name] for group, name in self._places}
        bound = groups[0].bound
        self._spec, self.bound, self._progress = spec, bound, progress
        self._calibration = calibration
        self._test = spec.test if calibration is None else calibration.test
        self.key_files = {key.fingerprint: name for name, key in keys.items()}
        fingerprints = list(self.key_files) or [bound.fingerprint]
        self.identity: dict[str, object] = {
            "scheme": ", ".join(group.bound.scheme.name for group in groups),
            "config_hash": ", ".join(group.bound.config_hash for group in groups),
            "keys": fingerprints,
        }
        if spec.translate_back is not None:
            self.identity["translate_back"] = spec.translate_back.identity()
        # expanding many keys dominates the cost and is done once per batch: as many texts as memory allows
        many = min(1024, _RESULTS_PER_BATCH // len(fingerprints)) if keys else 0
        self.batch_size = max(_BATCH_SIZE, many)
        self._sets: list[BoundScheme | KeySet] = [
            Keys(
                list(group.keys.values()),
                host=group.bound.host,
                scheme=group.bound.scheme.name,
                settings=group.bound.scheme.to_dict(),
                reader=group.bound.expectations,
                progress=progress,
            )
            if group.keys
            else group.bound
            for group in groups
        ]

    def __call__(self, batch: Sequence[Document]) -> list[Scored]:
        """The results, in the order of the batch; a blank text is too short for a verdict."""
        warn_other_scheme(batch, *(group.bound.scheme.name for group in self._groups))
        spec, texts, versions = self._spec, [row.text for row in batch], None
        if spec.translate_back is not None:
            versions = spec.translate_back.versions(texts, progress=self._progress)
        examined = detect_texts(
            texts,
            self._sets,
            prompts=[row.prompt for row in batch],
            fpr=spec.fpr,
            test=self._test,
            versions=versions,
            attempts=spec.attempts,
            explain=spec.coverage,
            calibration=self._calibration,
            blank=True,
        )
        return [
            self._scored(row, found, (row.text, *(versions[i] if versions else ()))[found.version])
            for i, (row, found) in enumerate(zip(batch, examined, strict=True))
        ]

    def _scored(self, row: Document, found: Examined, text: str) -> Scored:
        spec = self._spec
        group, key_file = self._places[found.index] if self._places else (self._groups[0], None)
        detection = found.judged
        result: dict[str, Any] = {"id": row.id}
        if key_file is not None:
            result["key_file"] = key_file
        result["config_hash"] = _config_hash(group.bound, detection.key_fingerprint)
        result |= detection.to_dict(tokens=spec.tokens)
        tested = [each.key_fingerprint for each in found.detections]
        result["manifest"] = layers(row.text, detection, tested, roots=spec.roots)
        if key_file is not None:
            result |= {"p_value_of_key": found.detection.to_dict()["p_value"], "keys": found.looks.keys}
            without = [
                {"key_file": name, "scheme": each.scheme, "reason": each.verdict.value}
                for (_, name), each in zip(self._places, found.detections, strict=True)
                if not each.verdict.conclusive
            ]
            result["not_tested"] = [*self.not_tested, *without]
        if spec.translate_back is not None:
            result["versions"] = found.looks.attempts // spec.attempts
            result["translated_back"] = found.version > 0
        return Scored(row.id, text, detection, result, found, key_file)


def _config_hash(bound: BoundScheme, fingerprint: str) -> str:
    """The hash of the same configuration under another key."""
    other = copy.copy(bound)
    other.fingerprint = fingerprint
    return other.config_hash


def open_detector(
    *,
    folder: Path | None = None,
    key: Path | Key | None = None,
    host: str | None = None,
    scheme: str | None = None,
    settings: Mapping[str, Any] | None = None,
    reader: str | None = None,
    progress: Progress = silent,
) -> BoundScheme:
    """A detector from an exported folder, or from a key file with a host and a scheme (default: DEW)."""
    if folder is not None:
        given = {"key": key, "host": host, "scheme": scheme, "settings": settings}
        clash = [name for name, value in given.items() if value]
        if clash:
            raise ConfigError(
                f"the detector in {folder} has its own key, host and settings: leave out {', '.join(clash)}"
            )
        return Detector.load(folder, reader=reader, progress=progress).scheme
    if scheme == "none":
        raise ConfigError("scheme none leaves no mark to detect: name the scheme that marked the text")
    if key is None:
        raise ConfigError("no key given: add --key FILE (make one with: dewmark key new --out FILE)")
    if not isinstance(key, Key):
        key = Key.load(key)
    return load_scheme(
        key, host=host, scheme=scheme or "dew", settings=settings, reader=reader, progress=progress
    )
