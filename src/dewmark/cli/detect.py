"""``dewmark detect``: is a text marked, by which key, and how sure can one be."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.console import say
from dewmark.cli.progress import Progress
from dewmark.cli.scoring import ManyKeys, OneKey, load_keys, open_scheme
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.cli.scoring import Scored
    from dewmark.stats.calibration import Calibration

__all__ = ["detect"]

_HELD = 10_000  # up to so many texts wait for the column that needs them all
_EMPIRICAL = "empirical"


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
            show_default="up to 10,000 texts, without --tokens",
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
    from dewmark.cli.inputs import batched, count_lines, read_files, read_rows
    from dewmark.cli.verdicts import Verdicts
    from dewmark.scheme import check_test

    if not texts and jsonl is None:
        raise ConfigError("nothing to score: give text files, - for standard input, or --jsonl IN.jsonl")
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"--fpr must lie in (0, 1), got {fpr:g}")
    many = keys is not None or len(key or ()) > 1
    _check_calibrated(test, calibration, group=group, by=by, files=bool(texts), many=many)
    files = read_files(texts or [], prompt=prompt)
    rows = read_rows(jsonl, prompt=prompt, by=by) if jsonl is not None else iter(())
    total = len(files) + (count_lines(jsonl) if jsonl is not None else 0)
    ranks = None
    if calibration is not None:
        ranks = _load_calibration(calibration, jsonl if by is not None else None, by=by, group=group, fpr=fpr)
    if adjust is None:
        adjust = 0 < total <= _HELD and not tokens
    secrets = load_keys(key or [], keys) if many else {}
    first = Path(next(iter(secrets))) if many else next(iter(key or ()), None)
    verdicts = Verdicts(json_=json_, tokens=tokens, total=total, adjust=adjust, fpr=fpr, quiet=quiet)
    kept: list[Scored] = []
    with Progress(quiet=quiet) as progress:
        bound = open_scheme(detector, first, host, scheme, settings, progress=progress)
        check_test(test, (*bound.tests, _EMPIRICAL))
        scorer: OneKey | ManyKeys
        if many:
            scorer = ManyKeys(secrets, bound, fpr=fpr, test=test, tokens=tokens, progress=progress)
        else:
            if ranks is not None:
                ranks.check(
                    scheme=bound.scheme.name, config_hash=bound.config_hash, key_fingerprint=bound.fingerprint
                )
            scorer = OneKey(bound, fpr=fpr, test=test, tokens=tokens, calibration=ranks, group=group)
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
        from dewmark.reports.html import write_html

        write_html(html, [(str(scored.id), scored.text, scored.detection) for scored in kept])
        say(f"wrote {html}", quiet=quiet)


def _check_calibrated(
    test: str | None, calibration: Path | None, *, group: str | None, by: str | None, files: bool, many: bool
) -> None:
    """Which of the options about calibrations go together."""
    if calibration is None:
        if test == _EMPIRICAL:
            raise ConfigError("--test empirical needs --calibration CAL.json, made by: dewmark calibrate")
        if group is not None or by is not None:
            raise ConfigError(
                "--group and --by choose a calibration's negatives: give --calibration CAL.json"
            )
        return
    if test not in (None, _EMPIRICAL):
        raise ConfigError(f"--calibration is for --test empirical, not {test}: leave out one of the two")
    if many:
        raise ConfigError("a calibration belongs to one key: give one --key with --calibration")
    if group is not None and by is not None:
        raise ConfigError(
            "--group names one group for all texts, --by a field of each row: give one of the two"
        )
    if by is not None and files:
        raise ConfigError(
            "--by reads a field of --jsonl rows, which text files do not have: use --group NAME"
        )


def _load_calibration(
    path: Path, jsonl: Path | None, *, by: str | None, group: str | None, fpr: float
) -> Calibration:
    """Read a calibration; a group that it lacks, or that is too small, is told before anything is scored."""
    from dewmark.cli.inputs import read_rows
    from dewmark.stats.calibration import Calibration

    calibration = Calibration.load(path)
    groups = {group}
    if jsonl is not None:
        # what can be read twice is looked through first: a run should not stop in its middle
        groups = {item.group for item in read_rows(jsonl, prompt=None, by=by)} if jsonl.is_file() else set()
    for name in sorted(groups, key=str):
        if shortage := calibration.shortage(fpr, group=name):
            say(f"dewmark: warning: {shortage}")
    return calibration
