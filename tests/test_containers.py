"""The container files name commands, options and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import typer
import yaml

from dewmark.cli.app import COMMANDS, command_line

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
IMAGE = (ROOT / "Containerfile").read_text(encoding="utf-8")


def serve_options() -> set[str]:
    command = typer.main.get_command(command_line(COMMANDS)).commands["serve"]
    return {option for parameter in command.params for option in parameter.opts}


def test_every_variable_sets_an_option_of_serve():
    names = {*COMPOSE["services"]["desk"]["environment"], *re.findall(r"DEWMARK_[A-Z_]+(?==)", IMAGE)}
    variables = {name.removeprefix("DEWMARK_SERVE_") for name in names if name.startswith("DEWMARK_SERVE_")}
    assert len(variables) >= 8
    options = serve_options()
    for variable in variables:
        assert f"--{variable.lower().replace('_', '-')}" in options
    assert names - {f"DEWMARK_SERVE_{each}" for each in variables} == {"DEWMARK_STORE_FILE", "DEWMARK_CACHE"}


def test_files_and_command_of_the_image_exist():
    for copied in re.findall(r"^COPY (?!--from)(.+)$", IMAGE, re.MULTILINE):
        *sources, _ = copied.split()
        assert all((ROOT / source).exists() for source in sources)
    (command,) = re.findall(r'^CMD \["serve", "(--\w+)"', IMAGE, re.MULTILINE)
    assert command in serve_options()
    assert "/readyz" in IMAGE
    assert "USER 10001" in IMAGE


def test_secrets_come_from_files_and_the_database_is_waited_for():
    desk, db = COMPOSE["services"]["desk"], COMPOSE["services"]["db"]
    assert {*desk["secrets"], *db["secrets"]} == set(COMPOSE["secrets"])
    assert all(secret["file"].startswith("./secrets/") for secret in COMPOSE["secrets"].values())
    assert "PASSWORD:" not in (ROOT / "compose.yaml").read_text(encoding="utf-8")
    assert desk["depends_on"]["db"]["condition"] == "service_healthy"
    assert desk["ports"] == ["127.0.0.1:8080:8080"]
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert {"/secrets/", "*.pem", "*.key"} <= set(ignored)
    for name in (".containerignore", ".dockerignore"):
        assert {"secrets", "*.pem", "*.key"} <= set((ROOT / name).read_text(encoding="utf-8").split())
