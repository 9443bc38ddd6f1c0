"""``dewmark bench marks``: the cost of marking on this machine, beside the marks of engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, write

app = typer.Typer(name="bench", no_args_is_help=True)
MARKS = ("dew-default", "kgw", "synthid", "exp")


@app.callback()
def _group() -> None:
    """Measure the cost of marking on this machine."""  # keeps an only command from merging with the group


@app.command()
def marks(
    schemes: Annotated[
        list[str] | None,
        typer.Option(
            "--schemes",
            metavar="NAME[:FIELD=VALUE,…]",
            help="Row of reproduce to time, or all; repeatable.",
            show_default=", ".join(MARKS),
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="MODEL", help="Host model; random:llama-3.2-3b has random weights.")
    ] = "smollm2-135m",
    batch_sizes: Annotated[str, typer.Option(metavar="N,N,…", help="Batch sizes.")] = "1,16,64,256",
    turn: Annotated[int, typer.Option(min=1, help="Steps of one mark before the next has its turn.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="Number of rounds, after one warm-up round.")] = 8,
    peers: Annotated[
        bool, typer.Option(help="Also time the marks of transformers and vLLM, where installed.")
    ] = True,
    threads: Annotated[int, typer.Option(min=0, help="Number of torch threads; 0 keeps the default.")] = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time a step of real text with the default mark, with its peers and without a mark.

    All write in turns in one process, each its own text: trust the ratios within one run.
    """
    from dewmark_lab.bench.measures import bench_marks
    from dewmark_lab.bench.random_models import open_host

    names, batches = _names(schemes or MARKS), options.numbers(batch_sizes, int, option="--batch-sizes")
    if threads:
        import torch

        torch.set_num_threads(threads)
    with Progress(quiet=quiet) as progress:
        found = list(
            bench_marks(
                open_host(host, device=device, dtype=dtype, progress=progress),
                names,
                batches=batches,
                turn=turn,
                repeats=repeats,
                peers=peers,
                progress=progress,
            )
        )
    if json_:
        for cost in found:
            emit(cost.to_dict())
        return
    from rich.table import Table

    measures = list(dict.fromkeys(row.measure for row in found))
    table = Table("", *measures, box=None, pad_edge=False)
    cells = {(row.measure, row.row): row for row in found}
    for name in dict.fromkeys(row.row for row in found):  # the baseline first
        line = []
        for measure in measures:
            cost = cells[measure, name]
            low, high = (1000 * value for value in cost.quartiles)
            line.append(f"{1000 * cost.median:.3g} ({low:.3g} to {high:.3g}) ms  x{cost.ratio:.3g}")
        table.add_row(name, *line)
    results().print(table, soft_wrap=False)
    write("median and quartiles over rounds; x: ratio to the first row in the same round, the median\n")


def _names(schemes: Sequence[str]) -> list[str]:
    from dewmark_lab.bench.measures import configuration
    from dewmark_lab.experiments.recipe import catalogue

    # a,b is two rows, a:x=1,y=2 is one with two settings
    names = [name for part in schemes for name in ([part] if ":" in part else part.split(","))]
    if names == ["all"]:
        return catalogue()
    for name in names:
        configuration(name)  # checks it
    return names
