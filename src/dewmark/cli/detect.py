"""``dewmark detect``: is a text marked, by which key, and how sure can one be.

How ``detect`` shows its results: a line or a JSON object each, coloured tokens, and a sum at the end.

A Benjamini-Hochberg value needs all p-values, so lines that carry one wait for the last text; others are
printed as they come, and only their p-values are kept, for the sum.
"""

from __future__ import annotations

import dataclasses
import sys
from array import array
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.batch.scoring import EMPIRICAL, Scoring
from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, say, write
from dewmark.errors import ConfigError
from dewmark.types import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.batch.scoring import Scored
    from dewmark.batch.sources import Source

__all__ = ["Verdicts", "detect"]


class Verdicts:
    """Prints results; ``adjust`` holds them until `close` and gives each its value after the correction."""

    def __init__(
        self, *, json_: bool, tokens: bool, total: int, adjust: bool, fpr: float, quiet: bool
    ) -> None:
        self._json, self._tokens, self._total = json_, tokens, total
        self._adjust, self._fpr, self._quiet = adjust, fpr, quiet
        self._console = results()
        self._held: list[Scored] = []
        self._p_values = array("d")  # of the texts that are long enough for a verdict
        self._marked = 0
        self.count = 0
        self.on_terminal = sys.stdout.isatty()

    @property
    def prints_at_once(self) -> bool:
        """Whether lines appear on a terminal while texts are still being scored."""
        return self.on_terminal and not self._adjust

    def add(self, scored: Scored) -> None:
        """Take one result."""
        self.count += 1
        self._marked += scored.detection.is_marked
        if scored.detection.verdict is not Verdict.TOO_SHORT:
            self._p_values.append(scored.detection.p_value)
        if not self._adjust:
            self._print(scored)
        elif self._tokens or self._total == 1:
            self._held.append(scored)
        else:  # neither tokens nor text will be shown: memory stays small
            detection = dataclasses.replace(scored.detection, tokens=())
            self._held.append(dataclasses.replace(scored, text="", detection=detection))

    def close(self) -> None:
        """Print what was held, and sum up if there was more than one text."""
        adjusted = self._adjusted()
        values = iter(adjusted)
        for scored in self._held:
            q = None if scored.detection.verdict is Verdict.TOO_SHORT else next(values)
            if self._json:
                scored.row["p_adjusted"] = q
            self._print(scored, q)
        if self.count > 1:
            self._sum_up(sum(q <= self._fpr for q in adjusted))

    def _sum_up(self, rejected: int) -> None:
        line = (
            f"{self._marked} of {self.count} texts marked at level {self._fpr:g}; "
            f"{rejected} with q ≤ {self._fpr:g} (Benjamini-Hochberg over {len(self._p_values)} texts)"
        )
        if not self._json:
            write(line + "\n")
        elif not self._adjust:  # stdout is rows only, and these do not say it
            say(line, quiet=self._quiet)

    def _adjusted(self) -> Sequence[float]:
        if not self._p_values:
            return []
        from dewmark.stats.multiple_testing import benjamini_hochberg

        adjusted: list[float] = benjamini_hochberg(self._p_values).tolist()
        return adjusted

    def _print(self, scored: Scored, q: float | None = None) -> None:
        if self._json:
            emit(scored.row)
            return
        from dewmark.cli.terminal import colour_tokens, legend, token_table, verdict_line

        line = verdict_line(str(scored.id), scored.detection).append(scored.note)
        if q is not None and self.count > 1:
            line.append(f", q = {q:.2g}")
        self._console.print(line)
        if self.on_terminal and (self._tokens or self._total == 1):
            self._console.print(
                colour_tokens(self._console, scored.text, scored.detection),
                legend(self._console),
                sep="\n\n",
                end="\n\n",
            )
        elif self._tokens:
            write(token_table(scored.detection))


_HELD = 10_000  # up to so many texts wait for the column that needs them all


def detect(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXTFILE… | -]", help="Text files; - is standard input.")
    ] = None,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Key file, made by: dewmark key new. Repeat it to ask which key a text carries.",
        ),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="All *.key files of a folder, as if each were a --key.")
    ] = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(metavar="IN.jsonl", help="Score each line's text (after its prompt, if any)."),
    ] = None,
    in_: Annotated[
        str | None,
        typer.Option(
            "--in",
            metavar="FILE|URL",
            help="The same from JSONL or Parquet (by its ending; a folder holds Parquet): a path, s3://, "
            "gs://, http(s)://.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.parquet|.jsonl",
            help="Write results there instead of printing them; a run that was stopped goes on where it was.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="With --out: local, or ray (the cluster that RAY_ADDRESS names, else here)."
        ),
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, show_default="1, with ray all CPUs", help="With --out: processes, each with a detector."
        ),
    ] = None,
    block_size: Annotated[
        int, typer.Option(min=1, help="With --out: texts that a worker scores and stores together.")
    ] = 1024,
    prompt: options.Prompt = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    detector: options.Detector = None,
    fpr: Annotated[float, typer.Option(help="Share of unmarked texts that may be called marked.")] = 0.01,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="the scheme's first, for dew: key",
            help="key: valid for every text; monte-carlo: the same by simulation; gaussian, beta: the "
            "paper's, as if tokens were independent; empirical: rank among negatives, needs --calibration. "
            "Schemes other than dew may know others.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="CAL.json", help="What dewmark calibrate wrote for this key.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Rank among this group's negatives, not among all."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Take each row's group from this field of --jsonl.")
    ] = None,
    adjust: Annotated[
        bool | None,
        typer.Option(
            "--adjust/--no-adjust",
            show_default="with --out, or up to 10,000 texts without --tokens",
            help="Give each of several texts q (in JSON: p_adjusted), its p-value after Benjamini-Hochberg: "
            "of all texts with q ≤ 0.01 about 1% at most are unmarked. Results are then printed after the "
            "last text; otherwise as they come, and only the closing line counts the q.",
        ),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Also give every token's score and place.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a page with the coloured texts.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, show_default="32, more for several keys", help="Texts in one batch."),
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Score texts against a key: verdict, p-value, z, effective length; against several: which one it is."""
    from dewmark.cli.inputs import batched, read_files, read_rows

    if not texts and jsonl is None and in_ is None:
        raise ConfigError(
            "nothing to score: give text files, - for standard input, --jsonl IN.jsonl or --in FILE"
        )
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"--fpr must lie in (0, 1), got {fpr:g}")
    scoring = Scoring(
        key=tuple(key or ()),
        keys=keys,
        detector=detector,
        host=host,
        scheme=scheme,
        settings=tuple(settings or ()),
        fpr=fpr,
        test=test,
        tokens=tokens,
        calibration=calibration,
        group=group,
    )
    _check_calibrated(scoring, by=by, files=bool(texts))
    source = _source(jsonl, in_, prompt=prompt, by=by)
    if out is not None:
        if texts or html is not None or source is None:
            raise ConfigError("--out takes the rows of a file: give --in FILE, no text files and no --html")
        from dewmark.batch.detecting import score_file

        _check_groups(scoring, source if by is not None else None)
        score_file(
            source,
            out,
            scoring,
            engine=engine,
            workers=workers,
            block_size=block_size,
            batch_size=batch_size,
            adjust=adjust is not False,
            json_=json_,
            quiet=quiet,
        )
        return
    if engine != "local" or workers is not None:
        raise ConfigError("--engine and --workers are for a run into a file: add --out OUT.parquet")
    files = read_files(texts or [], prompt=prompt)
    blocks = source.blocks(_HELD) if source is not None else []
    if source is not None:
        rows = source.items(blocks)
    else:
        rows = read_rows(jsonl, prompt=prompt, by=by) if jsonl is not None else iter(())
    total = len(files) + sum(block.rows for block in blocks)
    _check_groups(scoring, source if by is not None else None)
    if adjust is None:
        adjust = 0 < total <= _HELD and not tokens
    verdicts = Verdicts(json_=json_, tokens=tokens, total=total, adjust=adjust, fpr=fpr, quiet=quiet)
    kept: list[Scored] = []
    with Progress(quiet=quiet) as progress:
        scorer = scoring.open(progress=progress)
        for batch in batched(chain(files, rows), batch_size or scorer.batch_size):
            for scored in scorer(batch):
                if verdicts.prints_at_once:
                    progress.clear()
                verdicts.add(scored)
                if html is not None:
                    kept.append(scored)
            if not verdicts.prints_at_once:
                progress("scoring", verdicts.count, total)
    verdicts.close()
    if html is not None:
        from dewmark.reports.detection_page import write_html

        write_html(html, [(str(scored.id), scored.text, scored.detection) for scored in kept])
        say(f"wrote {html}", quiet=quiet)


def _check_calibrated(scoring: Scoring, *, by: str | None, files: bool) -> None:
    """Which of the options about calibrations go together."""
    if scoring.calibration is None:
        if scoring.test == EMPIRICAL:
            raise ConfigError("--test empirical needs --calibration CAL.json, made by: dewmark calibrate")
        if scoring.group is not None or by is not None:
            raise ConfigError(
                "--group and --by choose a calibration's negatives: give --calibration CAL.json"
            )
        return
    if scoring.test not in (None, EMPIRICAL):
        raise ConfigError(
            f"--calibration is for --test empirical, not {scoring.test}: leave out one of the two"
        )
    if scoring.many:
        raise ConfigError("a calibration belongs to one key: give one --key with --calibration")
    if scoring.group is not None and by is not None:
        raise ConfigError(
            "--group names one group for all texts, --by a field of each row: give one of the two"
        )
    if by is not None and files:
        raise ConfigError(
            "--by reads a field of --jsonl rows, which text files do not have: use --group NAME"
        )


def _source(jsonl: Path | None, in_: str | None, *, prompt: str | None, by: str | None) -> Source | None:
    """The file that rows come from; None if there is none, or if it is a pipe, which is read only once."""
    from dewmark.batch.sources import JsonlSource, open_source

    if jsonl is not None and in_ is not None:
        raise ConfigError("--jsonl and --in both name the rows: give one of the two")
    if in_ is not None:
        return open_source(in_, prompt=prompt, by=by)
    if jsonl is not None and (jsonl.is_file() or not jsonl.exists()):
        return JsonlSource(str(jsonl), prompt, by)
    return None


def _check_groups(scoring: Scoring, source: Source | None) -> None:
    """A group that the calibration lacks, or that is too small, is told before anything is scored.

    ``source`` has groups of its own: it is looked through, since a run should not stop in its middle.
    """
    if scoring.calibration is None:
        return
    from dewmark.stats.calibration import Calibration

    calibration = Calibration.load(scoring.calibration)
    groups = {scoring.group}
    if source is not None:
        groups = {item.group for item in source.items(source.blocks(_HELD))}
    for name in sorted(groups, key=str):
        if shortage := calibration.shortage(scoring.fpr, group=name):
            say(f"dewmark: warning: {shortage}")
