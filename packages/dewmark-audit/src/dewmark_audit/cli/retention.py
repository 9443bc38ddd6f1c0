"""``dewmark retention``: how much of a mark rewrites keep, measured on texts that need not be marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say, write

if TYPE_CHECKING:
    from dewmark_audit.intervals import Interval


def retention(
    original: Annotated[Path, typer.Option(metavar="A.jsonl", help="Texts before they were rewritten.")],
    rewritten: Annotated[
        Path, typer.Option(metavar="B.jsonl", help="Their rewrites, matched by id if all rows have one.")
    ],
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    reader: options.Reader = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Estimate the share of a mark's z-score that rewrites keep; needs no key and no marked text."""
    from dewmark.config import parse_settings
    from dewmark.core.keys import Key
    from dewmark.opening import load_scheme
    from dewmark.scheme import reader_name
    from dewmark_audit.retention import match_rewrites, retention_of_pairs
    from dewmark_audit.texts import read_documents

    options.check_marks(scheme)
    pairs = match_rewrites(read_documents(original), read_documents(rewritten), files=(original, rewritten))
    with Progress(quiet=quiet) as progress:
        bound = load_scheme(
            Key.generate(),
            host=host,
            scheme=scheme or "dew",
            settings=parse_settings(settings or ()),
            reader=reader,
            progress=progress,
        )
        found = retention_of_pairs(bound, pairs, progress=progress)
    if json_:
        names = {"scheme": bound.scheme.name, "host": bound.host.name, "reader": reader_name(bound)}
        emit({**names, **found.to_dict()})
    else:
        write(
            f"{found.pairs} pairs: rewrites keep {_interval(found.kept)} of the z-score\n"
            f"unrelated texts share {_interval(found.unrelated)}, which should be near 0\n"
        )
    if not found.sound:
        say(
            f"dewmark: warning: unrelated texts share {found.unrelated.value:.2f} of the z-score: that much "
            "of the retention is a preference common to all texts, not the mark (of dew-paper "
            "--set whiten_contexts=true removes it)"
        )


def _interval(share: Interval) -> str:
    return f"{share.value:.3f} (95% interval {share.low:.3f} to {share.high:.3f})"
