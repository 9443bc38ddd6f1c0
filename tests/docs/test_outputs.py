"""Outputs, pictures and the report in the documentation are what the commands print and draw now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.docs import outputs, pictures

from dewmark.cli.app import main

AGAIN = "run: make outputs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("docs")
    outputs.open_folder(made)
    return made


@pytest.mark.parametrize("page", outputs.PAGES)
def test_outputs_are_those_of_their_commands(page: str, folder: Path) -> None:
    shown = (outputs.DOCS / page).read_text(encoding="utf-8")
    assert "```console\n$ dewmark " in shown
    assert outputs.made_again(shown, folder) == shown, AGAIN


def test_pictures_are_those_of_the_committed_data() -> None:
    for name, picture in pictures.all_pictures(outputs.rows(), outputs.key).items():
        assert (outputs.DOCS / "images" / name).read_text(encoding="utf-8") == picture, AGAIN


@pytest.mark.models
def test_the_host_writes_the_committed_text() -> None:
    """The first text, in float32: the same on every machine up to rounding, which may change a late token."""
    from dewmark.cli import demo
    from dewmark.cli.terminal import Progress

    row = outputs.rows()["chat-0"]
    with Progress(quiet=True) as progress:
        (case, *_), setting = demo.run(
            outputs.key("chat"), outputs.key("wrong"), row["prompt"], outputs.SEEDS["chat"],
            host=None, progress=progress, quiet=True,
        )  # fmt: skip
    assert setting == row["setting"]
    assert case.text[:200] == row["text"][:200]
    assert case.right


FOLDER = Path(__file__).parents[2] / "docs" / "examples"
SIGNER = ("--signer", str(FOLDER / "signer.jwk"), "--json")


def test_the_report_is_authentic_and_about_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = ("--text", str(FOLDER / "example.txt"))
    assert main(["report", "verify", str(FOLDER / "report.jws"), *text, *SIGNER]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text_checked"]
    assert found["claims"]["verdict"] == "marked"
