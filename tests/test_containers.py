"""The container files name commands, options and files that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
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


def test_the_service_has_limits_and_no_rights():
    desk, db = COMPOSE["services"]["desk"], COMPOSE["services"]["db"]
    assert (desk["read_only"], desk["cap_drop"]) == (True, ["ALL"])
    for service in (desk, db):
        assert {"mem_limit", "pids_limit"} <= set(service)
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert not re.search("torch|encoders|host", "".join(re.findall(r"pip install.*", IMAGE)))


def test_base_images_are_named_by_digests_only():
    names = [COMPOSE["services"]["db"]["image"], *COMPOSE["services"]["desk"]["build"]["args"].values()]
    assert all(re.fullmatch(r"\$\{[A-Z]+_IMAGE:\?make images .*\}", name) for name in names)  # no default
    assert set(re.findall(r"^FROM (\S+)", IMAGE, re.MULTILINE)) == {"${PYTHON}"}
    assert "ARG PYTHON\n" in IMAGE


ENGINE = """#!/bin/sh
[ "$1" = pull ] && exit 0
echo "${5##*/}@sha256:$DIGEST"
"""


@pytest.mark.parametrize(("digest", "code"), [("0" * 64, 0), ("no digest", 2)])
def test_make_images_pins_what_the_engine_says(tmp_path, digest, code):
    engine = tmp_path / "engine"
    engine.write_text(ENGINE, encoding="utf-8")
    engine.chmod(0o755)
    command = ["make", "-f", ROOT / "Makefile", "images", f"ENGINE={engine}", "TORCH=", "PYTHON=python3"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "DIGEST": digest}, check=False)
    assert done.returncode == code
    pinned = tmp_path / ".env"
    assert pinned.exists() == (code == 0)
    if code == 0:
        assert pinned.read_text(encoding="utf-8").splitlines() == [
            f"PYTHON_IMAGE=python:3.11-slim@sha256:{digest}",
            f"POSTGRES_IMAGE=postgres:17@sha256:{digest}",
        ]
