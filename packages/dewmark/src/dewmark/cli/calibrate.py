"""``dewmark calibrate``: the scores of unmarked texts under one key, for ``detect --calibration``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, printable, results, write
from dewmark.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from dewmark.stats.calibration import Calibration

_LEVELS = (0.05, 0.01, 0.001)


def calibrate(
    negatives: Annotated[
        Path,
        typer.Option(metavar="NEG.jsonl", help="Unmarked texts like those to be judged, one per line."),
    ],
    out: Annotated[Path, typer.Option(metavar="CAL.json", help="Write the calibration here.")],
    key: options.OptionalKeyFile = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Rank texts separately by this field, e.g. --by language."),
    ] = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    detector: options.Detector = None,
    reader: options.Reader = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="the scheme's first, for dew: key",
            help="Statistical test whose z is ranked.",
        ),
    ] = None,
    batch_size: options.BatchSize = 32,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Score unmarked texts under a key, so that detect can rank other texts among them.

    The file contains numbers only, no key and no text. A level of 1% needs 99 texts in every group that is
    used, 0.1% needs 999.
    """
    from dewmark.batch import calibrate_file, read_rows

    if out.is_dir():
        raise StorageError(f"--out {out} is a folder: name a file")
    if out.exists() and negatives.exists() and out.samefile(negatives):
        raise ConfigError(f"--out is the file of negatives {negatives} itself: choose another name")
    if negatives.is_file():  # not a pipe: report mistakes before a model is loaded
        for _ in read_rows(negatives, by=by):
            pass
    with Progress(quiet=quiet) as progress:
        bound = options.open_detector(detector, key, host, scheme, settings, reader=reader, progress=progress)
        made = calibrate_file(negatives, bound, by=by, test=test, batch_size=batch_size, progress=progress)
    made.save(out)
    if json_:
        emit(_summary(made, out))
    else:
        _print(made, out)


def _summary(made: Calibration, out: Path) -> dict[str, Any]:
    def group(name: str | None) -> dict[str, Any]:
        thresholds = {f"{level:g}": made.threshold(level, group=name) for level in _LEVELS}
        return {
            "negatives": len(made.negatives(name)),
            "thresholds": {level: z if math.isfinite(z) else None for level, z in thresholds.items()},
        }

    return {
        "out": str(out),
        "scheme": made.scheme,
        "test": made.test,
        "key_fingerprint": made.key_fingerprint,
        "config_hash": made.config_hash,
        "by": made.by,
        "too_short": made.too_short,
        "groups": {name: group(name) for name in made.groups},
        "pooled": group(None),
    }


def _print(made: Calibration, out: Path) -> None:
    from rich.table import Table

    from dewmark.stats.calibration import negatives_needed

    write(
        f"wrote {printable(str(out))}: key {made.key_fingerprint}, {made.scheme}, z of the {made.test} test, "
        f"texts left out as too short: {made.too_short}\n"
    )
    table = Table(printable(made.by or "texts"), box=None)
    for head in ("negatives", *(f"{level:g}: z above" for level in _LEVELS)):
        table.add_column(head, justify="right")
    for name in (*(made.groups if made.by else ()), None):
        cells = []
        for level in _LEVELS:
            z = made.threshold(level, group=name)
            cells.append(f"{z:.2f}" if math.isfinite(z) else f"needs {negatives_needed(level)}")
        table.add_row("all" if name is None else printable(name), str(len(made.negatives(name))), *cells)
    results().print(table, soft_wrap=False)
