"""``dewmark detect``: is a text marked, by which key, and with what certainty.

A Benjamini-Hochberg value needs all p-values, so results that carry one are printed after the last text;
others are printed as they come, and only their p-values are kept, for the summary.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from array import array
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, printable, results, say, write
from dewmark.config import parse_settings
from dewmark.errors import ConfigError
from dewmark.registry import unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.batch import DetectorSpec, DetectResult, Scored, Source
    from dewmark.batch.boilerplate import Mode

_TEXTS, _MANY = "Texts", "Many texts"  # panels of --help
_HELD = 10_000  # up to this many texts wait for their Benjamini-Hochberg value


def detect(
    texts: options.TextFiles = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Score the text of each line (after its prompt, if any).",
            rich_help_panel=_TEXTS,
        ),
    ] = None,
    in_: Annotated[
        str | None,
        typer.Option(
            "--in",
            metavar="FILE|URL",
            help="Score the rows of a JSONL or Parquet file or a folder of Parquet files: a path, s3://, "
            "gs://, http(s)://.",
            rich_help_panel=_TEXTS,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Prompt that the texts continue; never scored.", rich_help_panel=_TEXTS
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Watch standard input until it is found to be marked.",
            rich_help_panel=_TEXTS,
        ),
    ] = False,
    boilerplate: Annotated[
        str,
        typer.Option(
            metavar="keep|once|drop",
            help="What many rows share, such as a form: score it, count all copies of a template once in q, "
            "or leave it out.",
            rich_help_panel=_TEXTS,
        ),
    ] = "keep",
    key: options.KeyFiles = None,
    keys: options.KeyFolder = None,
    detector: options.Detector = None,
    reader: options.Reader = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    fpr: options.FalsePositiveRate = 0.01,
    roots: options.Roots = None,
    passages: Annotated[
        bool,
        typer.Option(
            "--passages",
            help="Search for marked passages too, as dewmark locate does; p-values pay for it.",
            rich_help_panel=options.TEST,
        ),
    ] = False,
    translate_back: Annotated[
        bool,
        typer.Option(
            "--translate-back",
            help="Also score Chinese, French and Portuguese texts in English; p-values pay for both.",
            rich_help_panel=options.TEST,
        ),
    ] = False,
    attempts: options.Attempts = 1,
    adjust: Annotated[
        bool | None,
        typer.Option(
            "--adjust/--no-adjust",
            show_default="for 2 to 10,000 texts",
            help="Give each of several texts q, its p-value after Benjamini-Hochberg.",
            rich_help_panel=options.TEST,
        ),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            metavar="AUDIT.json",
            help="Audit of this key: add how many unmarked texts it scores as high.",
            rich_help_panel=options.TEST,
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="CAL.json",
            help="Calibration of this key: rank texts among unmarked ones.",
            rich_help_panel=options.TEST,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Rank among the unmarked texts of this group.",
            rich_help_panel=options.TEST,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="Take each row's group from this field.", rich_help_panel=options.TEST
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="the scheme's first",
            help="Another test of the scheme (see docs/detection.md).",
            rich_help_panel=options.TEST,
        ),
    ] = None,
    json_: options.Json = False,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="Include the score and position of every token.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.html", help="Write a page with the coloured texts.", rich_help_panel=options.OUTPUT
        ),
    ] = None,
    quiet: options.Quiet = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write results to a .parquet or .jsonl file; a stopped run is resumed.",
            rich_help_panel=_MANY,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="local|ray",
            help="With --out: ray uses the cluster that RAY_ADDRESS names.",
            rich_help_panel=_MANY,
        ),
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="1, with ray all CPUs",
            help="With --out: number of worker processes.",
            rich_help_panel=_MANY,
        ),
    ] = None,
    block_size: Annotated[
        int,
        typer.Option(min=1, help="With --out: texts that a worker stores together.", rich_help_panel=_MANY),
    ] = 1024,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, show_default="32, more for several keys", help="Texts per batch.", rich_help_panel=_MANY
        ),
    ] = None,
) -> None:
    """Score texts against a key: verdict, p-value, z, effective length. With several keys: find the key."""
    from dewmark.batch.inputs import batched, read_files, read_rows
    from dewmark.batch.scorers import DetectorSpec

    if not texts and jsonl is None and in_ is None and not follow:
        raise ConfigError(
            "nothing to score: give text files, - for standard input, --jsonl IN.jsonl or --in FILE"
        )
    if follow:
        from dewmark.cli.following import follow_stream

        given: dict[str, object] = {
            "--jsonl": jsonl,
            "--in": in_,
            "--out": out,
            "--html": html,
            "--calibration": calibration,
        }
        given |= {"--audit": audit, "--test": test, "--keys": keys, "--tokens": tokens}
        given |= {
            "--roots": roots,
            "--reader": reader,
            "--translate-back": translate_back,
            "--passages": passages,
        }
        follow_stream(
            options.only_key(key, [name for name, value in given.items() if value], texts),
            detector=detector,
            host=host,
            scheme=scheme,
            settings=settings,
            prompt=prompt,
            fpr=fpr,
            json_=json_,
            quiet=quiet,
        )
        return
    if by is not None:
        _check_by(calibration, group=group, files=bool(texts))
    spec = DetectorSpec(
        keys=(*(key or ()), *((keys,) if keys is not None else ())),
        detector=detector,
        host=host,
        scheme=scheme,
        settings=parse_settings(settings or ()),
        fpr=fpr,
        test=test,
        tokens=tokens,
        calibration=calibration,
        group=group,
        passages=passages,
        coverage=bool(texts),
        attempts=attempts,
        audit=audit,
        translate_back=translate_back,
        reader=reader,
        roots=roots,
    )
    source = _source(jsonl, in_, prompt=prompt, by=by)
    mode = _boilerplate_mode(boilerplate, source)
    if out is not None:
        if texts or html is not None or source is None:
            raise ConfigError("--out takes the rows of a file: give --in FILE, no text files and no --html")
        _check_groups(spec, source if by is not None else None)
        from dewmark.batch.detecting import detect_file

        started = time.perf_counter()
        with Progress(quiet=quiet) as progress:
            found = detect_file(
                source,
                out,
                spec,
                engine=engine,
                workers=workers,
                block_size=block_size,
                batch_size=batch_size,
                adjust=adjust is not False,
                boilerplate=boilerplate,
                progress=progress,
            )
        _print_result(found, engine=engine, seconds=time.perf_counter() - started, json_=json_, quiet=quiet)
        return
    if engine != "local" or workers is not None:
        raise ConfigError("--engine and --workers need an output file: add --out OUT.parquet")
    files = read_files(texts or [], prompt=prompt)
    blocks = source.blocks(_HELD) if source is not None else []
    if source is not None:
        rows = source.rows(blocks)
    else:
        rows = read_rows(jsonl, prompt=prompt, by=by) if jsonl is not None else iter(())
    total = len(files) + sum(block.rows for block in blocks)
    _check_groups(spec, source if by is not None else None)
    if adjust is None:
        adjust = 0 < total <= _HELD and not tokens
    verdicts = Verdicts(json_=json_, tokens=tokens, total=total, adjust=adjust, fpr=fpr, quiet=quiet)
    kept: list[Scored] = []
    with Progress(quiet=quiet) as progress:
        scorer = spec.open(progress=progress)
        shared = None
        if source is not None and mode is not None:
            from dewmark.batch.boilerplate import Boilerplate

            shared = Boilerplate.of_source(source, mode)
        for batch in batched(chain(files, rows), batch_size or scorer.batch_size):
            for scored in scorer(batch) if shared is None else shared.scored(scorer, batch):
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


class Verdicts:
    """Prints results; ``adjust`` holds them back until `close`, which adds Benjamini-Hochberg values."""

    def __init__(
        self, *, json_: bool, tokens: bool, total: int, adjust: bool, fpr: float, quiet: bool
    ) -> None:
        self._json, self._tokens, self._total = json_, tokens, total
        self._adjust, self._fpr, self._quiet = adjust, fpr, quiet
        self._console = results()
        self._held: list[Scored] = []
        self._p_values = array("d")  # of the texts with a verdict
        self._templates: list[str | None] = []  # of the same texts, with --boilerplate once
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
        if scored.detection.verdict.conclusive:
            self._p_values.append(scored.detection.p_value)
            if "template" in scored.row:
                self._templates.append(scored.row["template"])
        if not self._adjust:
            self._print(scored)
        elif self._tokens or self._total == 1:
            self._held.append(scored)
        else:  # neither tokens nor text will be shown: save memory
            detection = dataclasses.replace(scored.detection, tokens=())
            self._held.append(dataclasses.replace(scored, text="", detection=detection))

    def close(self) -> None:
        """Print the results that were held back and, for more than one text, a summary."""
        adjusted = self._adjusted()
        values = iter(adjusted)
        for scored in self._held:
            q = next(values) if scored.detection.verdict.conclusive else None
            if self._json:
                scored.row["p_adjusted"] = q
            self._print(scored, q)
        if self.count > 1:
            rejected = sum(q <= self._fpr for q in adjusted)
            line = _summary_line(self._marked, self.count, rejected, len(self._p_values), self._fpr)
            if not self._json:
                write(line + "\n")
            elif not self._adjust:  # stdout has rows only, and these have no p_adjusted
                say(line, quiet=self._quiet)

    def _adjusted(self) -> Sequence[float]:
        if not self._p_values:
            return []
        from dewmark.stats.multiple_testing import benjamini_hochberg

        weights = None
        if self._templates:
            from dewmark.batch.boilerplate import template_weights

            weights = template_weights(self._templates)
        adjusted: list[float] = benjamini_hochberg(self._p_values, weights=weights).tolist()
        return adjusted

    def _print(self, scored: Scored, q: float | None = None) -> None:
        if self._json:
            emit(scored.row)
            return
        from dewmark.cli.token_colours import colour_tokens, legend, token_table, verdict_line

        line = verdict_line(str(scored.id), scored.detection).append(_key_note(scored) + _audit_note(scored))
        if q is not None and self.count > 1:
            line.append(f", q = {q:.2g}")
        self._console.print(line)
        notes = [] if scored.row["manifest"] is None else [scored.row["manifest"]["sentence"]]
        if scored.detection.verdict.conclusive:
            left = scored.row.get("not_tested", ())
            notes += [f"not tested: {each['key_file']} ({each['scheme']}): {each['reason']}" for each in left]
        for note in notes:
            self._console.print(f"    {printable(note)}", markup=False, highlight=False)
        if self.on_terminal and (self._tokens or self._total == 1):
            self._console.print(
                colour_tokens(self._console, scored.text, scored.detection),
                legend(self._console),
                sep="\n\n",
                end="\n\n",
            )
        elif self._tokens:
            write(token_table(scored.detection))


def _key_note(scored: Scored) -> str:
    """Which of several keys the text carries, or fits best."""
    if scored.key_file is None or not scored.detection.verdict.conclusive:
        return ""
    kind = "" if scored.detection.scheme == "dew" else f", {scored.detection.scheme}"
    which = f"{printable(scored.key_file)} ({scored.detection.key_fingerprint}{kind})"
    count = scored.row["keys"]
    if scored.detection.is_marked:
        return f", key {which}, corrected for {count} keys"
    return f", best of {count} keys: {which}"


def _audit_note(scored: Scored) -> str:
    """What the audit of the key says about the text, if one was given."""
    if "this_key_group" not in scored.row or not scored.detection.verdict.conclusive:
        return ""
    from dewmark.batch.audit_report import NOT_AUDITED

    level = scored.this_key
    return "; " + (NOT_AUDITED if level is None else level.sentence)


def _summary_line(marked: int, texts: int, rejected: int, tested: int, fpr: float) -> str:
    return (
        f"{marked} of {texts} texts marked at level {fpr:g}; {rejected} with q ≤ {fpr:g} "
        f"(Benjamini-Hochberg over {tested} texts)"
    )


def _print_result(found: DetectResult, *, engine: str, seconds: float, json_: bool, quiet: bool) -> None:
    """The summary of a run with --out."""
    if json_:
        emit(
            {
                "out": str(found.out),
                "rows": found.rows,
                "resumed_from": found.resumed_from,
                "blocks_retried": found.blocks_retried,
                "marked": found.marked,
                "rejected": found.rejected,
                "fpr": found.fpr,
                "engine": engine,
            }
        )
    else:
        write(_summary_line(found.marked, found.rows, found.rejected, found.tested, found.fpr) + "\n")
    retried = f", {found.blocks_retried} blocks retried after a worker died" if found.blocks_retried else ""
    say(
        f"wrote {found.out}: {found.rows - found.resumed_from} texts scored, {found.resumed_from} resumed"
        f"{retried}, {seconds:.1f} s",
        quiet=quiet,
    )


def _check_by(calibration: Path | None, *, group: str | None, files: bool) -> None:
    if calibration is None:
        raise ConfigError("--by selects unmarked texts of a calibration: give --calibration CAL.json")
    if group is not None:
        raise ConfigError("--group is one group for all texts, --by a field of each row: give only one")
    if files:
        raise ConfigError("--by reads a field of rows, which text files do not have: use --group NAME")


def _boilerplate_mode(name: str, source: Source | None) -> Mode | None:
    """What to do with what rows share; None where it is kept."""
    if name == "keep":
        return None
    from dewmark.batch.boilerplate import Mode

    if name not in list(Mode):
        raise unknown_name("boilerplate", name, list(Mode))
    if source is None:
        raise ConfigError(
            "--boilerplate compares the rows of a file: give --jsonl FILE or --in FILE, no pipe"
        )
    return Mode(name)


def _source(jsonl: Path | None, in_: str | None, *, prompt: str | None, by: str | None) -> Source | None:
    """The file of rows; None if there is none, or if it is a pipe, which can be read only once."""
    if jsonl is not None and in_ is not None:
        raise ConfigError("--jsonl and --in both name the rows: give only one")
    if jsonl is None and in_ is None:
        return None
    from dewmark.batch.sources import JsonlSource, open_source

    if in_ is not None:
        return open_source(in_, prompt=prompt, by=by)
    if jsonl is not None and (jsonl.is_file() or not jsonl.exists()):
        return JsonlSource(str(jsonl), prompt, by)
    return None


def _check_groups(spec: DetectorSpec, source: Source | None) -> None:
    """Report a group that the calibration lacks, or that is too small, before anything is scored.

    A ``source`` whose rows have groups is read through, since a run should not fail half-way.
    """
    if spec.calibration is None:
        return
    from dewmark.stats.calibration import Calibration

    calibration = Calibration.load(spec.calibration)
    groups = {spec.group}
    if source is not None:
        groups = {row.group for row in source.rows(source.blocks(_HELD))}
    for name in sorted(groups, key=str):
        if shortage := calibration.shortage(spec.fpr, group=name):
            say(f"dewmark: warning: {shortage}")
