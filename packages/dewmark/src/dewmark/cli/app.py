"""The ``dewmark`` command: its subcommands and its exit codes.

Exit codes: 0 success (whatever the verdict), 1 a check failed, 2 bad input or usage, 130 interrupted.
An error is one line on stderr.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
import typer.core

from dewmark.cli.terminal import STDOUT, check_writable, document_on_stdout, say
from dewmark.errors import ConfigError, DewmarkError
from dewmark.registry import Registry, installed
from dewmark.version import __version__

_OUTPUTS = ("out", "page", "html", "work", "keep_key", "policy_log")  # parameters that name files to write
_LABELS = {int: "N", float: "NUMBER", Path: "FILE"}
_HELP = "Watermarks for language models: mark text, and detect the mark with an honest p-value."

COMMANDS = Registry(
    "command",
    {
        "demo": "dewmark.cli.demo:demo",
        "detect": "dewmark.cli.detect:detect",
        "detector": "dewmark.cli.detector:app",
        "generate": "dewmark.cli.generate:generate",
        "key": "dewmark.cli.key:app",
        "locate": "dewmark.cli.locate:locate",
        "models": "dewmark.cli.models:app",
        "schemes": "dewmark.cli.schemes:schemes",
    },
    group="dewmark.commands",
)
COMPANIONS = {
    "dewmark-audit": ("audit", "calibrate", "power", "retention"),
    "dewmark-desk": ("comply", "log", "policy", "provenance", "report", "serve", "token"),
    "dewmark-lab": (
        *("attack", "bench", "build-lexicon", "evaluate", "quality", "radioactivity", "reproduce"),
        *("steal", "train", "train-reader"),
    ),
    "dewmark-rewrite": ("rewrite",),
}
"""The commands that other packages of ours bring."""

atexit.register(gc.freeze)  # spare the last search for unused objects: their memory is returned anyway


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dewmark {__version__}")
        raise typer.Exit


class _Labels:
    """Shows in --help what an option takes instead of the names of Python's types; a flag takes nothing."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - a context of typer's own
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if not isinstance(each, typer.core.TyperOption):
                continue
            each.show_envvar = each.envvar is not None  # serve says once how its variables are called
            if each.metavar is None:
                each.metavar = "" if each.is_flag else _LABELS.get(each.type_descriptor.annotation, "TEXT")
        return params


class _Group(_Labels, typer.core.TyperGroup):
    """A command with subcommands."""


class _CheckedCommand(_Labels, typer.core.TyperCommand):
    """A command that rejects a second --key where only the last would count.

    It also checks that its outputs can be written, since some commands work for hours before they write.
    An output whose label ends in ``| -`` may be ``-``, which is stdout; results then go to stderr.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a context of typer's own
        single = any(p.name == "key" and not getattr(p, "multiple", True) for p in self.params)
        if single and sum(each == "--key" or each.startswith("--key=") for each in args) > 1:
            raise ConfigError("--key was given more than once, but takes one value here")
        rest = list(super().parse_args(ctx, args))
        outputs = [p for p in self.params if p.name in _OUTPUTS and isinstance(ctx.params[p.name], Path)]
        for each in outputs:
            path, label = ctx.params[each.name], str(each.metavar)
            if path != STDOUT:
                check_writable(path, folder=label == "DIR")
            elif not label.endswith("| -"):
                raise ConfigError(f"{each.opts[0]} - would be standard output, and it takes {label}: name it")
        if sum(ctx.params[each.name] == STDOUT for each in outputs) > 1:
            raise ConfigError("standard output takes one document: name a file for the others")
        return rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as typer has it
        stdout = any(name in _OUTPUTS and value == STDOUT for name, value in ctx.params.items())
        with document_on_stdout() if stdout else contextlib.nullcontext():
            return super().invoke(ctx)


def command_line(names: Iterable[str]) -> typer.Typer:
    """The application with the commands of these names, whose modules it imports."""
    app = typer.Typer(
        name="dewmark",
        cls=_Group,
        help=_HELP,
        epilog=" ".join(
            f"Also with pip install {package}: {', '.join(commands)}."
            for package, commands in COMPANIONS.items()
            if not installed(package)
        ),
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # pretty tracebacks show local variables, perhaps a key
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        found = COMMANDS[name]
        if isinstance(found, typer.Typer):
            for each in found.registered_commands:
                each.cls = _CheckedCommand
            app.add_typer(found, name=name, cls=_Group)
        else:
            settings = getattr(found, "context_settings", None)
            app.command(name, cls=_CheckedCommand, context_settings=settings)(found)
    return app


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Watermarks for language models: mark text, and detect the mark with an honest p-value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    with contextlib.ExitStack() as stack:
        # search for unused objects less often: there are none among the many that imports create and keep
        stack.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(100_000, 50, 100)
        stack.enter_context(warnings.catch_warnings())
        if not sys.warnoptions:
            warnings.showwarning = _show_warning
        try:
            # only the command that comes first, if one does: others need no import
            first = next(iter(sys.argv[1:] if arguments is None else arguments), None)
            for package, names in COMPANIONS.items():
                if first in names and first not in COMMANDS:
                    raise ConfigError(f"{first} comes with another package: pip install {package}")
            app = command_line([first] if first is not None and first in COMMANDS else COMMANDS)
            code = typer.main.get_command(app).main(
                args=arguments, prog_name="dewmark", standalone_mode=False, windows_expand_args=False
            )
        except DewmarkError as error:
            return _fail(str(error))
        except typer.TyperException as error:
            return _fail(error.format_message() or "no command given: see dewmark --help")
        except typer.Abort:
            return _fail("aborted")
        except BrokenPipeError:
            # the reader has gone: discard what is buffered, so that flushing at exit does not fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            if error.errno is None:
                raise
            where = f" at {error.filename}" if error.filename else ""
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return _fail(f"the disk is full{where}: free some space and run the command again")
            return _fail(f"{error.strerror or error}{where}")
        except KeyboardInterrupt:
            code = 130
    if code == 130:
        say(
            "dewmark: interrupted; reproduce, quality, generate --prompts, detect --out, attack --in and "
            "train resume if you repeat the command"
        )
    return code if isinstance(code, int) else 0


def _fail(message: str) -> int:
    say(f"dewmark: error: {' '.join(message.split())}")
    return 2


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
