"""``dewmark locate``: which passages of a text are marked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.batch.scoring import detect_items, open_scheme
from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, printable, results, say
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from dewmark.cli.inputs import Item
    from dewmark.passages import Located, Passage
    from dewmark.scheme import BoundScheme

__all__ = ["locate"]

_QUOTED = 40  # characters of a passage's two ends that a line shows


def locate(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXTFILE… | -]", help="Text files; - is standard input.")
    ] = None,
    key: options.OptionalKeyFile = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(metavar="IN.jsonl", help="Search each line's text (after its prompt, if any)."),
    ] = None,
    prompt: options.Prompt = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    detector: options.Detector = None,
    fpr: Annotated[
        float, typer.Option(help="Share of unmarked texts in which any passage at all may be called marked.")
    ] = 0.05,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a page with the passages framed.")
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the marked passages of texts that are partly marked, partly not; p-values count the search."""
    from dewmark.cli.inputs import count_lines, read_files, read_rows

    if not texts and jsonl is None:
        raise ConfigError("nothing to search: give text files, - for standard input, or --jsonl IN.jsonl")
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"--fpr must lie in (0, 1), got {fpr:g}")
    files = read_files(texts or [], prompt=prompt)
    rows = read_rows(jsonl, prompt=prompt) if jsonl is not None else iter(())
    total = len(files) + (count_lines(jsonl) if jsonl is not None else 0)
    console, on_terminal = results(), sys.stdout.isatty()
    kept: list[tuple[Item, Located]] = []
    with Progress(quiet=quiet) as progress:
        bound = open_scheme(detector, key, host, scheme, settings, progress=progress)
        for done, (item, found) in enumerate(_search(bound, chain(files, rows), fpr=fpr), start=1):
            if on_terminal:
                progress.clear()
            if json_:
                emit({"id": item.id, **found.to_dict()})
            else:
                _show(console, item, found, text=on_terminal)
            if html is not None:
                kept.append((item, found))
            progress("locating", done, total)
    if html is not None:
        from dewmark.reports.detection_page import write_html

        pages = [(str(item.id), item.text, found.detection) for item, found in kept]
        write_html(html, pages, passages=[found.passages for _, found in kept])
        say(f"wrote {html}", quiet=quiet)


def _search(bound: BoundScheme, items: Iterator[Item], *, fpr: float) -> Iterator[tuple[Item, Located]]:
    """What each text holds; a blank one holds nothing."""
    from dewmark.passages import Located, locate

    for item in items:
        if item.text.strip():
            yield item, locate(item.text, bound, prompt=item.prompt, fpr=fpr)
        else:
            (nothing,) = detect_items(bound, [item], fpr=fpr, test=None)
            yield item, Located(passages=(), detection=nothing, fpr=fpr)


def _show(console: Console, item: Item, found: Located, *, text: bool) -> None:
    """A line for the text, one for each passage, and on a terminal the text itself."""
    from dewmark.reports.detection_display import located_sentence, passage_sentence

    console.print(f"{printable(str(item.id))}: {located_sentence(found)}")
    for number, passage in enumerate(found.passages, start=1):
        console.print(f"  {number}. {passage_sentence(passage)}: {_ends(passage)}")
    if text:
        console.print(_coloured(console, item.text, found), end="\n\n")


def _ends(passage: Passage) -> str:
    """The first and last words of a passage, on one line."""
    flat = " ".join(printable(passage.text).split())
    return f"“{flat}”" if len(flat) <= 2 * _QUOTED else f"“{flat[:_QUOTED]} … {flat[-_QUOTED:]}”"


def _coloured(console: Console, text: str, found: Located) -> Text:
    """The text, dim where no mark was located; passages in brackets, their tokens coloured by score."""
    from rich.text import Text

    from dewmark.cli.terminal import styles
    from dewmark.reports.detection_display import group_by_passage, level, spans

    steps, drawn = styles(console), Text()
    places = [(passage.start, passage.end) for passage in found.passages]
    for place, inside in group_by_passage(spans(text, found.detection.tokens), places):
        if place is None:
            drawn.append(printable("".join(span.text for span in inside)), style="dim")
            continue
        drawn.append(f"⟦{place + 1} ", style="bold green")
        for span in inside:
            drawn.append(printable(span.text), style=steps[level(span.score)] if span.scored else "")
        drawn.append(" ⟧", style="bold green")
    return drawn
