"""``dewmark models``: list and fetch models, show a lexicon."""

from __future__ import annotations

import enum
import time
from typing import Annotated

import typer

from dewmark.cli.options import Json, Quiet
from dewmark.cli.terminal import Progress, emit, results, say, write

app = typer.Typer(
    help="List packaged models, fetch one, show a lexicon.",
    no_args_is_help=True,
)


class Role(enum.StrEnum):
    """The use of a model."""

    HOST = "host"
    ENCODER = "encoder"


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
        table.add_row(
            *map(str, (row["name"], row["role"], size, here, f"{row['summary']}; {row['license']}"))
        )
    results().print(table, soft_wrap=False)
    write("\nWherever a name is accepted, so is a folder or a hub id, e.g. --host meta-llama/Llama-3.2-3B.\n")


@app.command()
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A packaged name, a folder, or a hub id.")],
    role: Annotated[Role | None, typer.Option(help="Use of a folder or hub id.")] = None,
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
    if packaged is not None and role is not None and role.value != packaged.role:
        raise ConfigError(f"{name} is a packaged {packaged.role}, not {role.value}: leave --role out")
    used_as = packaged.role if packaged is not None else role and role.value
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


@app.command("lexicon")
def show_lexicon(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD…]", help="Words to look up.")] = None,
    lexicon: Annotated[
        str, typer.Option(metavar="NAME", help="default, a folder, or the encoder it was built for.")
    ] = "default",
    json_: Json = False,
) -> None:
    r"""Show a lexicon: its identity, its languages, and how often a word may carry the mark in a text.

    \b
    Examples:
      dewmark models lexicon
      dewmark models lexicon the bridge xyzzy
    """
    from dewmark.config import cache_dir
    from dewmark.encoders.lexicon import load_lexicon
    from dewmark.text.words import words as cut
    from dewmark.workspace import Workspace

    found = load_lexicon(lexicon, workspace=Workspace(cache=cache_dir()))
    forms = [word.form for text in words or () for word in cut(text)]
    rows = found.rows(forms)
    listed = [
        {
            "form": form,
            "row": int(row),
            "listed": bool(own),
            "frequency": float(f"{found.frequency[row]:.3g}"),
            "context_weight": round(float(found.weights[row]), 4),
            "marks_per_text": int(found.limits[row]),
        }
        for form, row, own in zip(forms, rows, found.listed_rows(forms), strict=True)
    ]
    if json_:
        about = {"identity": found.identity, "forms": len(found), "dim": found.dim, **found.meta}
        for row in listed or [about]:
            emit(row)
        return
    if not listed:
        languages = ", ".join(f"{name} {count}" for name, count in found.meta["languages"].items())
        write(f"{found.identity}: {len(found)} forms, {found.dim} coordinates ({languages})\n")
    for each in listed:
        said = f"at most {each['marks_per_text']} times a text" if each["row"] else "no mark"
        spelled = ", by its spelling: it is not in the lexicon" if each["row"] and not each["listed"] else ""
        write(f"{each['form']}: {said.replace('at most 1 times', 'at most once')}{spelled}\n")
