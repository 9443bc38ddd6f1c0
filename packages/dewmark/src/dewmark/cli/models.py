"""``dewmark models``: list and fetch models."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from dewmark.cli.options import Json, Quiet
from dewmark.cli.terminal import Progress, emit, results, say, write

app = typer.Typer(help="List packaged models, or fetch one.", no_args_is_help=True)


@app.command("list")
def list_models(json_: Json = False) -> None:
    """List the models that come as Python packages, without a hub."""
    from dewmark.models.packaged import PACKAGED, is_fetched

    rows = [
        {
            "name": model.name,
            "role": model.role,
            "megabytes": model.megabytes,
            "license": model.license,
            "fetched": is_fetched(model.name),
            "package": f"{model.distribution}=={model.version}",
            "summary": model.summary,
        }
        for model in PACKAGED.values()
    ]
    if json_:
        for row in rows:
            emit(row)
        return
    from rich.table import Table

    table = Table(box=None)
    for head in ("name", "role", "size", "here"):
        table.add_column(head, no_wrap=True)
    table.add_column("what it is; licence", overflow="fold")
    for row in rows:
        size, here = f"{row['megabytes']} MB", "yes" if row["fetched"] else "no"
        about = f"{row['summary']}; {row['license']}"
        table.add_row(*map(str, (row["name"], row["role"], size, here, about)))
    results().print(table, soft_wrap=False)
    write("\nWherever a name is accepted, so is a folder or a hub id, e.g. --host meta-llama/Llama-3.2-3B.\n")


@app.command()
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A packaged name, a folder, or a hub id.")],
    role: Annotated[Literal["host", "encoder"] | None, typer.Option(help="Use of a folder or id.")] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a model now, so that its first use is fast."""
    from dewmark.errors import ConfigError
    from dewmark.models.packaged import PACKAGED, fetch
    from dewmark.registry import unknown_name

    packaged = PACKAGED.get(name)
    if packaged is None and role is None:
        unknown = unknown_name("packaged model", name, PACKAGED)
        raise type(unknown)(f"{unknown} (for a folder or a hub id add --role host or --role encoder)")
    if packaged is not None and role not in (None, packaged.role):
        raise ConfigError(f"{name} is a packaged {packaged.role}, not {role}: leave --role out")
    used_as = packaged.role if packaged is not None else role
    started = time.perf_counter()
    with Progress(quiet=quiet) as progress:
        if packaged is not None:
            fetch(name, progress=progress)
        if used_as == "encoder":
            from dewmark.encoders import load_encoder

            # encoding completes an interrupted download
            load_encoder(name, progress=progress).encode([""])
        elif used_as == "host":
            from dewmark.hosts import load_host

            load_host(name, progress=progress)  # converts a packaged host, or downloads it from the hub
    if json_:
        emit({"name": name, "role": used_as, "fetched": True})
    else:
        write(f"{name} is ready\n")
    say(f"took {time.perf_counter() - started:.1f} s", quiet=quiet)
