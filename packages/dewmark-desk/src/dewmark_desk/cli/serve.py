"""``dewmark serve``: detection as an HTTP service with a web page."""

from __future__ import annotations

import dataclasses
import logging
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say
from dewmark.errors import ConfigError
from dewmark.policy import load_policy
from dewmark.registry import unknown_name
from dewmark.storage import read_small
from dewmark_desk.cli import text_option, url_option
from dewmark_desk.cli.token import StoreUrl

if TYPE_CHECKING:
    from dewmark_desk.settings import Settings


_OPEN = (
    "no token is needed: everyone who can reach this address may ask anything, and other programs on this "
    "machine can; make a token with dewmark token new --scope detect, or add --require-tokens"
)


# options that are settings of the same name
_ALIKE = (
    *("scheme", "vocabulary", "reader", "host_model", "device", "dtype", "host", "port", "workers", "greedy"),
    *("without_tokens", "require_tokens", "log_queries", "log_days", "job_days", "zero_retention", "opt_out"),
    *("provider", "contact", "public_url", "public_page", "fpr", "max_fpr", "public_fpr"),
)


def _read_config(context: typer.Context, file: Path | None) -> Path | None:
    """Make a TOML file's values the defaults of a command's options; the callback of --config.

    A name is that of the long option, with dashes or underscores; a repeatable option takes a list.
    """
    if file is None:
        return None
    try:
        values = tomllib.loads(read_small(file).decode())
    except OSError as error:
        raise ConfigError(f"cannot read --config {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--config {file} is not TOML: {error}") from None
    known = {
        flag.removeprefix("--"): parameter
        for parameter in context.command.params
        for flag in parameter.opts
        if flag.startswith("--") and flag != "--config"
    }
    defaults: dict[str, object] = {}
    for name, value in values.items():
        option = name.replace("_", "-")
        if option not in known:
            raise unknown_name(f"option in {file}", option, known)
        if isinstance(value, dict):
            raise ConfigError(f"{file}: {name} must be a value, not a table")
        parameter = known[option]
        several, repeatable = isinstance(value, list), getattr(parameter, "multiple", False)
        if several and not repeatable:
            raise ConfigError(f"{file}: {name} takes one value, got a list")
        defaults[str(parameter.name)] = [value] if repeatable and not several else value
    context.default_map = defaults
    return file


def serve(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml", is_eager=True, callback=_read_config, help="Take options from this file."
        ),
    ] = None,
    detector: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ID=]DIR",
            help="An exported detector, or a folder of detectors; repeatable. The tenant's id defaults to "
            "the folder's name.",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ID=]FILE",
            help="Key to detect; with --host-model, the key that marks its tenant's texts. ID@LABEL=FILE is "
            "a retired key, which only detects. Repeatable.",
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Use all *.key files of a folder: ID.key, and ID@LABEL.key."),
    ] = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            show_default="the --host-model, or smollm2-135m",
            help="Host model that the keys mark; its weights are not loaded.",
        ),
    ] = None,
    host_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Also write: load this host and serve marked text over OpenAI's API."
        ),
    ] = None,
    greedy: Annotated[
        str,
        typer.Option(
            metavar="unmarked | refuse",
            help="Requests at temperature 0 and the like leave no choice to mark: write unmarked, or refuse.",
        ),
    ] = "unmarked",
    policy: options.PolicyFile = None,
    policy_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Append to this file, for every text, which parts were marked and why others were not; "
            "never the text.",
        ),
    ] = None,
    certificate: options.Certificate = None,
    certificate_key: options.CertificateKey = None,
    roots: options.Roots = None,
    opt_out: Annotated[
        bool, typer.Option("--opt-out", help='Let requests ask for an unmarked text: "mark": false.')
    ] = False,
    reader: options.Reader = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8080,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of processes, which share the detectors' tables.")
    ] = 1,
    store: StoreUrl = None,
    without_tokens: Annotated[
        bool,
        typer.Option(
            "--without-tokens", help="Require no token: everyone who can reach the address may ask anything."
        ),
    ] = False,
    require_tokens: Annotated[
        bool,
        typer.Option(
            "--require-tokens", help="Require a token, even on loopback before the first one is made."
        ),
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="Host name under which a service without tokens answers; repeatable."
        ),
    ] = None,
    log_queries: Annotated[
        bool,
        typer.Option("--log-queries", help="Log who asked about which text, as keyed hashes (dewmark log)."),
    ] = False,
    log_days: Annotated[float, typer.Option(metavar="N", help="Days that the query log keeps a row.")] = 90.0,
    job_days: Annotated[
        float, typer.Option(metavar="N", help="Days that an ended job and its results are kept.")
    ] = 7.0,
    zero_retention: Annotated[
        bool,
        typer.Option(
            "--zero-retention",
            help="Store nothing about requests: no query log, no jobs, no token ids in the server's log.",
        ),
    ] = False,
    signer: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.pem",
            help="Sign reports with this key (dewmark report key). Repeat it for older keys, whose reports "
            "are then still recognised.",
        ),
    ] = None,
    provider: Annotated[
        str | None, text_option(help="Who runs this service, for reports and the signpost.")
    ] = None,
    contact: Annotated[str | None, text_option(help="Where to ask for access, for the signpost.")] = None,
    public_url: Annotated[str | None, url_option(help="This service's address as others reach it.")] = None,
    public_page: Annotated[
        str | None, url_option(help="Where the page of dewmark detector export --page is published.")
    ] = None,
    dossier: Annotated[
        str | None, url_option(help="Where the dossier of dewmark comply is published.")
    ] = None,
    fpr: options.FalsePositiveRate = 0.01,
    max_fpr: Annotated[
        float, typer.Option(metavar="P", help="The loosest level that a request may ask for.")
    ] = 0.05,
    public_fpr: Annotated[
        float, typer.Option(metavar="P", help="The level for public tokens, or --fpr if that is smaller.")
    ] = 1e-4,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve detection over HTTP, with a web page at /. Ctrl-C finishes open requests and stops.

    SIGHUP reads keys and detectors again, without an interruption.

    Every option can also be set in a TOML file (--config, one line per option: port = 8080) or in the
    environment (DEWMARK_SERVE_PORT=8080); the command line wins over the environment, and that over the file.
    """
    from dewmark_desk.monitoring import set_up_logging
    from dewmark_desk.settings import Settings, default_store
    from dewmark_desk.supervisor import Supervisor, listen
    from dewmark_desk.tenants import key_paths, tenant_paths

    def read(identity: str = "") -> Settings:
        chosen = Settings(
            detectors=tuple(tenant_paths(detector or [])),
            keys=tuple(key_paths(key or [], keys)),
            keyring=None if keys is None else str(keys),
            scheme_settings=tuple(settings or ()),
            store=store or default_store(),
            host_names=tuple(each.lower() for each in name or ()),
            signers=tuple(str(path.absolute()) for path in signer or ()),
            dossier_url=dossier,
            policy=policy if policy in (None, "default") else str(Path(policy).absolute()),
            policy_log=None if policy_log is None else str(policy_log.absolute()),
            certificate=_absolute(certificate, certificate_key),
            roots=None if roots is None else str(roots.absolute()),
            **{each: context.params[each] for each in _ALIKE},
        )
        with Progress(quiet=quiet) as progress:
            return _check(chosen, identity, progress)

    if policy is not None:
        load_policy(policy)
    options.load_provider(certificate, certificate_key)
    wanted = read()
    listening = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}"
    set_up_logging()
    supervisor = Supervisor(wanted, listening, reread=lambda: read(wanted.store_id))
    supervisor.handle_signals()

    def ready() -> None:
        if not wanted.require_tokens:  # before anybody is told that it listens
            logging.getLogger("dewmark_desk").warning(_OPEN)
        if json_:
            emit({"url": url, "workers": supervisor.pids})
        say(f"serving at {url}, {workers} {'worker' if workers == 1 else 'workers'}", quiet=quiet)

    raise typer.Exit(supervisor.run(ready))


serve.context_settings = {"auto_envvar_prefix": "DEWMARK_SERVE"}  # type: ignore[attr-defined]


def _absolute(*files: Path | None) -> tuple[str, str] | None:
    first, second = files
    return None if first is None or second is None else (str(first.absolute()), str(second.absolute()))


def _check(wanted: Settings, identity: str, progress: Progress) -> Settings:
    """Report mistakes that would make every worker fail; also verifies and builds the tables.

    The settings returned name the store, and require tokens if there is one: workers fail if that store is
    taken away, instead of serving without tokens.
    """
    from dewmark_desk.api_tokens import Tokens
    from dewmark_desk.signing import SigningKey
    from dewmark_desk.store import Store
    from dewmark_desk.tenants import open_tenants

    if wanted.host_model is not None and not wanted.keys:
        raise ConfigError("--host-model needs --key FILE: a detector cannot mark")
    for file in wanted.signers:
        SigningKey.load(file)
    store = Store(wanted.store, identity=identity)
    guarded, identity = Tokens(store).exist(), store.identity
    store.close()
    if not (wanted.may_be_open or guarded or wanted.require_tokens):
        raise ConfigError(
            f"{wanted.host} can be reached from other machines and no token is required: make one with "
            "dewmark token new --scope detect, or add --without-tokens"
        )
    open_tenants(wanted, progress=progress)
    if guarded:
        wanted = dataclasses.replace(wanted, require_tokens=True, without_tokens=False)
    return dataclasses.replace(wanted, store_id=identity)
