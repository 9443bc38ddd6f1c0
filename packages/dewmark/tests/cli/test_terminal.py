"""What a terminal shows: progress as a bar or few plain lines, and tokens in colours."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dewmark.cli import terminal as module
from dewmark.cli.terminal import Progress
from dewmark.cli.token_colours import colour_tokens, legend, verdict_line
from dewmark.types import Detection, TokenScore, Verdict


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_are_few(capsys, clock):
    with Progress() as progress:
        for done in range(101):
            progress("working", done, 100)
            clock[0] += 0.3  # 30 seconds in all
        progress("working", 100, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "working: 0 of 100"
    assert lines[-1] == "working: 100 of 100"
    assert lines.count("working: 100 of 100") == 1
    assert 6 <= len(lines) <= 8


def test_quiet_is_silent(capsys):
    with Progress(quiet=True) as progress:
        progress("working", 1, 2)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_and_stdout_is_untouched(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out, err = io.StringIO(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        progress("working", 1, 2)
        sys.stdout.write("result\n")
        progress.clear()
        progress("working", 2, 2)
    assert "working" in err.getvalue()
    assert out.getvalue() == "result\n"


TEXT = "red plain green \x1b[31mevil🙂"
TOKENS = (
    TokenScore("red", 0, 3, -3.0, True),
    TokenScore(" plain", 3, 9, 0.1, True),
    TokenScore(" green", 9, 15, 3.0, True),
    TokenScore("x", 15, 20, 0.0, False),
    TokenScore("\N{REPLACEMENT CHARACTER}", 25, 26, 1.0, True),
    TokenScore("\N{REPLACEMENT CHARACTER}", 25, 26, 1.0, True),
)
FOUND = Detection(Verdict.MARKED, 1e-4, 3.7, 0.2, 5.0, 5, "key", 0.01, "dew", "ab12", TOKENS)


def shown(**options) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, **options)
    console.print(colour_tokens(TEXT, FOUND), legend())
    return stream.getvalue()


def test_control_characters_are_replaced():
    plain = colour_tokens(TEXT, FOUND).plain
    assert plain == TEXT.replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    assert "\x1b[31m" not in shown(color_system="truecolor")


HOSTILE = "a\x1b[2Jb\u202etxt.exe\u2066\u200f\x9bc"


def test_nothing_that_a_terminal_gets_moves_the_cursor_or_reorders(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("NO_COLOR", "1")
    module.write(HOSTILE)
    module.say(HOSTILE)
    table = Table(HOSTILE, box=None)
    table.add_row(HOSTILE)
    module.results().print(table, Text(HOSTILE), HOSTILE)
    shown = out.getvalue() + err.getvalue()
    assert shown.count("txt.exe") == 6
    assert "\x1b[2J" not in shown
    assert not {*shown} & {*"\u202e\u2066\u200f\x9b"}


def test_what_is_piped_keeps_every_character(capsys):
    module.write(HOSTILE)
    assert capsys.readouterr().out == HOSTILE
    module.emit({"name": HOSTILE})
    line = capsys.readouterr().out
    assert line.isascii()
    assert json.loads(line)["name"] == HOSTILE


def test_colours_follow_scores():
    styles = {span.start: str(span.style) for span in colour_tokens(TEXT, FOUND).spans}
    assert "on #ecad6d" in styles[0]
    assert "on #f2f2ee" in styles[3]  # near 0
    assert "on #859edd" in styles[9]
    assert styles[15] == "dim"
    assert styles[25].startswith("#000000 on")


def test_no_color_is_honoured(monkeypatch):
    coloured = shown(color_system="truecolor")
    assert "48;2;236;173;109m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;2" not in shown(color_system="truecolor")


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_line_for_every_verdict(verdict):
    found = Detection(verdict, 0.004, 2.6, 0.2, 40.0, 45, "key", 0.01, "dew", "ab12")
    line = verdict_line("a\x07.txt", found).plain
    assert line.startswith(f"a\N{REPLACEMENT CHARACTER}.txt: {verdict.words}: ")
    assert ("effective length 40 of 45" in line) == (verdict is not Verdict.UNSUPPORTED_LANGUAGE)
