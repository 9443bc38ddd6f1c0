"""``dewmark detect --follow``: watch standard input and stop as soon as it is found to be marked."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dewmark.cli.terminal import Progress, emit, say, write
from dewmark.config import parse_settings

if TYPE_CHECKING:
    from dewmark.streams import Stream

_EVERY = 10  # words between two lines


def follow_stream(
    key: Path | None,
    *,
    detector: Path | None,
    host: str | None,
    scheme: str | None,
    settings: Sequence[str] | None,
    prompt: str | None,
    fpr: float,
    json_: bool,
    quiet: bool,
) -> None:
    """Print the p-value as words arrive, until it reaches ``fpr`` or the text ends."""
    from dewmark.batch.scorers import open_detector
    from dewmark.streams import Stream

    with Progress(quiet=quiet) as progress:
        bound = open_detector(
            folder=detector,
            key=key,
            host=host,
            scheme=scheme,
            settings=parse_settings(settings or ()),
            reader="none",  # a stream is followed word by word
            progress=progress,
        )
    watched = Stream([bound], prompt=prompt, fpr=fpr)
    shown = 0
    for piece in _pieces():
        watched.update(piece)
        if watched.is_marked:
            break
        if watched.best.words >= shown + _EVERY:
            shown = watched.best.words
            _report(watched, json_=json_)
    else:
        watched.finish()
    _report(watched, json_=json_)
    if watched.is_marked:
        say(f"stopped after {watched.best.words} words", quiet=quiet)


def _pieces() -> Iterator[str]:
    """Standard input as it arrives."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    source = cast("io.BufferedReader", sys.stdin.buffer)
    while data := source.read1(4096):
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


def _report(watched: Stream, *, json_: bool) -> None:
    words, verdict = watched.best.words, watched.verdict
    if json_:
        row = {"words": words, "p_value": watched.p_value, "log_e": watched.best.log_e}
        emit({**row, "fpr": watched.fpr, "verdict": verdict and verdict.value, **watched.origin})
        return
    named = "".join(f", {name} {value}" for name, value in watched.origin.items() if value is not None)
    write(f"{words} words: {f'{verdict.words}{named}, ' if verdict else ''}p = {watched.p_value:.3g}\n")
