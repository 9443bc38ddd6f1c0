"""``dewmark attack``: edit texts the way people and programs do before a detector sees them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from dewmark import config
from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say, write
from dewmark.errors import ConfigError


def attack(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="copy-paste, delete, dipper, none, paraphrase, round-trip, synonym, translate or truncate, "
            "or an attack of your own: FILE.py:CLASS.",
        ),
    ],
    texts: options.TextFiles = None,
    in_: Annotated[
        Path | None,
        typer.Option("--in", metavar="A.jsonl", help="Attack the text of each line (requires --out)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="B.jsonl", help="Write the lines of --in here; a stopped run is resumed."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Set a parameter of the attack, e.g. --set r=0.5; repeatable."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed; with a text's id it decides everything random.")
    ] = 0,
    batch_size: options.BatchSize = 64,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Attack texts: delete or replace words, paraphrase, translate, mix, truncate.

    Attack unmarked texts too: they are the negatives to compare with.
    """
    from dewmark.batch import read_files
    from dewmark_lab.attacks.base import load_attack
    from dewmark_lab.attacks.batch import attack_file, attacked_row, read_attack_rows, row_seeds

    if bool(texts) == (in_ is not None):
        raise ConfigError("give either text files (- for standard input), or --in A.jsonl with --out B.jsonl")
    if (in_ is None) != (out is None):
        raise ConfigError("--in and --out go together: give both or neither")
    if in_ is not None and out is not None and out.exists() and out.samefile(in_):
        raise ConfigError(f"--out is the input file {in_} itself: choose another name")
    chosen = load_attack(name, **config.parse_settings(settings or ()))
    if in_ is not None:
        rows = read_attack_rows(in_)
    else:
        rows = [{"id": row.id, "text": row.text} for row in read_files(texts or [])]
        if len(rows) > 1 and not json_:
            raise ConfigError(f"{len(rows)} texts would run into each other on stdout: add --json")
    plain, seeds = [row["text"] for row in rows], row_seeds(rows, seed)
    identity = {**chosen.identity(), "seed": seed}
    started = time.perf_counter()
    with Progress(quiet=quiet) as progress:
        cost = chosen.plan(plain, seeds=seeds)
        if cost is not None:
            say(f"{chosen.label}: {cost}", quiet=quiet)
        if out is not None:
            made = attack_file(rows, out, chosen, seed=seed, batch_size=batch_size, progress=progress)
        else:
            attacked = chosen.apply(plain, seeds=seeds, progress=progress)
    if out is not None:
        if json_:
            summary = {"out": str(out), "rows": made.rows, "resumed_from": made.resumed_from}
            emit({**summary, "language": chosen.language, "attack": identity})
        else:
            write(f"{made.rows} rows in {out}\n")
    elif json_:
        for row, text in zip(rows, attacked, strict=True):
            emit(attacked_row(row, text, attack=identity))
    else:
        write(attacked[0])  # only the text, so that it can be piped into a detector
    say(f"{chosen.label}, {time.perf_counter() - started:.1f} s", quiet=quiet)
