"""Scorers: batches of texts in, one result per text out, under one key or several.

A `DetectorSpec` names the keys or the exported detector to score texts with. It holds paths and names only,
never a key, so it can be sent to other processes and machines, which `open` it from their own files.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dewmark.batch.audit_report import AuditReport, KeyLevel
from dewmark.batch.inputs import TextRow, warn_other_scheme
from dewmark.core.keys import Key, is_engine_key
from dewmark.detector import Detector, blank_detection, detect_texts, skip_blank
from dewmark.errors import ConfigError, KeyFileError
from dewmark.passages import explain
from dewmark.scheme import DEFAULT_FPR, BoundScheme, check_test
from dewmark.stats.calibration import EMPIRICAL, Calibration
from dewmark.stats.multiple_testing import Looks
from dewmark.translation import back_languages, translate_back
from dewmark.types import Attribution, Detection, Verdict
from dewmark.watermark import identify, load_scheme
from dewmark.workspace import Progress, silent

_BATCH_SIZE = 32
_RESULTS_PER_BATCH = 1 << 18  # texts × keys

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of one text.

    ``row`` is the result as JSON values. ``attribution`` is there if the text was compared with several keys;
    ``detection`` then has the verdict and p-value corrected for their number. ``this_key`` is what an audit
    of the key says about the text, if one was given and knows such texts.
    """

    id: str | int
    text: str
    detection: Detection
    row: dict[str, Any]
    key_file: str | None = None
    attribution: Attribution | None = None
    this_key: KeyLevel | None = None


@dataclass(frozen=True)
class DetectorSpec:
    """What to score texts with, by names and paths.

    Either ``detector``, an exported folder, or ``keys`` with a host and a scheme. ``keys`` are key files, or
    folders of ``*.key`` files; several keys, or a folder, ask which key a text carries. ``calibration`` (a
    file that ``dewmark calibrate`` wrote, for one key) turns z into a rank among unmarked texts, those of
    ``group`` if it is given. ``audit`` is the report of an audit of the key (``dewmark audit --out``): rows
    then say how many unmarked texts of their kind this key scores so high, and languages in which it is
    trusted get verdicts. ``tokens`` adds every token's score to the rows, ``passages`` says where in each
    marked text the mark is. ``attempts`` counts the versions of each text that are tried.
    ``translate_back`` also scores each foreign text after it was translated into English, and counts both.
    ``reader`` names the language model that reads the texts: a host's name or path, ``host``, ``none``, or
    None for that of the exported detector, if it has one.
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
    group: str | None = None
    passages: bool = False
    attempts: int = 1
    audit: Path | None = None
    translate_back: bool = False
    reader: str | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.fpr < 1.0:
            raise ConfigError(f"fpr must lie in (0, 1), got {self.fpr:g}")
        Looks(attempts=self.attempts)
        if self.calibration is None:
            if self.test == EMPIRICAL:
                raise ConfigError("the empirical test needs a calibration, made by: dewmark calibrate")
            if self.group is not None:
                raise ConfigError(f"group {self.group!r} needs a calibration, made by: dewmark calibrate")
        elif self.test not in (None, EMPIRICAL):
            raise ConfigError(
                f"a calibration is for the empirical test, not {self.test}: leave out one of them"
            )
        elif self.many_keys:
            raise ConfigError("a calibration belongs to one key: give one key with it")
        elif self.translate_back:
            raise ConfigError("a calibration holds for texts as they are: leave out translating back")
        if self.audit is not None and self.many_keys:
            raise ConfigError("an audit belongs to one key: give one key with it")

    @property
    def many_keys(self) -> bool:
        """Whether to ask which of several keys a text carries."""
        return len(self.keys) > 1 or any(path.is_dir() for path in self.keys)

    def absolute(self) -> DetectorSpec:
        """The same with absolute paths, for processes with another working directory."""
        paths: dict[str, Any] = {
            name: getattr(self, name) and getattr(self, name).absolute()
            for name in ("detector", "calibration", "audit")
        }
        keys = (path if is_engine_key(path) else path.absolute() for path in self.keys)
        return dataclasses.replace(self, keys=tuple(keys), **paths)

    def open_keys(self, *, progress: Progress = silent) -> dict[str | None, BoundScheme]:
        """A detector for each key, by the name of its file; the only one is named None."""
        keys = load_keys(self.keys) if self.many_keys else {}
        bound = self._open_first(keys, progress)
        if not keys:
            return {None: bound}
        made: dict[str | None, BoundScheme] = {}
        for number, (name, key) in enumerate(keys.items()):
            progress("opening keys", number, len(keys))
            made[name] = bound if number == 0 else _with_key(bound, key, progress)
        return made

    def _open_first(self, keys: Mapping[str, Key], progress: Progress) -> BoundScheme:
        return open_detector(
            folder=self.detector,
            key=next(iter(keys.values())) if keys else next(iter(self.keys), None),
            host=self.host,
            scheme=self.scheme,
            settings=self.settings,
            reader=self.reader,
            progress=progress,
        )

    def open(self, *, progress: Progress = silent) -> Scorer:
        """Load keys, detector and calibration, and check that they belong together."""
        scorer = self._open(progress)
        return _BackTranslatingScorer(scorer, self, progress) if self.translate_back else scorer

    def _open(self, progress: Progress) -> Scorer:
        keys = load_keys(self.keys) if self.many_keys else {}
        bound = self._open_first(keys, progress)
        check_test(self.test, (*bound.tests, EMPIRICAL))
        if keys:
            return _ManyKeysScorer(self, bound, keys, progress)
        calibration = None
        if self.calibration is not None:
            calibration = Calibration.load(self.calibration)
            calibration.check(
                scheme=bound.scheme.name, config_hash=bound.config_hash, key_fingerprint=bound.fingerprint
            )
            # ranks among the user's own unmarked texts do not depend on the encoder's languages
            bound = bound.judging(dataclasses.replace(bound.languages, every=True))
        report = None
        if self.audit is not None:
            report = AuditReport.load(self.audit)
            bound = report.applied(bound, level=self.fpr)
        return _OneKeyScorer(self, bound, calibration, report)


class Scorer(ABC):
    """Scores batches of texts.

    ``identity`` names everything in the detector that decides the results: scheme, configuration, keys.
    ``bound`` is the scheme under the first key, and ``batch_size`` a good number of texts per call.
    """

    batch_size: int = _BATCH_SIZE

    def __init__(self, bound: BoundScheme, fingerprints: Sequence[str]) -> None:
        self.bound = bound
        self.identity: dict[str, object] = {
            "scheme": bound.scheme.name,
            "config_hash": bound.config_hash,
            "keys": list(fingerprints),
        }

    @abstractmethod
    def __call__(self, batch: Sequence[TextRow]) -> list[Scored]:
        """The results, in the order of the batch; a blank text is too short for a verdict."""


class _OneKeyScorer(Scorer):
    """Scores texts under one key; a calibration turns z into a rank among unmarked texts."""

    def __init__(
        self,
        spec: DetectorSpec,
        bound: BoundScheme,
        calibration: Calibration | None,
        report: AuditReport | None,
    ) -> None:
        super().__init__(bound, [bound.fingerprint])
        self._report = report
        self._spec, self._calibration = spec, calibration
        self._test = spec.test if calibration is None else calibration.test

    def __call__(self, batch: Sequence[TextRow]) -> list[Scored]:
        warn_other_scheme(batch, self.bound.scheme.name)
        texts, prompts = [row.text for row in batch], [row.prompt for row in batch]
        found = detect_texts(self.bound, texts, prompts=prompts, fpr=self._spec.fpr, test=self._test)
        return [self._scored(row, detection) for row, detection in zip(batch, found, strict=True)]

    def _scored(self, row: TextRow, detection: Detection) -> Scored:
        if self._calibration is not None:
            group = self._spec.group if row.group is None else row.group
            detection = self._calibration.apply(detection, group=group)
        detection = _after_attempts(detection, self._spec)
        if self._spec.passages:
            detection = explain(detection, row.text, self.bound, prompt=row.prompt)
        found = detection.to_dict(tokens=self._spec.tokens)
        result = {"id": row.id, "config_hash": self.bound.config_hash, **found}
        level = None
        if self._report is not None:
            level = self._report.level_of(detection) if detection.verdict.conclusive else None
            result |= KeyLevel.columns(level)
        return Scored(row.id, row.text, detection, result, this_key=level)


class _ManyKeysScorer(Scorer):
    """Finds which of several keys a text carries; p-values are corrected for the number of keys."""

    def __init__(
        self, spec: DetectorSpec, bound: BoundScheme, keys: Mapping[str, Key], progress: Progress
    ) -> None:
        """``bound`` is the scheme under one of the keys: it provides host and settings."""
        super().__init__(bound, [key.fingerprint for key in keys.values()])
        self._spec, self._keys, self._progress = spec, dict(keys), progress
        # expanding the keys dominates the cost and is done once per batch: use as many texts as memory allows
        self.batch_size = max(_BATCH_SIZE, min(1024, _RESULTS_PER_BATCH // len(keys)))

    def __call__(self, batch: Sequence[TextRow]) -> list[Scored]:
        warn_other_scheme(batch, self.bound.scheme.name)

        def score(written: Sequence[int]) -> list[Attribution]:
            return self._identify([batch[i] for i in written])

        found = skip_blank([row.text for row in batch], score, self._blank)
        return [self._scored(row, each) for row, each in zip(batch, found, strict=True)]

    def _identify(self, batch: Sequence[TextRow]) -> list[Attribution]:
        return identify(
            [row.text for row in batch],
            list(self._keys.values()),
            host=self.bound.host,
            scheme=self.bound.scheme.name,
            settings=self.bound.scheme.to_dict(),
            prompts=[row.prompt for row in batch],
            fpr=self._spec.fpr,
            test=self._spec.test,
            reader=self.bound.expectations,
            progress=self._progress,
        )

    def _blank(self) -> Attribution:
        blank = blank_detection(self.bound, fpr=self._spec.fpr, test=self._spec.test)
        each = (dataclasses.replace(blank, key_fingerprint=key.fingerprint) for key in self._keys.values())
        return Attribution(tuple(each), index=0, p_value=1.0, verdict=Verdict.TOO_SHORT)

    def _scored(self, row: TextRow, found: Attribution) -> Scored:
        key_file = list(self._keys)[found.index]
        test = f"{found.best.test}, corrected for {found.keys} keys"
        detection = dataclasses.replace(found.best.judged(found.verdict, found.p_value), test=test)
        detection = _after_attempts(detection, self._spec)
        if self._spec.passages and detection.is_marked:
            bound = _with_key(self.bound, self._keys[key_file], self._progress)
            detection = explain(detection, row.text, bound, prompt=row.prompt, keys=found.keys)
        result = {
            "id": row.id,
            "key_file": key_file,
            "config_hash": _config_hash(self.bound, detection.key_fingerprint),
            **detection.to_dict(tokens=self._spec.tokens),
            "test": found.best.test,
            "p_value_of_key": found.to_dict()["p_value_of_key"],
            "keys": found.keys,
        }
        return Scored(row.id, row.text, detection, result, key_file, found)


def _config_hash(bound: BoundScheme, fingerprint: str) -> str:
    """The hash of the same configuration under another key."""
    other = copy.copy(bound)
    other.fingerprint = fingerprint
    return other.config_hash


def _after_attempts(detection: Detection, spec: DetectorSpec) -> Detection:
    """The detection as one of several attempts at the same text."""
    if spec.attempts == 1:
        return detection
    p_value = Looks(attempts=spec.attempts).correct(detection.p_value)
    verdict = detection.verdict
    if verdict is Verdict.MARKED and p_value > detection.fpr:
        verdict = Verdict.NOT_MARKED
    return detection.judged(verdict, p_value)


def _with_key(bound: BoundScheme, key: Key, progress: Progress) -> BoundScheme:
    """The same scheme and host under another key."""
    return load_scheme(
        bound.scheme.name,
        key=key,
        host=bound.host,
        settings=bound.scheme.to_dict(),
        reader=bound.expectations,
        progress=progress,
    )


class _BackTranslatingScorer(Scorer):
    """Scores a foreign text as it is and translated into English; p = 2 min(p₁, p₂), at most 1.

    A text that is scored once keeps its p-value. How often it is scored depends on its language only, never
    on a key, so p-values stay valid.
    """

    def __init__(self, scorer: Scorer, spec: DetectorSpec, progress: Progress) -> None:
        super().__init__(scorer.bound, [])
        self.identity = {**scorer.identity, "translate_back": back_languages()}
        self.batch_size = scorer.batch_size
        self._scorer, self._spec, self._progress = scorer, spec, progress

    def __call__(self, batch: Sequence[TextRow]) -> list[Scored]:
        english = translate_back([row.text for row in batch], progress=self._progress)
        # the prompt of a translation is in another language: its context would not fit
        again = [
            dataclasses.replace(row, text=text, prompt=None)
            for row, text in zip(batch, english, strict=True)
            if text is not None
        ]
        backs = iter(self._scorer(again)) if again else iter(())
        found = []
        for scored, text in zip(self._scorer(batch), english, strict=True):
            found.append(self._better(scored, None if text is None else next(backs)))
        return found

    def _better(self, original: Scored, back: Scored | None) -> Scored:
        """The attempt with the smaller p-value, corrected for the number of attempts with a verdict."""
        attempts = [
            each for each in (original, back) if each is not None and each.detection.verdict.conclusive
        ]
        if len(attempts) < 2 and back not in attempts:
            row = {**original.row, "versions": 1, "translated_back": False}
            return dataclasses.replace(original, row=row)
        best = min(attempts, key=lambda each: each.detection.p_value)
        p_value = min(1.0, len(attempts) * best.detection.p_value)
        verdict = Verdict.MARKED if p_value < self._spec.fpr else Verdict.NOT_MARKED
        test = f"{best.detection.test}, {len(attempts)} versions"
        detection = dataclasses.replace(best.detection.judged(verdict, p_value), test=test)
        row = {
            **best.row,
            **detection.to_dict(tokens=self._spec.tokens),
            "versions": len(attempts),
            "translated_back": best is back,
        }
        return dataclasses.replace(best, detection=detection, row=row)


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
        scheme or "dew", key=key, settings=settings, host=host, reader=reader, progress=progress
    )


def load_keys(paths: Sequence[Path]) -> dict[str, Key]:
    """Keys by the names of their files: the files given, and all ``*.key`` files of the folders given."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.key")) if path.is_dir() else [path]
        if not found:
            raise KeyFileError(f"{path} has no key: expected files named *.key")
        files += found
    keys: dict[str, Key] = {}
    names: dict[str, str] = {}  # by fingerprint
    for file in files:
        key = Key.load(file)
        name = f"number {key.fingerprint}" if is_engine_key(file) else str(file)  # which would be the secret
        if key.fingerprint in names:
            raise KeyFileError(
                f"{name} and {names[key.fingerprint]} are the same key {key.fingerprint}: give it once"
            )
        names[key.fingerprint] = name
        keys[name] = key
    return keys
