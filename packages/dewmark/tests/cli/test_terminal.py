"""Progress: a bar in a terminal, few plain lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from dewmark.cli import terminal as module
from dewmark.cli.terminal import Progress


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
