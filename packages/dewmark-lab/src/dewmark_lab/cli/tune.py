"""``dewmark tune``: the strongest settings for a host that preserve the quality of its texts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, save_json, say, write

if TYPE_CHECKING:
    from dewmark_lab.tuning import Tuning


def tune(
    host: options.Host = None,
    budget_perplexity: Annotated[
        float,
        typer.Option(metavar="RATIO", help="Maximum factor by which perplexity may change, up or down."),
    ] = 1.05,
    texts: Annotated[int, typer.Option(min=2, help="Texts per configuration and key.")] = 24,
    tokens: Annotated[int, typer.Option(min=25, help="Tokens per text.")] = 120,
    keys: Annotated[int, typer.Option(min=1, help="Keys per configuration.")] = 1,
    sampler: Annotated[
        str | None, typer.Option(metavar="NAME", help="Try only this sampler: bias or gumbel.")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="NAME=V,V,…", help="Values to try, e.g. --grid k=3,5; repeatable."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="IN.jsonl", help="Prompts to continue, instead of the package's own."),
    ] = None,
    scheme: options.SchemeName = None,
    seed: options.Seed = 0,
    chat: options.Chat = False,
    temperature: options.OwnTemperature = None,
    top_p: options.OwnTopP = None,
    batch_size: options.BatchSize = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write tune.json, tune.png and pareto.png here; a stopped run is resumed."
        ),
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a scheme's settings on a host and choose the strongest within a quality budget.

    Exit code 1: no configuration is within the budget.
    """
    from dewmark.batch import Prompt, read_prompts
    from dewmark.batch.inputs import as_request
    from dewmark.hosts import load_host
    from dewmark.opening import DEFAULT_HOST
    from dewmark_lab.tuning import DECODING, Sample, check_budget, choose, expand, measure, parse_grid

    check_budget(budget_perplexity)
    named = [*(grid or ()), *([] if sampler is None else [f"sampler={sampler}"])]
    configurations = expand(parse_grid(named), scheme=scheme or "dew")
    asked = (
        [
            Prompt(str(i), text, as_request(text) if chat else None)
            for i, text in enumerate(options.package_prompts(texts, option="--texts", chat=chat))
        ]
        if prompts is None
        else read_prompts(prompts, chat=chat or None)[:texts]
    )
    chat = asked[0].messages is not None
    stated = options.decoding_options(
        max_new_tokens=tokens, min_new_tokens=tokens, temperature=temperature, top_p=top_p
    )
    with Progress(quiet=quiet) as progress:
        opened = load_host(host or DEFAULT_HOST, device=device, dtype=dtype, progress=progress)
        openers = [
            prompt.text if prompt.messages is None else opened.chat.render(prompt.messages)
            for prompt in asked
        ]
        decoding = dataclasses.replace(opened.chat.decoding if chat else DECODING, **stated)
        sample = Sample(openers, decoding=decoding, keys=keys, seed=seed)
        unmarked, measured = measure(
            opened,
            configurations,
            sample,
            scheme=scheme or "dew",
            batch_size=batch_size,
            out=out,
            progress=progress,
        )
    tuning = choose(unmarked, measured, budget=budget_perplexity)
    summary = {
        "host": opened.name,
        "scheme": scheme or "dew",
        "tokens": tokens,
        "keys": keys,
        **tuning.to_dict(),
    }
    if out is not None:
        _save(out, tuning, summary)
        say(f"wrote {out / 'tune.png'}, with pareto.png and tune.json next to it", quiet=quiet)
    if json_:
        emit(summary)
    else:
        _print(tuning)
    if tuning.chosen is None:
        raise typer.Exit(1)


def _print(tuning: Tuning) -> None:
    from rich.table import Table

    from dewmark_lab.tuning import DELETED, FOUND_AT, VARIETY, describe, flags, varying

    columns = ("perpl.", "ratio (95%)", "content", "z", "found", f"z −{DELETED:.0%}", "front", "fits")
    table = Table("configuration", *columns, box=None, pad_edge=False, collapse_padding=True)
    table.add_row("unmarked", f"{tuning.perplexity:.1f}", "", f"{tuning.distinct_content:.3f}", *[""] * 5)
    names = [describe(settings) for settings in varying([result.settings for result in tuning.results])]
    for name, result in zip(names, tuning.results, strict=True):
        ratio = result.ratio
        table.add_row(
            name,
            f"{result.perplexity:.1f}",
            f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})",
            f"{result.change.value:+.3f}",
            f"{result.z:.2f}",
            f"{result.found:.2f}",
            f"{result.z_deleted:.2f}",
            "yes" if result.front else "",
            ("chosen" if result is tuning.chosen else "yes") if result.within else "no",
        )
    results().print(table, soft_wrap=False)
    write(
        f"content: share of distinct content words, minus that of the unmarked texts;\n"
        f"found: share of texts with p < {FOUND_AT:g}; z −{DELETED:.0%}: z after so many words are deleted;\n"
        "front: no other is as strong after deletion and as varied;\n"
        f"fits: ratio within {1 / tuning.budget:.3f}–{tuning.budget:.3f}, content at least −{VARIETY:g}, "
        "no more unlisted words\n\n"
    )
    if tuning.chosen is not None:
        write(f"{flags(tuning.chosen.settings)}\n")
    for note in tuning.notes:
        write(f"Note: {note}.\n")


def _save(out: Path, tuning: Tuning, summary: dict[str, Any]) -> None:
    from dewmark_lab.reports import plots
    from dewmark_lab.tuning import VARIETY, curve_of, describe, varying

    curves: dict[str, list[tuple[float, float, str]]] = {}
    for result in tuning.results:
        curve, label = curve_of(result.settings)
        curves.setdefault(curve, []).append((result.perplexity, result.z, label))
    chosen = tuning.chosen
    figure = plots.trade_off(
        curves,
        unmarked=tuning.perplexity,
        budget=tuning.budget,
        chosen=None if chosen is None else (chosen.perplexity, chosen.z),
        title=f"{summary['scheme']} on {summary['host']}",
    )
    plots.save_figure(figure, out / "tune.png")
    names = [describe(settings) for settings in varying([result.settings for result in tuning.results])]
    figure = plots.pareto(
        {name: (each.change, each.z_deleted) for name, each in zip(names, tuning.results, strict=True)},
        front=[name for name, each in zip(names, tuning.results, strict=True) if each.front],
        least=-VARIETY,
        title=f"{summary['scheme']} on {summary['host']}",
    )
    plots.save_figure(figure, out / "pareto.png")
    save_json(out / "tune.json", summary)
