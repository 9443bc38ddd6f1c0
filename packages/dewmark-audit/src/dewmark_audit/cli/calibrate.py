"""``dewmark calibrate``: unmarked texts under a key, among which ``detect`` ranks others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, output, printable, write
from dewmark.errors import ConfigError

_LEVELS = (0.05, 0.01, 0.001)  # of the thresholds
_ROWS = 1024  # read at a time


def calibrate(
    negatives: Annotated[
        str, typer.Option(metavar="NEG.jsonl", help="Unmarked texts like those to be judged, one per line.")
    ],
    out: Annotated[Path, typer.Option(metavar="CAL.json | -", help="Write the calibration here.")],
    key: options.OptionalKeyFile = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    detector: options.Detector = None,
    reader: options.Reader = None,
    test: options.Test = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Score unmarked texts under a key, so that detect can rank other texts among them.

    The file contains numbers only, no key and no text. A level of 1% needs 99 texts, 0.1% needs 999.
    """
    from dewmark.batch import open_source
    from dewmark_audit.calibration import negatives_needed
    from dewmark_audit.negatives import calibrate_file

    if out.exists() and Path(negatives).exists() and out.samefile(negatives):
        raise ConfigError(f"--out is the file of negatives {negatives} itself: choose another name")
    source = open_source(negatives)
    for _ in source.rows(source.blocks(_ROWS)):  # report mistakes before a model is loaded
        pass
    with Progress(quiet=quiet) as progress:
        bound = options.open_detector(detector, key, host, scheme, settings, reader=reader, progress=progress)
        made = calibrate_file(negatives, bound, test=test, progress=progress)
    with output(out) as stream:
        stream.write(made.to_json())
    thresholds = {level: made.threshold(level) for level in _LEVELS}
    if json_:
        known = ("scheme", "test", "key_fingerprint", "config_hash", "too_short")
        finite = {f"{level:g}": z if math.isfinite(z) else None for level, z in thresholds.items()}
        emit(
            {
                "out": str(out),
                **{name: getattr(made, name) for name in known},
                "negatives": len(made.z),
                "thresholds": finite,
            }
        )
        return
    write(
        f"wrote {printable(str(out))}: key {made.key_fingerprint}, {made.scheme}, z of the {made.test} test "
        f"of {len(made.z)} texts, left out as too short: {made.too_short}\n"
    )
    for level, z in thresholds.items():
        needs = f"z above {z:.2f}" if math.isfinite(z) else f"needs {negatives_needed(level)} texts"
        write(f"level {level:g}: {needs}\n")
