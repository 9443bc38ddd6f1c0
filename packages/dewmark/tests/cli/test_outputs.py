"""The files that commands write: where they may go, of every command that is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from dewmark.cli import app


def commands(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it."""
    command = command or typer.main.get_command(app.command_line(app.COMMANDS))
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, each in command.commands.items():
        yield from commands(each, (*words, name))


def outputs() -> Iterator[Any]:
    """Every output of every command: words, the option, and values for what else the command requires."""
    for words, command in commands():
        needed = [p for p in command.params if p.required]
        for option in command.params:
            if option.name in app._OUTPUTS and option.type_descriptor.annotation is Path:
                others = [p for p in needed if p is not option]
                rest = [word for p in others for word in ([p.opts[0]] if p.opts[0][0] == "-" else []) + ["x"]]
                yield pytest.param(words, option, rest, id=" ".join((*words, option.opts[0])))


def test_every_output_is_checked():
    written = ("Write", "Also write", "Save", "Append", "With --public: a new", "A new or empty", "Keep")
    named = {
        (words, p.name)
        for words, command in commands()
        for p in command.params
        if p.type_descriptor.annotation is Path and str(getattr(p, "help", "")).startswith(written)
    }
    assert len(named) >= 7  # of the core alone
    assert {name for _, name in named} <= set(app._OUTPUTS)


@pytest.mark.parametrize(("words", "option", "rest"), list(outputs()))
def test_no_command_replaces_a_device_or_a_fifo(run, tmp_path, words, option, rest):
    fifo = tmp_path / "fifo.jsonl"
    os.mkfifo(fifo)
    for place, kind in ((fifo, "a FIFO"), (Path("/dev/full"), "a device")):
        kept = place.lstat().st_ino
        error = run(*words, option.opts[0], place, *rest).error
        assert f"cannot write {place}: it is {kind}, not a" in error
        assert place.lstat().st_ino == kept


@pytest.mark.parametrize(
    ("words", "option", "rest"), [each for each in outputs() if not each.values[1].metavar.endswith("| -")]
)
def test_a_dash_is_an_error_unless_the_help_offers_it(run, words, option, rest):
    assert f"{option.opts[0]} - would be standard output" in run(*words, option.opts[0], "-", *rest).error


def test_a_page_on_stdout_leaves_the_verdict_to_stderr(detect, host, tmp_path, monkeypatch):
    text, page = tmp_path / "a.txt", tmp_path / "page.html"
    text.write_text("the old bridge over the river")
    plain = detect(text, "--html", page)
    monkeypatch.chdir(tmp_path)
    piped = detect(text, "--html", "-")
    assert piped.code == 0
    assert piped.out == page.read_text(encoding="utf-8")
    assert plain.out in piped.err


def test_only_one_document_goes_to_stdout(run, monkeypatch):
    pytest.importorskip("dewmark_desk")
    both = ("--signer", "x", "--out", "-", "--html", "-")
    assert "standard output takes one document" in run("report", "sign", "x", *both).error
