"""The signed report under docs/ is authentic, as a third party would check it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dewmark.cli.app import main

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
SIGNER = ("--signer", str(FOLDER / "signer.jwk"), "--json")


def test_the_report_is_authentic_and_about_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = ("--text", str(FOLDER / "example.txt"))
    assert main(["report", "verify", str(FOLDER / "report.jws"), *text, *SIGNER]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text_checked"]
    assert found["claims"]["verdict"] == "marked"
