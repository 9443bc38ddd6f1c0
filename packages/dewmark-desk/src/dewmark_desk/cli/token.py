"""``dewmark token``: access tokens of the service."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark_desk.cli import show

if TYPE_CHECKING:
    from dewmark_desk.api_tokens import Caller, Tokens
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

app = typer.Typer(help="Make, list and revoke tokens for: dewmark serve.", no_args_is_help=True)


@app.command()
def new(
    scope: Annotated[
        list[str],
        typer.Option(
            metavar="SCOPE",
            help="detect: exact numbers and token scores; detect-public: verdicts only; generate: marked "
            "text; metrics: operation; admin: everything. Repeatable.",
        ),
    ],
    name: Annotated[str, typer.Option(metavar="TEXT", help="A note on what the token is for.")] = "",
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            show_default="all",
            help="Restrict it to this tenant's keys, to detect and to write; repeatable.",
        ),
    ] = None,
    per_minute: Annotated[float, typer.Option(metavar="N", help="Texts per minute.")] = 600.0,
    budget: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default="1,000 for detect-public, else unlimited", help="Texts in total."
        ),
    ] = None,
    budget_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="2,000,000 for detect-public, else unlimited",
            help="Bytes of text in total.",
        ),
    ] = None,
    unlimited: Annotated[
        bool, typer.Option("--unlimited", help="No budget, for detect-public, too.")
    ] = False,
    days: Annotated[
        float | None, typer.Option(metavar="N", show_default="never", help="Days until it expires.")
    ] = None,
    store: StoreUrl = None,
    json_: options.Json = False,
) -> None:
    """Make a token and print it once: the database keeps only its hash."""
    from dewmark_desk.settings import ALL_TENANTS

    made, text = _open(store).new(
        name,
        scope,
        tenants=[ALL_TENANTS] if tenant is None else tenant,
        per_minute=per_minute,
        budget=budget,
        budget_bytes=budget_bytes,
        unlimited=unlimited,
        days=days,
    )
    show({"token": text, **_row(made)}, text, as_json=json_)


@app.command("list")
def list_(store: StoreUrl = None, json_: options.Json = False) -> None:
    """List tokens by id; the tokens themselves are not stored."""
    for caller in _open(store).all():
        row = _row(caller)
        spent = f"{row['used']} of {row['budget']}" if row["budget"] else f"{row['used']}"
        ended = f"  revoked {row['revoked']}" if row["revoked"] else ""
        until = f"  until {row['expires']}" if row["expires"] else ""
        named = f"  {row['name']}" if row["name"] else ""
        tenants = "" if row["tenants"] == ["*"] else f"  for {','.join(row['tenants'])}"
        line = f"{row['id']}  {','.join(row['scopes'])}{tenants}  {spent} texts{until}{ended}{named}"
        show(row, line, as_json=json_)


@app.command()
def revoke(
    id_: Annotated[str, typer.Argument(metavar="ID", help="Id of a token (see dewmark token list).")],
    store: StoreUrl = None,
    json_: options.Json = False,
) -> None:
    """Revoke a token; a running service notices within a second."""
    revoked = _open(store).revoke(id_)
    show(_row(revoked), f"revoked {revoked.id}", as_json=json_)


def open_store(url: str | None) -> Store:
    """The service's database."""
    from dewmark_desk.settings import default_store
    from dewmark_desk.store import Store

    return Store(url or default_store())


def _open(url: str | None) -> Tokens:
    from dewmark_desk.api_tokens import Tokens

    return Tokens(open_store(url))


def _row(caller: Caller) -> dict[str, Any]:
    moments = {name: _moment(getattr(caller, name)) for name in ("created", "expires", "revoked")}
    lists = {"scopes": sorted(caller.scopes), "tenants": sorted(caller.tenants)}
    return {**dataclasses.asdict(caller), **lists, **moments}


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
