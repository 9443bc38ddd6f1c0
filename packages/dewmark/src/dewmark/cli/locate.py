"""``dewmark locate``: which passages of a text are marked."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, printable, results, say
from dewmark.config import parse_settings
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from dewmark.batch import Scored
    from dewmark.detect import Examined
    from dewmark.types import Passage

_ROWS = 1024  # read at a time
_QUOTED = 40  # characters shown of each end of a passage


def locate(
    texts: options.TextFiles = None,
    key: options.KeyFiles = None,
    keys: options.KeyFolder = None,
    rows: options.Rows = None,
    prompt: options.Prompt = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    detector: options.Detector = None,
    reader: options.Reader = None,
    fpr: Annotated[
        float, typer.Option(help="Share of unmarked texts that are called marked, or any passage of them.")
    ] = 0.01,
    attempts: options.Attempts = 1,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html | -", help="Write a page with passages.")
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the marked passages of partly marked texts; p-values account for the search and for all keys."""
    from dewmark.batch.inputs import read_files, warn_json_lines
    from dewmark.batch.scorers import DetectorSpec
    from dewmark.batch.sources import open_source

    if not texts and rows is None:
        raise ConfigError("nothing to search: give text files, - for standard input, or --in FILE")
    spec = DetectorSpec(
        keys=(*(key or ()), *((keys,) if keys is not None else ())),
        detector=detector,
        host=host,
        scheme=scheme,
        settings=parse_settings(settings or ()),
        fpr=fpr,
        attempts=attempts,
        coverage=True,
        reader=reader,
    )
    files = read_files(texts or [], prompt=prompt)
    warn_json_lines(files)
    source = None if rows is None else open_source(rows, prompt=prompt)
    blocks = source.blocks(_ROWS) if source is not None else []
    total = len(files) + sum(block.rows for block in blocks)
    console, on_terminal = results(), sys.stdout.isatty()
    drawings: list[Callable[[Console], None]] = []
    with Progress(quiet=quiet) as progress:
        scorer = spec.open(progress=progress)
        given = chain(files, source.rows(blocks) if source is not None else ())
        for done, row in enumerate(given, start=1):
            (scored,) = scorer([row])
            if not scorer.bound.finds_passages:
                raise ConfigError(
                    f"{scorer.bound.scheme.name} finds no passages (its scores have no known covariance over "
                    "keys): use dewmark detect"
                )
            if on_terminal:
                progress.clear()
            if json_:
                named = {"id": scored.id, "key_file": scored.key_file}
                emit({**named, "config_hash": scored.row["config_hash"], **scored.located.to_dict()})
            else:
                _draw(scored, scorer.key_files, console, text=on_terminal)
            if html is not None:
                drawings.append(functools.partial(_draw, scored, scorer.key_files))
            progress("locating", done, total)
    if html is not None:
        from dewmark.cli.token_colours import save_html

        save_html(html, "Marked passages", drawings)
        say(f"wrote {html}", quiet=quiet)


def _draw(scored: Scored, names: Mapping[str, str], console: Console, *, text: bool = True) -> None:
    """A line about the text, a line for each passage and, if ``text``, the text itself."""
    from dewmark.reports.detection_display import located_sentence, passage_sentence

    found = scored.located
    console.print(f"{printable(str(scored.id))}: {located_sentence(found)}")
    for number, passage in enumerate(found.passages, start=1):
        name = names.get(passage.key_fingerprint)
        key = "" if name is None else f"key {printable(name)} ({passage.key_fingerprint}), "
        console.print(f"  {number}. {key}{passage_sentence(passage)}: {_ends(passage)}")
    if text:
        console.print(_coloured(scored.text, found), end="\n\n")


def _ends(passage: Passage) -> str:
    """The first and last words of a passage, on one line."""
    flat = " ".join(printable(passage.text).split())
    return f"“{flat}”" if len(flat) <= 2 * _QUOTED else f"“{flat[:_QUOTED]} … {flat[-_QUOTED:]}”"


def _coloured(text: str, found: Examined) -> Text:
    """The text: passages in brackets with their tokens coloured by score, the rest dim."""
    from rich.text import Text

    from dewmark.cli.token_colours import STYLES
    from dewmark.reports.detection_display import group_by_passage, level, spans

    drawn = Text()
    places = [(passage.start, passage.end) for passage in found.passages]
    for place, inside in group_by_passage(spans(text, found.detection.tokens), places):
        if place is None:
            drawn.append(printable("".join(span.text for span in inside)), style="dim")
            continue
        drawn.append(f"⟦{place + 1} ", style="bold green")
        for span in inside:
            drawn.append(printable(span.text), style=STYLES[level(span.score)] if span.scored else "")
        drawn.append(" ⟧", style="bold green")
    return drawn
