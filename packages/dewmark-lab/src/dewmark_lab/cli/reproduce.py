"""``dewmark reproduce``: reproduce a table of the paper, from prompts to report."""

from __future__ import annotations

import dataclasses
import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, check_writable, emit, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dewmark.hosts.base import Host
    from dewmark_lab.experiments.run import Run


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="main, chat, top-k, efficiency, ablation, encoders, cross-host, human-negatives, lexical, "
            "dipper, stealing, or a recipe of your own (FILE.yaml).",
        ),
    ],
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="local: small packaged models; real: Qwen2.5 1.5B as host and attacker; paper: the paper's "
            "models, from the hub.",
        ),
    ] = "local",
    texts: Annotated[
        int | None, typer.Option(min=2, show_default="the recipe's", help="Texts per scheme and seed.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, show_default="the recipe's", help="Number of seeds, each with its own texts."),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="PROTOCOL",
            show_default="the recipe's",
            help="one: all seeds share a key, as in the paper; per-seed; both: two tables.",
        ),
    ] = None,
    schemes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="Rows: labels, or the groups dew, reader, surface, semantic, paper, all."
        ),
    ] = None,
    attacks: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Columns: some of the recipe's attacks, or none.")
    ] = None,
    conditions: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Only some of the recipe's conditions, e.g. chat-200."),
    ] = None,
    stages: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Run only these stages, e.g. generate,attack."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Host model, instead of the recipe's.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model that measures perplexity, instead of the recipe's."),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            metavar="local|URL|MODEL",
            show_default="the recipe's",
            help="Model that paraphrases, translates and judges: local serves Qwen2.5 1.5B on this machine "
            "(local:MODEL another host) over OpenAI's protocol, a URL is a running endpoint.",
        ),
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(metavar="IN.jsonl", help="Prompts to continue, instead of the recipe's.")
    ] = None,
    human: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Human-written texts, JSONL; repeatable."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, show_default="the recipe's", help="Tokens to write per text.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 1,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where workers run: local, or ray (the cluster that RAY_ADDRESS names, else this machine).",
        ),
    ] = "local",
    batch_size: options.BatchSize = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default="reproduced/TABLE-PROFILE", help="Write results here."),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", show_default="--out", help="Keep texts here; tables can share the folder."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say how many texts each stage makes, and estimate the time."),
    ] = False,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Reproduce a table of the paper: write, attack, score, judge, evaluate and report.

    A stopped run is resumed by the same command.
    """
    from dewmark.hosts import load_host
    from dewmark_lab.experiments.language_model import (
        language_model_settings,
        uses_language_model,
        with_language_model,
    )
    from dewmark_lab.experiments.recipe import load_recipe
    from dewmark_lab.experiments.run import Run
    from dewmark_lab.experiments.stages import reproduce as run_stages
    from dewmark_lab.experiments.workers import Workers
    from dewmark_lab.reports.conditions import write_conditions
    from dewmark_lab.reports.experiment_report import write_report

    recipe = load_recipe(table, profile=profile)
    if host is not None:
        recipe = recipe.on_host(host)
    recipe = recipe.narrowed(
        schemes=_names(schemes),
        attacks=_names(attacks),
        stages=_names(stages),
        texts=texts,
        seeds=seeds,
        keys=keys,
        judge=judge,
    )
    if llm is not None and not uses_language_model(recipe):
        raise ConfigError(f"{recipe.name} in profile {profile} uses no language model: leave out --llm")
    folder = out or Path("reproduced") / f"{recipe.name}-{profile}"
    if not dry_run:
        check_writable(folder / "configuration.json")
        check_writable((work or folder) / "generate")
    started = time.perf_counter()
    command = _command(
        table,
        profile=profile,
        texts=recipe.texts,
        seeds=recipe.seeds,
        keys=recipe.keys,
        schemes=schemes,
        attacks=attacks,
        conditions=conditions,
        host=host,
        judge=judge,
        llm=llm,
        prompts=prompts,
        tokens=tokens,
        human=human,
    )
    with (
        Progress(quiet=quiet) as progress,
        Workers(jobs=jobs, engine=engine, device=device, dtype=dtype, progress=progress) as workers,
    ):
        asked = llm or recipe.llm
        if asked is not None and uses_language_model(recipe):
            starts = not dry_run and bool({"attack", "preference"} & set(recipe.stages))
            model = language_model_settings(
                asked, device=device, dtype=dtype, batch_size=batch_size, start=starts
            )
            recipe = with_language_model(recipe, model)
        recipes = {
            label: each.narrowed(prompts=prompts, tokens=tokens)
            for label, each in recipe.under_conditions(_names(conditions)).items()
        }
        runs = {
            label: Run(
                each,
                folder / label,
                (work or folder).absolute(),  # workers may have another working directory
                workers,
                human=_human(human or ()),
                batch_size=batch_size,
                notify=partial(say, quiet=quiet),
            )
            for label, each in recipes.items()
        }
        if dry_run:
            load = partial(load_host, device=device, dtype=dtype, progress=progress)
            _print_plan(runs, folder, load, jobs=jobs, json_=json_)
            return
        files: list[Path] = []
        for label, run in runs.items():
            say(f"{recipe.name}, {label}", quiet=quiet or not label)
            title = f"{recipe.title}: {label}" if label else recipe.title
            page = partial(write_report, title=title, table=recipe.name, commands=[command])
            files += run_stages(run, write_report=page)
        if recipe.conditions and "report" in recipe.stages:
            folders = {label: folder / label for label in runs}
            files += write_conditions(folder, folders, title=recipe.title, command=command)
    if json_:
        emit(
            {
                "table": recipe.name,
                "profile": profile,
                "out": str(folder),
                "stages": list(recipe.stages),
                "files": [str(file) for file in files],
            }
        )
    else:
        for file in files:
            write(f"{file}\n")
    say(f"{', '.join(recipe.stages)} done in {time.perf_counter() - started:.1f} s", quiet=quiet)


def _print_plan(
    runs: Mapping[str, Run], out: Path, load: Callable[[str], Host], *, jobs: int, json_: bool
) -> None:
    from dewmark_lab.experiments.plan import estimate_seconds, plan, total

    plans = [plan(run) for run in runs.values()]
    writing = [each for each in zip(plans, runs.values(), strict=True) if "generate" in each[1].recipe.stages]
    seconds = estimate_seconds(writing, load, jobs=jobs)
    stages, lengths = total(plans), sorted({each.tokens for each in plans})
    if json_:
        emit(
            {
                "table": next(iter(runs.values())).recipe.name,
                "out": str(out),
                "conditions": [label for label in runs if label],
                "stages": [dataclasses.asdict(stage) for stage in stages],
                "tokens_per_text": lengths,
                "writing_seconds": seconds,
            }
        )
        return
    write("".join(f"{stage}\n" for stage in stages))
    write(
        f"writing takes about {_duration(seconds)} at {' and '.join(map(str, lengths))} tokens a text; "
        "marking, attacks, scores and quality come on top\n"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _command(table: str, **given: object) -> str:
    """The command line with the options that decide the results."""
    words = ["dewmark", "reproduce", table]
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            words += [] if each is None else [f"--{name}", str(each)]
    return shlex.join(words)


def _names(given: str | None) -> list[str]:
    return [name.strip() for name in (given or "").split(",") if name.strip()]


def _human(given: list[str] | tuple[()]) -> dict[str, str]:
    found = {}
    for each in given:
        name, equals, file = each.partition("=")
        if not equals or not name or not file:
            raise ConfigError(f"--human must be NAME=FILE.jsonl, got {each!r}")
        found[name] = file
    return found
