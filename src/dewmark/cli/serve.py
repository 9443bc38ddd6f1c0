"""``dewmark serve``: detection as a service, with a page for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.serve.settings import Settings

__all__ = ["serve"]


def serve(
    detector: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ID=]DIR",
            help="An exported detector, or a folder of them; repeat it for several tenants. The tenant's id "
            "is the folder's name unless given.",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A key to detect; with --host-model the one that marks."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="All *.key files of a folder, a tenant each.")
    ] = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            show_default="the --host-model, or smollm2-135m",
            help="The host that the keys mark; its weights are not loaded.",
        ),
    ] = None,
    host_model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Also write: load this host and offer OpenAI's API, marked."),
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    workers: Annotated[int, typer.Option(min=1, help="Processes; they share the detectors' tables.")] = 1,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default="$DEWMARK_STORE, or a file of yours",
            help="Tokens and audits: sqlite:///FILE, or postgresql+psycopg://…",
        ),
    ] = None,
    without_tokens: Annotated[
        bool, typer.Option("--without-tokens", help="Let anybody who can reach the address ask anything.")
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="A name by which a service without tokens may be asked; repeatable."
        ),
    ] = None,
    log_queries: Annotated[
        bool, typer.Option("--log-queries", help="Keep who asked about which text, as keyed hashes.")
    ] = False,
    fpr: Annotated[float, typer.Option(help="Share of unmarked texts that may be called marked.")] = 0.01,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve detection over HTTP, and a page at /. Ctrl-C finishes what was taken and stops."""
    from dewmark.extras import require

    for module in ("fastapi", "uvicorn", "sqlalchemy", "prometheus_client", "multipart"):
        require(module, extra="serve")
    from dewmark.serve.monitoring import set_up_logging
    from dewmark.serve.settings import Settings, default_store
    from dewmark.serve.supervisor import Supervisor, listen
    from dewmark.serve.tenants import tenant_paths

    wanted = Settings(
        detectors=tuple(tenant_paths(detector or [])),
        keys=tuple(_keys(key, keys)),
        scheme=scheme,
        scheme_settings=tuple(settings or ()),
        vocabulary=vocabulary,
        host_model=host_model,
        device=device,
        dtype=dtype,
        host=host,
        port=port,
        workers=workers,
        store=store or default_store(),
        without_tokens=without_tokens,
        host_names=tuple(each.lower() for each in name or ()),
        log_queries=log_queries,
        fpr=fpr,
    )
    with Progress(quiet=quiet) as progress:
        _check(wanted, progress)
    listening = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}"
    set_up_logging()
    supervisor = Supervisor(wanted, listening)
    supervisor.handle_signals()

    def ready() -> None:
        if json_:
            emit({"url": url, "workers": supervisor.pids})
        say(f"serving at {url}, {workers} {'worker' if workers == 1 else 'workers'}", quiet=quiet)

    raise typer.Exit(supervisor.run(ready))


def _keys(key: Path | None, folder: Path | None) -> list[tuple[str, str]]:
    """(tenant id, key file) pairs: the --key first, it is the one that marks."""
    from dewmark.batch.scoring import load_keys

    if key is None and folder is None:
        return []
    found = load_keys([] if key is None else [key], folder)
    return [(Path(file).stem, file) for file in found]


def _check(wanted: Settings, progress: Progress) -> None:
    """Find out here, in words, what would make every worker die: also verifies and builds the tables."""
    from dewmark.serve.api_tokens import Tokens
    from dewmark.serve.store import Store
    from dewmark.serve.tenants import open_tenants

    if wanted.host_model is not None and not wanted.keys:
        raise ConfigError("--host-model needs --key FILE: a detector cannot mark")
    store = Store(wanted.store)
    guarded = Tokens(store).exist()
    store.close()
    if not (wanted.loopback or guarded or wanted.without_tokens):
        raise ConfigError(
            f"{wanted.host} can be reached from elsewhere and nobody needs a token: make one with "
            "dewmark token new --scope detect, or add --without-tokens"
        )
    open_tenants(wanted, progress=progress)
