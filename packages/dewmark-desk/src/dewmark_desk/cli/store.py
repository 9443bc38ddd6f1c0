"""``dewmark store``: the service's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import emit, write

if TYPE_CHECKING:
    from dewmark_desk.store import Store

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        show_default="$DEWMARK_STORE, or a file in your home",
        help="Database of the service: sqlite:///FILE, or postgresql+psycopg://…",
    ),
]


def open_store(url: str | None) -> Store:
    """The service's database."""
    from dewmark_desk.settings import default_store
    from dewmark_desk.store import Store

    return Store(url or default_store())


app = typer.Typer(help="Show or upgrade the database of: dewmark serve.", no_args_is_help=True)


@app.command()
def upgrade(store: StoreUrl = None, json_: options.Json = False) -> None:
    """Bring the tables up to date, as every start of the service does; safe to repeat."""
    opened = open_store(store)
    before, after = opened.upgraded
    opened.close()
    if json_:
        emit({"before": before, "after": after})
    elif before == after:
        write(f"the store is up to date: schema version {after}\n")
    else:
        write(f"upgraded the store from schema version {before} to {after}\n")
