"""The ``dewmark`` command: its subcommands and its exit codes.

Exit codes: 0 success (whatever the verdict), 1 a check failed, 2 bad input or usage, 130 interrupted.
An error is one line on stderr.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import errno
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from dewmark.cli import (
    attack,
    audit,
    bench,
    calibrate,
    comply,
    demo,
    detect,
    detector,
    evaluate,
    generate,
    locate,
    log,
    models,
    power,
    radioactivity,
    report,
    reproduce,
    retention,
    schemes,
    serve,
    steal,
    store,
    train,
    tune,
)
from dewmark.cli import key as keys
from dewmark.cli import token as tokens
from dewmark.cli.terminal import check_writable, say
from dewmark.errors import ConfigError, DewmarkError
from dewmark.version import __version__

_OUTPUTS = ("out", "html", "svg", "plot", "work", "keep_key")  # parameters that name files to write
_HELP = "Watermarks for language models: mark text, and detect the mark with an honest p-value."

app = typer.Typer(
    name="dewmark",
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # pretty tracebacks show local variables, perhaps a key
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(keys.app, name="key")
app.add_typer(models.app, name="models")
app.command("schemes")(schemes.schemes)
app.command("generate")(generate.generate)
app.command("detect")(detect.detect)
app.command("locate")(locate.locate)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(detector.app, name="detector")
app.add_typer(report.app, name="report")
app.command("audit")(audit.audit)
app.command("comply")(comply.comply)
app.command("evaluate")(evaluate.evaluate)
app.command("power")(power.power)
app.command("retention")(retention.retention)
app.command("radioactivity")(radioactivity.radioactivity)
app.command("tune")(tune.tune)
app.command("attack")(attack.attack)
app.command("steal")(steal.steal)
app.command("reproduce")(reproduce.reproduce)
app.add_typer(bench.app, name="bench")
app.command("train")(train.train)
app.command("serve", context_settings={"auto_envvar_prefix": "DEWMARK_SERVE"})(serve.serve)
app.add_typer(tokens.app, name="token")
app.add_typer(log.app, name="log")
app.add_typer(store.app, name="store")
app.command("demo")(demo.demo)

atexit.register(gc.freeze)  # spare the last search for unused objects: their memory is returned anyway


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dewmark {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Watermarks for language models: mark text, and detect the mark with an honest p-value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    with _collecting_rarely(), warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.showwarning = _show_warning
        try:
            code = _checking_options(typer.main.get_command(_asked(arguments))).main(
                args=arguments, prog_name="dewmark", standalone_mode=False, windows_expand_args=False
            )
        except DewmarkError as error:
            return _fail(str(error))
        except typer.TyperException as error:
            return _fail(error.format_message() or "no command given: see dewmark --help")
        except typer.Abort:
            return _fail("aborted")
        except BrokenPipeError:
            return _closed_pipe()
        except OSError as error:
            if error.errno is None:
                raise
            return _fail(_describe(error))
        except KeyboardInterrupt:
            code = 130
    if code == 130:
        say(
            "dewmark: interrupted; reproduce, generate --prompts, detect --out, attack --in and train resume "
            "if you repeat the command"
        )
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Search for unused objects less often: there are none among the many that imports create and keep."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _asked(arguments: Sequence[str] | None) -> typer.Typer:
    """The application with only the command that comes first, if one does: typer reads all signatures."""
    first = next(iter(sys.argv[1:] if arguments is None else arguments), None)
    commands = [each for each in app.registered_commands if each.name == first]
    groups = [each for each in app.registered_groups if each.name == first]
    if not commands and not groups:
        return app
    only = copy.copy(app)
    only.registered_commands, only.registered_groups = commands, groups
    return only


def _checking_options(command: Any) -> Any:  # noqa: ANN401 - a command of typer's own click
    """The command, which now rejects a second --key where only the last would count.

    It also checks that its outputs can be written, since some commands work for hours before they write.
    """
    for each in getattr(command, "commands", {}).values():
        _checking_options(each)
    parse = command.parse_args

    def checked(ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        _, _, given = command.make_parser(ctx).parse_args(args=list(args))
        twice = [p for p in given if p.name == "key" and given.count(p) > 1 and not p.multiple]
        if twice and not hasattr(command, "commands"):
            raise ConfigError(f"{twice[0].opts[0]} was given more than once, but takes one value here")
        rest = list(parse(ctx, args))
        for name in _OUTPUTS:
            if isinstance(path := ctx.params.get(name), Path):
                check_writable(path)
        return rest

    command.parse_args = checked
    return command


def _fail(message: str) -> int:
    say(f"dewmark: error: {' '.join(message.split())}")
    return 2


def _describe(error: OSError) -> str:
    where = f" at {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{where}: free some space and run the command again"
    return f"{error.strerror or error}{where}"


def _closed_pipe() -> int:
    # The reader has gone: discard what is buffered, so that flushing at exit does not fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print dewmark's own warnings as one line, and hide those of other libraries."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        say(f"dewmark: warning: {message}")
