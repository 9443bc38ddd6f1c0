"""``dewmark quality``: what a mark costs the texts, and whether that is within stated margins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, check_writable, emit, save_json, save_text, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.core.keys import Key
    from dewmark.hosts.base import Host
    from dewmark_lab.quality.measuring import Suite

_TASKS = "json,code,arithmetic,reading"
_CODES = {"within": 0, "exceeded": 1, "inconclusive": 3}


def quality(
    key: Annotated[
        list[Path] | None,
        typer.Option(
            "--key", metavar="FILE", help="Key to measure; repeatable. Without it, keys of its own."
        ),
    ] = None,
    keys: Annotated[
        int | None, typer.Option(min=1, show_default="4", help="How many keys of its own to measure.")
    ] = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat/--continue", help="Answer requests in the host's chat template, or continue openings."
        ),
    ] = True,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.jsonl",
            show_default="requests or openings",
            help="Prompts to answer once per key.",
        ),
    ] = None,
    texts: Annotated[int, typer.Option(min=2, help="Number of these prompts.")] = 50,
    answers: Annotated[
        int, typer.Option(min=0, help="Answers to one prompt under one key, for Self-BLEU; 0 for none.")
    ] = 8,
    answered: Annotated[int, typer.Option(min=2, help="Number of prompts with so many answers.")] = 10,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            show_default=f"{_TASKS}; none with --continue",
            help="Tasks with checked answers: the package's, JSONL files of your own, or none.",
        ),
    ] = None,
    items: Annotated[
        int | None, typer.Option(min=2, show_default="all", help="Items of each task at most.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Chat model that weighs each pair in both orders (slow)."),
    ] = None,
    margin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEASURE=VALUE", help="Largest difference to accept, e.g. nats=0.02; repeatable."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Limit of tokens per text.")] = 200,
    temperature: options.OwnTemperature = None,
    top_p: options.OwnTopP = None,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Write quality.md and quality.json here, and keep the texts.")
    ] = Path("quality"),
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare marked with unmarked texts of the same prompts: likelihood, wording, variety, tasks.

    Exit code 0: every difference is within its margin; 1: one exceeds it; 3: none does, but there are too few
    texts to tell. A stopped run is resumed by the same command.
    """
    import dataclasses

    from dewmark import hosts
    from dewmark.config import parse_settings
    from dewmark.decoding import Decoding
    from dewmark.opening import DEFAULT_HOST, load_scheme
    from dewmark.registry import SCHEMES
    from dewmark_lab.quality.measuring import QualityRun, margins_of, quality_page, sentences, table

    options.check_marks(scheme)
    secrets = _keys(key, keys)
    parameters = parse_settings(settings or ())
    chosen = SCHEMES[scheme or "dew"]().with_settings(parameters)
    for each in secrets:
        chosen.check_key(each)
    source = prompts or ("requests" if chat else "openings")
    suites = _suites(source, texts, answers, answered, tasks or (_TASKS if chat else "none"), items)
    measures = margins_of(parse_settings(margin or ()), suites)
    check_writable(out / "quality.json")
    name = host or DEFAULT_HOST
    with Progress(quiet=quiet) as progress:
        own = hosts.chat_format(name, progress=progress).decoding if chat else Decoding()
        given = options.decoding_options(temperature=temperature, top_p=top_p, max_new_tokens=tokens)
        decoding = dataclasses.replace(own, **given)
        decoding.check_samples()
        if judge is not None:
            hosts.chat_format(judge, progress=progress)
        model = hosts.load_host(name, device=device, dtype=dtype, progress=progress)

        def open_judge() -> Host:
            return model if judge in (None, name) else hosts.load_host(judge, device=device, dtype=dtype)

        bound = [
            load_scheme(each, host=model, scheme=scheme or "dew", settings=parameters) for each in secrets
        ]
        run = QualityRun(
            model,
            bound,
            decoding,
            out / "work",
            chat=chat,
            seed=seed,
            batch_size=batch_size,
            progress=progress,
        )
        total = 2 * len(bound) * sum(suite.texts for suite in suites)
        say(f"{total:,} texts of at most {tokens} tokens, kept in {run.work}", quiet=quiet)
        found = run.measure(suites, measures, judge=None if judge is None else open_judge)
    summary = {
        "scheme": chosen.name,
        "config": chosen.to_dict(),
        "host": model.name,
        "chat": chat,
        "prompts": source,
        "decoding": decoding.to_dict(),
        "seed": seed,
        "judge": judge,
        **found.to_dict(),
    }
    save_json(out / "quality.json", summary)
    save_text(out / "quality.md", quality_page(found, summary))
    say(f"wrote {out / 'quality.md'} and quality.json next to it", quiet=quiet)
    if json_:
        emit({**summary, "out": str(out)})
    else:
        write(table(found) + "\n" + "\n".join(sentences(found)) + "\n")
    raise typer.Exit(_CODES[found.outcome.value])


def _keys(files: Sequence[Path] | None, number: int | None) -> list[Key]:
    from dewmark.core.keys import Key
    from dewmark_lab.experiments.recipe import experiment_key

    if files and number is not None:
        raise ConfigError("--key names the keys to measure: leave out --keys")
    found = [Key.load(file) for file in files] if files else [experiment_key(i) for i in range(number or 4)]
    if len({each.fingerprint for each in found}) < len(found):
        raise ConfigError("--key names one key twice: give each key once")
    return found


def _suites(
    source: str, texts: int, answers: int, answered: int, tasks: str, items: int | None
) -> list[Suite]:
    from dewmark_lab.prompt_sources import prompt_texts
    from dewmark_lab.quality.measuring import PROSE, VARIETY, Suite
    from dewmark_lab.quality.tasks import TaskItem, task_items

    if answers == 1:
        raise ConfigError("--answers must be 0 or at least 2: one answer cannot be compared")
    varied = answered if answers else 0
    asked = [TaskItem(row["id"], row["text"]) for row in prompt_texts(source, max(texts, varied))]
    suites = [Suite(PROSE, asked[:texts])]
    suites += [Suite(VARIETY, asked[:varied], answers)] if answers else []
    for name, found in task_items(tasks).items():
        if name in (PROSE, VARIETY) or len(found) < 2:
            raise ConfigError(f"the task {name!r} needs two items at least, and another name than {PROSE}")
        suites.append(Suite(name, found[:items]))
    return suites
