"""The command as a whole: help, exit codes, one-line errors, keys that stay secret."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import dewmark
from dewmark.cli import app
from dewmark.cli import key as keys
from dewmark.cli.app import main
from dewmark.core.keys import Key

COMMANDS = [
    [], ["key"], ["key", "new"], ["key", "show"], ["models"], ["models", "list"], ["models", "pull"],
    ["generate"], ["detect"], ["calibrate"], ["audit"], ["power"], ["retention"],
    ["detector"], ["detector", "export"], ["demo"], ["serve"], ["token"], ["token", "new"], ["token", "list"],
    ["token", "revoke"],
]  # fmt: skip
COMMANDS = [each for each in COMMANDS if not each or each[0] in app.COMMANDS]  # with the companions here
LEAVES = [c for c in COMMANDS if c not in ([], ["key"], ["models"], ["detector"], ["token"])]


MAIN = "import sys; from dewmark.cli.app import main; sys.exit(main())"


def python(code: str, *arguments: object, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(dewmark.__file__).parents[1])}
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, timeout=120, check=False
    )


def here(commands: list[str]) -> list[str]:
    """Those of the packages that are installed."""
    return [each for each in commands if each.split()[0] in app.COMMANDS]


@pytest.mark.parametrize("command", here(["audit", "detector export", "calibrate", "generate"]))
def test_an_option_that_takes_one_value_is_refused_twice(command, capsys):
    """Only the last key would count, and nobody would notice."""
    assert main([*command.split(), "--key", "a.key", "--key", "b.key"]) == 2
    assert "--key was given more than once, but takes one value here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    here(["detect a.txt --html", "locate a.txt --html", "audit --negatives a.txt --out",
          "generate --prompt a --out", "key new --out"]),
)  # fmt: skip
def test_outputs_are_checked_before_work_begins(command, tmp_path, capsys):
    """A file where a folder is needed; no key, model or text is read before that."""
    (tmp_path / "file").write_text("not a folder")
    assert main([*command.split(), str(tmp_path / "file" / "out")]) == 2
    assert f"cannot write {tmp_path}/file/out: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_that_fits_and_shows_flags_as_flags(run, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = run(*command, "--help")
    shown = result.out
    assert result.code == 0
    assert "Usage: dewmark" in shown
    assert command not in LEAVES or "--json" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert not re.search(r"^│ .*--.*<(bool|int|float|str|path)\b", shown, re.MULTILINE)


def test_help_is_light():
    code = (
        "import sys; from dewmark.cli.app import main; main(['detect', '--help']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy', 'scipy', 'fastapi')))"
    )
    assert python(code).returncode == 0


def test_version(run):
    assert run("--version").out == f"dewmark {dewmark.__version__}\n"


def test_unknown_commands(run):
    assert "Did you mean 'detect'" in run("detcet").error
    assert run("generate", "--key").error


def test_keys(run, tmp_path):
    path = tmp_path / "a.key"
    made = run("key", "new", "--out", path, "--json")
    assert made.code == 0
    key = Key.load(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key._secret.hex() not in made.out + made.err
    assert key.fingerprint in made.out
    before = path.read_bytes()
    assert "not overwritten" in run("key", "new", "--out", path).error
    assert path.read_bytes() == before
    assert run("key", "show", path).out == key.fingerprint + "\n"
    assert "no key file" in run("key", "show", tmp_path / "b.key").error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/big/file"),
            "the disk is full at /big/file: free some",
        ),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/srv/x"), "Permission denied at /srv/x"),
    ],
)
def test_system_errors_are_one_line(run, monkeypatch, error, said):
    def fail(row):
        raise error

    monkeypatch.setattr(keys, "emit", fail)
    monkeypatch.setattr(Key, "save", lambda self, path: None)
    assert said in run("key", "new", "--out", "x", "--json").error


def test_a_bug_is_not_hidden(monkeypatch):
    def fail(row):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(keys, "emit", fail)
    monkeypatch.setattr(Key, "save", lambda self, path: None)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main(["key", "new", "--out", "x", "--json"])


def test_a_closed_pipe_gives_no_traceback(tmp_path):
    path = tmp_path / "a.key"
    Key(bytes(32)).save(path)
    read, write = os.pipe()
    os.close(read)
    done = python(MAIN, "key", "show", path, stdout=write)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""


def test_control_characters_in_names_are_not_printed(capsys):
    assert main(["detect", "--key", "k", "bad\x1b]0;title\x07.txt"]) == 2
    shown = capsys.readouterr().err
    assert "bad" in shown
    assert not {"\x1b", "\x07"} & set(shown)


def test_ctrl_c_ends_with_130():
    code = (
        "import os, signal, sys; from dewmark.batch import inputs; from dewmark.cli import app;"
        # a background job is started with SIGINT ignored, and hands that on
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "inputs._read = lambda name: os.kill(os.getpid(), signal.SIGINT);"
        "sys.exit(app.main(['detect', '-', '--key', 'k']))"
    )
    done = python(code)
    assert done.returncode == 130
    assert done.stderr.startswith("dewmark: interrupted")
    assert len(done.stderr.splitlines()) == 1
