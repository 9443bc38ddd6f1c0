"""``dewmark detect``: is a text marked, and how sure can one be."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.console import emit, results, say, write
from dewmark.cli.loading import NONE, load_key, load_watermark
from dewmark.cli.progress import Progress
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.cli.inputs import Item
    from dewmark.scheme import BoundScheme
    from dewmark.types import Detection

__all__ = ["detect"]


class StatTest(enum.StrEnum):
    """The statistical tests."""

    KEY = "key"
    GAUSSIAN = "gaussian"


def detect(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXTFILE… | -]", help="Text files; - is standard input.")
    ] = None,
    key: options.OptionalKeyFile = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(metavar="IN.jsonl", help="Score each line's text (after its prompt, if any)."),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the texts continue: context, never scored itself."),
    ] = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    detector: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="An exported detector, instead of --key, --host and --set."),
    ] = None,
    fpr: Annotated[float, typer.Option(help="Share of unmarked texts that may be called marked.")] = 0.01,
    test: Annotated[
        StatTest | None,
        typer.Option(
            show_default="key",
            help="key: valid for every text; gaussian: the paper's, as if tokens were independent.",
        ),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Also give every token's score and place.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a page with the coloured texts.")
    ] = None,
    batch_size: options.BatchSize = 32,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Score texts against a key: verdict, p-value, z, effective length."""
    from dewmark.cli.inputs import batched, count_lines, read_files, read_rows

    if not texts and jsonl is None:
        raise ConfigError("nothing to score: give text files, - for standard input, or --jsonl IN.jsonl")
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"--fpr must lie in (0, 1), got {fpr:g}")
    if scheme == NONE:
        raise ConfigError("scheme none leaves no mark to detect: name the scheme that marked the text")
    files = read_files(texts or [], prompt=prompt)
    rows = read_rows(jsonl, prompt=prompt) if jsonl is not None else iter(())
    total = len(files) + (count_lines(jsonl) if jsonl is not None else 0)
    kept: list[tuple[str, str, Detection]] = []
    show = _Printer(json_=json_, tokens=tokens, total=total)
    with Progress(quiet=quiet) as progress:
        scorer = _load(detector, key, host, scheme, settings, progress=progress)
        for batch in batched(chain(files, rows), batch_size):
            for item, detection in zip(
                batch, _score(scorer, batch, fpr=fpr, test=test.value if test else None), strict=True
            ):
                if show.on_terminal:
                    progress.clear()
                show(item, detection)
                if html is not None:
                    kept.append((str(item.id), item.text, detection))
            if not show.on_terminal:
                progress("scoring", show.count, total)
    show.close()
    if html is not None:
        from dewmark.reports.html import write_html

        write_html(html, kept)
        say(f"wrote {html}", quiet=quiet)


def _load(
    folder: Path | None,
    key: Path | None,
    host: str | None,
    scheme: str | None,
    settings: Sequence[str] | None,
    *,
    progress: Progress,
) -> BoundScheme:
    """The detector that the options name."""
    if folder is None:
        secret = load_key(key)
        return load_watermark(secret, host=host, scheme=scheme, settings=settings, progress=progress).scheme
    given = {"--key": key, "--host": host, "--scheme": scheme, "--set": settings}
    clash = [name for name, value in given.items() if value]
    if clash:
        raise ConfigError(f"--detector holds its own key, host and settings: leave out {', '.join(clash)}")
    from dewmark.detector import load_detector

    return load_detector(folder, progress=progress)


def _score(
    scorer: BoundScheme, batch: Sequence[Item], *, fpr: float, test: str | None
) -> Iterator[Detection]:
    """Detections in the order of the batch; a blank text is too short without asking the detector."""
    from dewmark.types import Detection, Verdict

    asked = [item for item in batch if item.text.strip()]
    found = iter(
        scorer.detect_batch(
            [item.text for item in asked], prompts=[item.prompt for item in asked], fpr=fpr, test=test
        )
        if asked
        else ()
    )
    for item in batch:
        if item.text.strip():
            yield next(found)
        else:
            yield Detection(
                verdict=Verdict.TOO_SHORT,
                p_value=1.0,
                z=0.0,
                score=0.0,
                effective_length=0.0,
                tokens_scored=0,
                test=test or StatTest.KEY.value,
                fpr=fpr,
                scheme=scorer.scheme.name,
                key_fingerprint=scorer.fingerprint,
            )


class _Printer:
    """Prints detections as they come: JSON lines, or a line each and coloured tokens where they fit."""

    def __init__(self, *, json_: bool, tokens: bool, total: int) -> None:
        self._json, self._tokens, self._total = json_, tokens, total
        self._console = results()
        self._marked = 0
        self.count = 0
        self.on_terminal = sys.stdout.isatty()

    def __call__(self, item: Item, detection: Detection) -> None:
        self.count += 1
        self._marked += detection.is_marked
        if self._json:
            emit({"id": item.id, **detection.to_dict(tokens=self._tokens)})
            return
        from dewmark.cli.render import colour_tokens, legend, token_table, verdict_line

        self._console.print(verdict_line(str(item.id), detection))
        if self.on_terminal and (self._tokens or self._total == 1):
            self._console.print(
                colour_tokens(self._console, item.text, detection),
                legend(self._console),
                sep="\n\n",
                end="\n\n",
            )
        elif self._tokens:
            write(token_table(detection))

    def close(self) -> None:
        """Sum up, if there was more than one text."""
        if not self._json and self.count > 1:
            write(f"{self._marked} of {self.count} texts marked\n")
