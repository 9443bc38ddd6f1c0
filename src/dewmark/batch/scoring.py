"""What scores texts for a command: one key with or without a calibration, or several keys at once.

Boundary: texts in, results out; how they are read is `inputs`, how they are shown is `verdicts`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark.cli.loading import NONE, load_key, load_scheme
from dewmark.cli.terminal import printable
from dewmark.errors import ConfigError, KeyFileError
from dewmark.types import Attribution, Detection, Verdict

if TYPE_CHECKING:
    from dewmark.cli.inputs import Item
    from dewmark.cli.terminal import Progress
    from dewmark.core.keys import Key
    from dewmark.scheme import BoundScheme
    from dewmark.stats.calibration import Calibration

__all__ = ["EMPIRICAL", "ManyKeys", "OneKey", "Scored", "Scoring", "detect_items", "load_keys", "open_scheme"]

EMPIRICAL = "empirical"  # the test that ranks a text among a calibration's negatives

_RESULTS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class Scored:
    """A text's result as it is told: ``row`` is its JSON, ``note`` what a line says beside the numbers."""

    id: str | int
    text: str
    detection: Detection
    row: dict[str, Any]
    note: str = ""


@dataclass(frozen=True)
class Scoring:
    """How texts are to be scored, as the options say it: names and paths, so it may go to another process."""

    key: tuple[Path, ...] = ()
    keys: Path | None = None
    detector: Path | None = None
    host: str | None = None
    scheme: str | None = None
    settings: tuple[str, ...] = ()
    fpr: float = 0.01
    test: str | None = None
    tokens: bool = False
    calibration: Path | None = None
    group: str | None = None

    @property
    def many(self) -> bool:
        """Whether it is asked which of several keys a text carries."""
        return self.keys is not None or len(self.key) > 1

    def absolute(self) -> Scoring:
        """The same for a process with another working directory."""
        named = {name: getattr(self, name) for name in ("keys", "detector", "calibration")}
        paths: dict[str, Any] = {name: path and path.absolute() for name, path in named.items()}
        return dataclasses.replace(self, key=tuple(path.absolute() for path in self.key), **paths)

    def open(self, *, progress: Progress) -> OneKey | ManyKeys:
        """Load keys, detector and calibration, and see that they go together."""
        from dewmark.scheme import check_test

        secrets = load_keys(self.key, self.keys) if self.many else {}
        first = Path(next(iter(secrets))) if self.many else next(iter(self.key), None)
        bound = open_scheme(self.detector, first, self.host, self.scheme, self.settings, progress=progress)
        check_test(self.test, (*bound.tests, EMPIRICAL))
        if self.many:
            return ManyKeys(
                secrets, bound, fpr=self.fpr, test=self.test, tokens=self.tokens, progress=progress
            )
        ranks = None
        if self.calibration is not None:
            from dewmark.stats.calibration import Calibration

            ranks = Calibration.load(self.calibration)
            ranks.check(
                scheme=bound.scheme.name, config_hash=bound.config_hash, key_fingerprint=bound.fingerprint
            )
        return OneKey(
            bound, fpr=self.fpr, test=self.test, tokens=self.tokens, calibration=ranks, group=self.group
        )


def open_scheme(
    folder: Path | None,
    key: Path | None,
    host: str | None,
    scheme: str | None,
    settings: Sequence[str] | None,
    *,
    progress: Progress,
) -> BoundScheme:
    """The detector that the options name: an exported folder, or a key with a host and a scheme."""
    if scheme == NONE:
        raise ConfigError("scheme none leaves no mark to detect: name the scheme that marked the text")
    if folder is None:
        secret = load_key(key)
        return load_scheme(secret, host=host, scheme=scheme, settings=settings, progress=progress)
    given = {"--key": key, "--host": host, "--scheme": scheme, "--set": settings}
    clash = [name for name, value in given.items() if value]
    if clash:
        raise ConfigError(f"--detector holds its own key, host and settings: leave out {', '.join(clash)}")
    from dewmark.detector import Detector

    return Detector.load(folder, progress=progress).scheme


def load_keys(files: Sequence[Path], folder: Path | None) -> dict[str, Key]:
    """Keys by the names of their files: those given, and all ``*.key`` files of a folder."""
    found = sorted(folder.glob("*.key")) if folder is not None else []
    if folder is not None and not found:
        raise KeyFileError(f"{folder} holds no key: expected files named *.key")
    keys: dict[str, Key] = {}
    names: dict[str, str] = {}  # by fingerprint
    for file in (*files, *found):
        key = load_key(file)
        if key.fingerprint in names:
            raise KeyFileError(
                f"{file} and {names[key.fingerprint]} are the same key {key.fingerprint}: give it once"
            )
        names[key.fingerprint] = str(file)
        keys[str(file)] = key
    return keys


def detect_items(
    bound: BoundScheme, batch: Sequence[Item], *, fpr: float, test: str | None
) -> list[Detection]:
    """Detections in the order of the batch; a blank text is too short without asking the detector."""
    asked = [item for item in batch if item.text.strip()]
    found = iter(
        bound.detect_batch(
            [item.text for item in asked], prompts=[item.prompt for item in asked], fpr=fpr, test=test
        )
        if asked
        else ()
    )
    nothing = _blank(bound.scheme.name, bound.fingerprint, fpr=fpr, test=test or bound.tests[0])
    return [next(found) if item.text.strip() else nothing for item in batch]


class OneKey:
    """Scores texts under one key; a calibration turns z into a rank among negatives."""

    batch_size = 32

    def __init__(
        self,
        bound: BoundScheme,
        *,
        fpr: float,
        test: str | None,
        tokens: bool,
        calibration: Calibration | None = None,
        group: str | None = None,
    ) -> None:
        self._bound, self._fpr, self._tokens = bound, fpr, tokens
        self.identity: dict[str, object] = {
            "scheme": bound.scheme.name,
            "config_hash": bound.config_hash,
            "keys": [bound.fingerprint],
        }
        self._test = test if calibration is None else calibration.test
        self._calibration, self._group = calibration, group

    def __call__(self, batch: Sequence[Item]) -> list[Scored]:
        """Results in the order of the batch."""
        found = detect_items(self._bound, batch, fpr=self._fpr, test=self._test)
        return [self._scored(item, detection) for item, detection in zip(batch, found, strict=True)]

    def _scored(self, item: Item, detection: Detection) -> Scored:
        if self._calibration is not None:
            group = self._group if item.group is None else item.group
            detection = self._calibration.apply(detection, group=group)
        return Scored(
            item.id, item.text, detection, {"id": item.id, **detection.to_dict(tokens=self._tokens)}
        )


class ManyKeys:
    """Says which of several keys a text carries; its p-value is corrected for their number."""

    def __init__(
        self,
        keys: dict[str, Key],
        bound: BoundScheme,
        *,
        fpr: float,
        test: str | None,
        tokens: bool,
        progress: Progress,
    ) -> None:
        """``bound`` is the scheme under one of the keys: it names host and settings and keeps tables open."""
        self._names, self._keys = list(keys), list(keys.values())
        self._bound, self._progress = bound, progress
        self.identity: dict[str, object] = {
            "scheme": bound.scheme.name,
            "config_hash": bound.config_hash,
            "keys": [key.fingerprint for key in self._keys],
        }
        self._fpr, self._test, self._tokens = fpr, test, tokens

    @property
    def batch_size(self) -> int:
        """Drawing the keys is most of the work and done once a batch: as many texts as memory allows."""
        return max(32, min(1024, _RESULTS_AT_ONCE // len(self._keys)))

    def __call__(self, batch: Sequence[Item]) -> list[Scored]:
        """Results in the order of the batch."""
        from dewmark.watermark import identify

        asked = [item for item in batch if item.text.strip()]
        found = iter(
            identify(
                [item.text for item in asked],
                self._keys,
                host=self._bound.host,
                scheme=self._bound.scheme.name,
                settings=self._bound.scheme.to_dict(),
                prompts=[item.prompt for item in asked],
                fpr=self._fpr,
                test=self._test,
                progress=self._progress,
            )
            if asked
            else ()
        )
        return [self._scored(item, next(found) if item.text.strip() else self._nothing()) for item in batch]

    def _nothing(self) -> Attribution:
        test = self._test or self._bound.tests[0]
        blank = [
            _blank(self._bound.scheme.name, key.fingerprint, fpr=self._fpr, test=test) for key in self._keys
        ]
        return Attribution(tuple(blank), index=0, p_value=1.0, verdict=Verdict.TOO_SHORT)

    def _scored(self, item: Item, found: Attribution) -> Scored:
        best, name = found.best, self._names[found.index]
        told = dataclasses.replace(
            best,
            verdict=found.verdict,
            p_value=found.p_value,
            test=f"{best.test}, corrected for {found.keys} keys",
        )
        which = f"{printable(name)} ({best.key_fingerprint})"
        note = {
            Verdict.MARKED: f", key {which}, corrected for {found.keys} keys",
            Verdict.NOT_MARKED: f", best of {found.keys} keys: {which}",
            Verdict.TOO_SHORT: "",
        }[found.verdict]
        row = {"id": item.id, "key_file": name, **found.to_dict(tokens=self._tokens)}
        return Scored(item.id, item.text, told, row, note)


def _blank(scheme: str, fingerprint: str, *, fpr: float, test: str) -> Detection:
    return Detection(
        verdict=Verdict.TOO_SHORT,
        p_value=1.0,
        z=0.0,
        score=0.0,
        effective_length=0.0,
        tokens_scored=0,
        test=test,
        fpr=fpr,
        scheme=scheme,
        key_fingerprint=fingerprint,
    )
