"""``dewmark bench``: what marking and detecting cost here, against no mark, every scheme, and peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.lab.bench.measures import Measured

__all__ = ["app"]

app = typer.Typer(name="bench", help="What marking and detecting cost on this machine.", no_args_is_help=True)

LENGTHS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
SIZES = (8192, 16_384, 32_768, 65_536, 131_072, 262_144)
_BASES = ("none", "tokenizing")
STANDARD = ("dew", "dew-bias", "dew-gumbel", "kgw", "unigram", "exp", "synthid")

Schemes = Annotated[
    list[str] | None,
    typer.Option(
        "--schemes",
        metavar="NAME[:FIELD=VALUE,…]",
        help="Configurations to time, or all; repeatable.",
        show_default=", ".join(STANDARD),
    ),
]
BenchHost = Annotated[
    str, typer.Option("--host", metavar="MODEL", help="Host, or random:llama-3.2-3b for random weights.")
]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; one more comes first and is not counted.")]
Peers = Annotated[bool, typer.Option(help="Time markllm's schemes too, where it is installed.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves its default.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE.png", help="Draw --against here (.png, .svg, .pdf).")
]


class GenerateAgainst(StrEnum):
    """What the cost of marking is drawn against."""

    VOCABULARY = "vocabulary"


class DetectAgainst(StrEnum):
    """What the cost of detection is drawn against."""

    LENGTHS = "lengths"


@app.command()
def generate(
    schemes: Schemes = None,
    host: BenchHost = "smollm2-135m",
    batch_sizes: Annotated[str, typer.Option(metavar="N,N,…", help="Texts written at once.")] = "1,16,64",
    tokens: Annotated[int, typer.Option(min=0, help="Tokens written in one round; 0 leaves it out.")] = 32,
    steps: Annotated[int, typer.Option(min=0, help="Marking steps in one round; 0 leaves them out.")] = 20,
    against: Annotated[
        GenerateAgainst | None, typer.Option(help="Time a step by the size of the vocabulary instead.")
    ] = None,
    plot: Plot = None,
    repeats: Repeats = 5,
    peers: Peers = True,
    threads: Threads = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time a marking step, and decoding with each mark over decoding with none.

    Schemes take turns in every round, so that a busy machine disturbs them alike; trust ratios, not times.
    """
    from dewmark.lab.bench.measures import bench_generation, step_by_vocabulary
    from dewmark.lab.bench.random_models import open_host
    from dewmark.models.devices import torch_device

    _check(plot, against)
    names, batches = _names(schemes), _numbers(batch_sizes, "--batch-sizes")
    _threads(threads)
    with Progress(quiet=quiet) as progress:
        if against is not None:
            rows = step_by_vocabulary(
                names,
                sizes=SIZES,
                steps=steps or 20,
                repeats=repeats,
                device=torch_device(device),
                progress=progress,
            )
        else:
            rows = bench_generation(
                open_host(host, device=device, dtype=dtype, progress=progress),
                names,
                batches=batches,
                tokens=tokens,
                steps=steps,
                repeats=repeats,
                peers=peers,
                progress=progress,
            )
        found = list(rows)
    _report(found, json_=json_)
    if plot is not None:
        _draw(found, plot, xlabel="size of the vocabulary", title="one marking step", quiet=quiet)


@app.command()
def detect(
    schemes: Schemes = None,
    host: BenchHost = "smollm2-135m",
    texts: Annotated[int, typer.Option(min=1, help="Texts in one batch.")] = 500,
    tokens: Annotated[int, typer.Option(min=20, help="Tokens of a text.")] = 200,
    against: Annotated[
        DetectAgainst | None, typer.Option(help="Time one text by its length, 100 to 50,000 tokens, instead.")
    ] = None,
    plot: Plot = None,
    repeats: Repeats = 3,
    peers: Peers = True,
    threads: Threads = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time detection per text, in one batch and one by one, over tokenising the text alone.

    Texts are new in every round. --device matters to schemes that run the host to detect, and to DEW.
    """
    from dewmark.lab.bench.measures import bench_detection, detection_by_length
    from dewmark.lab.bench.random_models import open_host

    _check(plot, against)
    names = _names(schemes)
    _threads(threads)
    with Progress(quiet=quiet) as progress:
        opened = open_host(host, device=device, dtype=dtype, progress=progress)
        if against is not None:
            rows = detection_by_length(opened, names, lengths=LENGTHS, repeats=repeats, progress=progress)
        else:
            rows = bench_detection(
                opened, names, texts=texts, tokens=tokens, repeats=repeats, peers=peers, progress=progress
            )
        found = list(rows)
    _report(found, json_=json_)
    if plot is not None:
        _draw(found, plot, xlabel="length of the text (tokens)", title="detection of one text", quiet=quiet)


def _names(schemes: Sequence[str] | None) -> list[str]:
    from dewmark.lab.bench.configurations import CONFIGURATIONS, configuration

    names = [name for part in schemes or STANDARD for name in _split(part)]
    if names == ["all"]:
        return list(CONFIGURATIONS)
    for name in names:
        configuration(name)  # checks it
    return names


def _split(names: str) -> list[str]:
    """``a,b`` are two configurations, ``a:x=1,y=2`` is one with two settings."""
    return [names] if ":" in names else names.split(",")


def _numbers(text: str, option: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option} takes whole numbers separated by commas, got {text!r}")
    return [int(part) for part in parts]


def _check(plot: Path | None, against: object) -> None:
    if plot is not None and against is None:
        raise ConfigError("--plot draws a cost against something: add --against")


def _threads(threads: int) -> None:
    if threads:
        import torch

        torch.set_num_threads(threads)


def _report(found: Sequence[Measured], *, json_: bool) -> None:
    if json_:
        for row in found:
            emit(row.to_dict())
        return
    from rich.table import Table

    measures = list(dict.fromkeys(row.measure for row in found))
    table = Table("", *measures, box=None, pad_edge=False)
    cells = {(row.measure, row.row): row.cost for row in found}
    rows = dict.fromkeys(row.row for row in found)
    for name in sorted(
        rows, key=lambda name: name not in _BASES
    ):  # what others are compared with comes first
        line = []
        for measure in measures:
            cost = cells.get((measure, name))
            if cost is None:
                line.append("–")
                continue
            ratio = "" if cost.ratio is None else f"  x{cost.ratio:.3g}"
            ms = 1000 * cost.fastest
            line.append((f"{ms:.3g} ms" if ms < 999.5 else f"{ms:,.0f} ms") + ratio)
        table.add_row(name, *line)
    results().print(table, soft_wrap=False)
    write("fastest round; x: over the first row (for markllm over its own), median of the rounds' ratios\n")


def _draw(found: Iterable[Measured], plot: Path, *, xlabel: str, title: str, quiet: bool) -> None:
    from dewmark.reports.plots import cost_curves, save_figure

    curves: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        at = float(row.measure.split()[0])
        curves.setdefault(row.row, []).append((at, 1000 * row.cost.fastest))
    save_figure(cost_curves(curves, xlabel=xlabel, title=title), plot)
    say(f"wrote {plot}", quiet=quiet)
