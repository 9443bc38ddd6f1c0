"""``dewmark reproduce``: reproduce a table of the paper, from prompts to report."""

from __future__ import annotations

import shlex
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, check_writable, emit, say, write
from dewmark.errors import ConfigError


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
            help="one: all seeds share a key, as in the paper; per-seed: each has its own.",
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
    stages: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Run only these stages, e.g. generate,attack.")
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
            help="Model that paraphrases, translates and judges: local is Qwen2.5 1.5B, a URL is a running "
            "endpoint, any other name a host.",
        ),
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(metavar="IN.jsonl", help="Prompts to continue, instead of the recipe's.")
    ] = None,
    human: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE", help="Human-written texts, JSONL; repeatable.")
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
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Reproduce a table of the paper: write, attack, score, judge, evaluate and report.

    A stopped run is resumed by the same command.
    """
    from dewmark_lab.experiments.recipe import language_model_settings, load_recipe
    from dewmark_lab.experiments.run import Run
    from dewmark_lab.experiments.stages import reproduce as run_stages
    from dewmark_lab.experiments.workers import Workers
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
        prompts=prompts,
        tokens=tokens,
    )
    asked = llm or recipe.llm
    if recipe.uses_language_model and asked is not None:
        model = language_model_settings(asked, device=device, dtype=dtype, batch_size=batch_size)
        recipe = recipe.with_language_model(model)
    elif llm is not None:
        raise ConfigError(f"{recipe.name} in profile {profile} uses no language model: leave out --llm")
    folder = out or Path("reproduced") / f"{recipe.name}-{profile}"
    check_writable(folder / "configuration.json")
    check_writable((work or folder) / "generate", folder=True)
    started = time.perf_counter()
    command = _command(
        table,
        profile=profile,
        texts=recipe.texts,
        seeds=recipe.seeds,
        keys=recipe.keys,
        schemes=schemes,
        attacks=attacks,
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
        run = Run(
            recipe,
            folder,
            (work or folder).absolute(),  # workers may have another working directory
            workers,
            human=_human(human or ()),
            batch_size=batch_size,
            notify=partial(say, quiet=quiet),
        )
        page = partial(write_report, title=recipe.title, table=recipe.name, commands=[command])
        files = run_stages(run, write_report=page)
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
