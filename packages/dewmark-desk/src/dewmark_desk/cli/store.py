"""The option --store of the commands that use the service's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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
