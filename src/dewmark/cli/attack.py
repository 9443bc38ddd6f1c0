"""``dewmark attack``: do to texts what people and programs do to them before a detector sees them."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark import config
from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.attacks.base import Attack

__all__ = ["attack"]


def attack(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="copy-paste, delete, dipper, none, paraphrase, round-trip, synonym, translate or truncate.",
        ),
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXTFILE… | -]", help="Text files, to stdout; - is standard input."),
    ] = None,
    in_: Annotated[
        Path | None, typer.Option("--in", metavar="A.jsonl", help="Attack each line's text; needs --out.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="B.jsonl", help="Where the lines of --in go; a stopped run is resumed."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the attack, e.g. --set r=0.5; repeatable."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="With a text's id it decides all that is random.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, show_default="all cores", help="Texts at once, where the attack can."),
    ] = None,
    batch_size: options.BatchSize = 64,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Attack texts: delete or replace words, paraphrase, translate, mix, cut; give it negatives too."""
    from dewmark.batch.attacking import row_seeds
    from dewmark.cli.inputs import read_files

    if bool(texts) == (in_ is not None):
        raise ConfigError("give either text files (- for standard input), or --in A.jsonl with --out B.jsonl")
    if (in_ is None) != (out is None):
        raise ConfigError("--in and --out go together: give both or neither")
    if in_ is not None and out is not None and out.exists() and out.samefile(in_):
        raise ConfigError(f"--out is the input file {in_} itself: choose another name")
    chosen = _load(name, settings, jobs)
    if in_ is not None:
        rows = _read_rows(in_)
    else:
        rows = [{"id": item.id, "text": item.text} for item in read_files(texts or [], prompt=None)]
        if len(rows) > 1 and not json_:
            raise ConfigError(f"{len(rows)} texts would run into one another on stdout: add --json")
    seeds = row_seeds(rows, seed)
    started = time.perf_counter()
    with Progress(quiet=quiet) as progress:
        cost = chosen.plan([row["text"] for row in rows], seeds=seeds)
        if cost is not None:
            say(f"{chosen.label}: {cost}", quiet=quiet)
        if out is not None:
            _to_file(chosen, rows, out, seed=seed, batch_size=batch_size, progress=progress, json_=json_)
        else:
            _to_stdout(chosen, rows, seed=seed, progress=progress, json_=json_)
    say(f"{chosen.label}, {time.perf_counter() - started:.1f} s", quiet=quiet)


def _load(name: str, settings: list[str] | None, jobs: int | None) -> Attack:
    from dewmark.attacks.base import attack_class, load_attack

    given: dict[str, Any] = dict(config.parse_settings(settings or ()))
    fields = {field.name for field in dataclasses.fields(attack_class(name, engine=given.get("engine")))}
    if jobs is not None:
        given |= {field: jobs for field in ("jobs", "concurrency") if field in fields}
    return load_attack(name, **given)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """All lines with all their fields; every text is checked before the first is attacked."""
    from dewmark import storage
    from dewmark.cli.inputs import read_rows

    for _ in read_rows(path, prompt=None):
        pass
    return [row for _, row in storage.read_jsonl(path)]


def _to_file(
    chosen: Attack,
    rows: list[dict[str, Any]],
    out: Path,
    *,
    seed: int,
    batch_size: int,
    progress: Progress,
    json_: bool,
) -> None:
    from dewmark.batch.attacking import attack_rows

    resumed = attack_rows(chosen, rows, out, seed=seed, batch_size=batch_size, progress=progress)
    progress.clear()
    if json_:
        summary = {"out": str(out), "rows": len(rows), "resumed_from": resumed, "language": chosen.language}
        emit({**summary, "attack": {**chosen.identity(), "seed": seed}})
    else:
        write(f"{len(rows)} rows in {out}\n")


def _to_stdout(
    chosen: Attack, rows: list[dict[str, Any]], *, seed: int, progress: Progress, json_: bool
) -> None:
    from dewmark.batch.attacking import attacked_row, row_seeds

    made = chosen.apply([row["text"] for row in rows], seeds=row_seeds(rows, seed), progress=progress)
    progress.clear()
    if not json_:
        write(made[0])  # the text only, so that it can be piped into a detector
        return
    told = {**chosen.identity(), "seed": seed}
    for row, text in zip(rows, made, strict=True):
        emit(attacked_row(row, text, attack=told))
