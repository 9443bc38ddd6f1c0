"""The snippets of README and quickstart run in order, as copied; those of other pages define their names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_RUN = ("pip install", "vllm serve", "dewmark demo")  # vLLM has an environment of its own; test_demo.py
RUN = {
    **dict.fromkeys(("README.md", "docs/quickstart.md"), ("bash", "python")),
    **dict.fromkeys(("docs/marking.md", "docs/detection.md", "docs/locate.md"), ("python",)),
}


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """(language, code) of the fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(language, code) for language, code in found if language in languages]


@pytest.mark.parametrize("page", [*RUN, "docs/rings.md"])
def test_snippets_use_no_undefined_name(page: str) -> None:
    code = "\n".join(code for _, code in blocks(page, "python"))
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--quiet", "-"]
    ran = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_shell_snippets_are_valid_and_use_files_that_exist(page: str) -> None:
    """Every file that a command reads was written by a block before it."""
    written: set[str] = set()
    for language, code in blocks(page, "bash", "python"):
        if language == "bash":
            assert subprocess.run(["bash", "-n"], input=code, text=True, check=False).returncode == 0
            for line in code.replace("\\\n", " ").splitlines():
                written |= set(re.findall(r"(?:--out|>|--html) (\S+)", line))
                if line.startswith("dewmark "):
                    used = set(re.findall(r"(?<![\w./-])[\w-]+\.(?:key|txt|jsonl)\b", line.split("#")[0]))
                    assert used <= written, line
        else:
            saved = set(re.findall(r'save\("([^"]+)"\)', code))
            assert set(re.findall(r'load\("([^"]+)"\)', code)) <= written | saved


@pytest.mark.models
@pytest.mark.parametrize("page", RUN)
def test_snippets_run_in_order_as_copied(page: str, tmp_path: Path) -> None:
    """In one folder, with real texts, so this is slow; the service, which runs on, must answer."""
    commands, folder = tmp_path / "bin", tmp_path / "here"
    commands.mkdir()
    folder.mkdir()
    (commands / "dewmark").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dewmark "$@"\n')
    (commands / "dewmark").chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    if "bash" not in RUN[page]:  # the page continues the quickstart, and its blocks are one program
        _run(["dewmark", "key", "new", "--out", "my.key"], folder, environment)
        _run([sys.executable, "-c", "".join(code for _, code in blocks(page, "python"))], folder, environment)
        return
    for language, code in blocks(page, *RUN[page]):
        lines = [line for line in code.splitlines() if not any(each in line for each in NOT_RUN)]
        if language == "python":
            _run([sys.executable, "-c", code], folder, environment)
        elif "dewmark serve" in code:
            _answers(code, folder, environment)
        else:
            _run(["bash", "-e", "-c", "\n".join(lines)], folder, environment)


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}\n{ran.stderr}"


def _answers(code: str, folder: Path, environment: dict[str, str]) -> None:
    """Start a service with the command and ask it for its page."""
    command = ["bash", "-c", f"exec {code.strip()} --port 8947"]
    with subprocess.Popen(command, cwd=folder, env=environment) as process:
        try:
            for _ in range(120):
                time.sleep(0.5)
                try:
                    with urllib.request.urlopen("http://127.0.0.1:8947/", timeout=5) as answer:
                        assert b"dewmark" in answer.read()
                        return
                except OSError:
                    assert process.poll() is None
            pytest.fail("the service did not answer")
        finally:
            process.terminate()
