"""``dewmark detect``: is a text marked, by which key, and with what certainty.

A Benjamini-Hochberg value needs all p-values, so results that carry one are printed after the last text;
others are printed as they come, and only their p-values are kept, for the summary.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
import io
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, printable, results, say, write
from dewmark.config import parse_settings
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dewmark.batch import DetectorSpec, DetectResult, Scored, Source
    from dewmark.batch.scorers import BackTranslation
    from dewmark.streams import Stream

_HELD = 10_000  # up to this many texts wait for their Benjamini-Hochberg value
_EVERY = 10  # words between two lines of --follow
_many_option = functools.partial(typer.Option, rich_help_panel="Many texts")


def detect(
    texts: options.TextFiles = None,
    rows: options.Rows = None,
    prompt: options.Prompt = None,
    follow: Annotated[bool, typer.Option("--follow", help="Watch stdin until it is marked.")] = False,
    key: options.KeyFiles = None,
    keys: options.KeyFolder = None,
    detector: options.Detector = None,
    reader: options.Reader = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    fpr: options.FalsePositiveRate = 0.01,
    roots: options.Roots = None,
    translate_back: Annotated[
        bool,
        options.of_test(
            "--translate-back",
            help="Also score texts translated into English, from French and Portuguese or by --translator; "
            "p-values pay for all versions.",
        ),
    ] = False,
    translator: Annotated[
        list[str] | None, options.of_test(metavar="HOST", help="A chat model to translate back; repeatable.")
    ] = None,
    written_in: Annotated[
        str, options.of_test("--written-in", metavar="CODES", help="Languages to translate into, e.g. en,de.")
    ] = "en",
    attempts: options.Attempts = 1,
    calibration: Annotated[
        Path | None, options.of_test(metavar="CAL.json", help="Calibration: rank texts among unmarked ones.")
    ] = None,
    test: options.Test = None,
    json_: options.Json = False,
    tokens: Annotated[bool, options.of_output("--tokens", help="Include every token's score.")] = False,
    html: Annotated[
        Path | None, options.of_output(metavar="OUT.html | -", help="Write a coloured page.")
    ] = None,
    quiet: options.Quiet = False,
    out: Annotated[
        Path | None, _many_option(metavar="FILE", help="Write .parquet or .jsonl; a stopped run is resumed.")
    ] = None,
    engine: Annotated[
        str, _many_option(metavar="local|ray", help="With --out: ray uses the cluster of RAY_ADDRESS.")
    ] = "local",
    workers: Annotated[
        int | None, _many_option(min=1, show_default="1, with ray all CPUs", help="With --out: processes.")
    ] = None,
    block_size: Annotated[int, _many_option(min=1, help="With --out: texts stored together.")] = 1024,
) -> None:
    """Score texts against a key: verdict, p-value, z, effective length. With several keys: find the key."""
    from dewmark.batch.inputs import batched, read_files, warn_json_lines
    from dewmark.batch.scorers import DetectorSpec
    from dewmark.batch.sources import open_source

    if not texts and rows is None and not follow:
        raise ConfigError("nothing to score: give text files, - for standard input, or --in FILE")
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
        coverage=bool(texts),
        attempts=attempts,
        translate_back=_translation(written_in, translator or ()) if translate_back else None,
        reader=reader,
        roots=roots,
    )
    if not translate_back and (translator or written_in != "en"):
        raise ConfigError("--translator and --written-in say how to translate: add --translate-back")
    if follow:
        named = [each for each in texts or () if each != "-"]
        used: dict[str, object] = {"TEXTFILE": named, "--in": rows, "--out": out, "--html": html}
        used |= {"--calibration": calibration, "--test": test, "--keys": keys, "--tokens": tokens}
        used |= {"--roots": roots, "--reader": reader}
        used |= {"--translate-back": translate_back}
        if unused := [name for name, value in used.items() if value]:
            raise ConfigError(f"--follow watches standard input under one key: leave out {', '.join(unused)}")
        if len(key or ()) > 1:
            raise ConfigError("--follow takes one --key; a key with a ring has many members")
        _follow(spec, prompt=prompt, json_=json_, quiet=quiet)
        return
    source = None if rows is None else open_source(rows, prompt=prompt)
    if spec.calibration is not None:  # before anything is scored
        from dewmark.registry import AUDITS

        if shortage := AUDITS["calibration"].load(spec.calibration).shortage(fpr):
            say(f"dewmark: warning: {shortage}")
    if out is not None:
        if texts or html is not None or source is None:
            raise ConfigError("--out takes the rows of a file: give --in FILE, no text files and no --html")
        _detect_file(source, out, spec, engine, workers, block_size, json_=json_, quiet=quiet)
        return
    if engine != "local" or workers is not None:
        raise ConfigError("--engine and --workers need an output file: add --out OUT.parquet")
    files = read_files(texts or [], prompt=prompt)
    warn_json_lines(files)
    blocks = source.blocks(_HELD) if source is not None else []
    given = chain(files, source.rows(blocks) if source is not None else ())
    total = len(files) + sum(block.rows for block in blocks)
    verdicts = _Verdicts(json_=json_, tokens=tokens, total=total, fpr=fpr, quiet=quiet)
    kept: list[Scored] = []
    with Progress(quiet=quiet) as progress:
        scorer = spec.open(progress=progress)
        for batch in batched(given, scorer.batch_size):
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
        from dewmark.cli.token_colours import save_html

        save_html(html, "Watermark detection", [functools.partial(_draw, each) for each in kept])
        say(f"wrote {html}", quiet=quiet)


class _Verdicts:
    """Prints results; those of several, but not too many texts are held back for their q."""

    def __init__(self, *, json_: bool, tokens: bool, total: int, fpr: float, quiet: bool) -> None:
        self._json, self._tokens, self._total = json_, tokens, total
        self._adjust, self._fpr, self._quiet = total <= _HELD and not tokens, fpr, quiet
        self._console = results()
        self._held: list[Scored] = []
        self._p_values = array("d")  # of the texts with a verdict
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
        if not self._adjust:
            self._print(scored)
        elif self._total == 1:
            self._held.append(scored)
        else:  # the text will not be shown: save memory
            detection = scored.detection
            if not detection.leaves_no_room:  # which the tokens tell
                detection = dataclasses.replace(detection, tokens=())
            self._held.append(dataclasses.replace(scored, text="", detection=detection))

    def close(self) -> None:
        """Print the results that were held back and, for more than one text, a summary."""
        from dewmark.stats.multiple_testing import benjamini_hochberg

        adjusted = benjamini_hochberg(self._p_values).tolist()
        values = iter(adjusted)
        for scored in self._held:
            q = next(values) if scored.detection.verdict.conclusive else None
            scored.row["p_adjusted"] = q
            self._print(scored, q)
        if self.count > 1:
            rejected = sum(q <= self._fpr for q in adjusted)
            line = _summary_line(self._marked, self.count, rejected, len(self._p_values), self._fpr)
            if not self._json:
                write(line + "\n")
            elif not self._adjust:  # stdout has rows only, and these have no p_adjusted
                say(line, quiet=self._quiet)

    def _print(self, scored: Scored, q: float | None = None) -> None:
        if self._json:
            emit(scored.row)
            return
        _draw(
            scored,
            self._console,
            note="" if q is None or self.count == 1 else f", q = {q:.2g}",
            text=self._tokens or (self.on_terminal and self._total == 1),
        )


def _translation(codes: str, hosts: Sequence[str]) -> BackTranslation:
    from dewmark.registry import TRANSLATORS

    if "back" not in TRANSLATORS:
        raise ConfigError("no translator is installed: pip install dewmark-lab")
    back: BackTranslation = TRANSLATORS["back"](
        tuple(code.strip() for code in codes.split(",")), tuple(hosts)
    )
    return back


def _draw(scored: Scored, console: Console, *, note: str = "", text: bool = True) -> None:
    """Print the verdict on a text, remarks and, if asked, the coloured text."""
    from dewmark.cli.token_colours import colour_tokens, legend, verdict_line
    from dewmark.registry import TRANSLATORS

    found, manifest = scored.detection, scored.row["manifest"]
    console.print(verdict_line(str(scored.id), found).append(_key_note(scored) + note))
    notes = [] if manifest is None else [manifest["sentence"]]
    if found.verdict.conclusive:
        left = scored.row.get("not_tested", ())
        notes += [f"not tested: {each['key_file']} ({each['scheme']}): {each['reason']}" for each in left]
    if not found.is_marked and "translated_back" not in scored.row and f"{found.language}-en" in TRANSLATORS:
        notes.append("a translation hides a mark: --translate-back also tests this text in English")
    for each in notes:
        console.print(f"    {printable(each)}", markup=False, highlight=False)
    if text:
        coloured = colour_tokens(scored.text, found)
        console.print(coloured, legend(), sep="\n\n", end="\n\n")


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


def _summary_line(marked: int, texts: int, rejected: int, tested: int, fpr: float) -> str:
    return (
        f"{marked} of {texts} texts marked at level {fpr:g}; {rejected} with q ≤ {fpr:g} "
        f"(Benjamini-Hochberg over {tested} texts)"
    )


def _detect_file(
    source: Source,
    out: Path,
    spec: DetectorSpec,
    engine: str,
    workers: int | None,
    block_size: int,
    *,
    json_: bool,
    quiet: bool,
) -> None:
    """Score a file into a file, and print a summary."""
    from dewmark.batch.detecting import detect_file

    started = time.perf_counter()
    with Progress(quiet=quiet) as progress:
        found: DetectResult = detect_file(
            source, out, spec, engine=engine, workers=workers, block_size=block_size, progress=progress
        )
    if json_:
        names = ("rows", "resumed_from", "blocks_retried", "marked", "rejected", "fpr")
        counted = {name: getattr(found, name) for name in names}
        emit({"out": str(found.out), **counted, "engine": engine})
    else:
        write(_summary_line(found.marked, found.rows, found.rejected, found.tested, found.fpr) + "\n")
    retried = f", {found.blocks_retried} blocks retried after a worker died" if found.blocks_retried else ""
    say(
        f"wrote {found.out}: {found.rows - found.resumed_from} texts scored, {found.resumed_from} resumed"
        f"{retried}, {time.perf_counter() - started:.1f} s",
        quiet=quiet,
    )


def _follow(spec: DetectorSpec, *, prompt: str | None, json_: bool, quiet: bool) -> None:
    """Print the p-value as words arrive, until it reaches the level or the text ends."""
    from dewmark.streams import Stream

    with Progress(quiet=quiet) as progress:  # a stream is followed word by word, without a reader
        bound = dataclasses.replace(spec, reader="none").open(progress=progress).bound
    watched = Stream([bound], prompt=prompt, fpr=spec.fpr)
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
