"""The documentation names modules, functions and files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import typer

from dewmark.cli.app import COMMANDS, command_line
from dewmark.registry import SCHEMES

APP = typer.main.get_command(command_line(COMMANDS))
ROOT = Path(__file__).parent.parent
SOURCES = {
    name: ROOT / "packages" / name.replace("_", "-") / "src" / name
    for name in ("dewmark", "dewmark_audit", "dewmark_lab", "dewmark_desk", "dewmark_rewrite")
}
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if path.name not in ("report.md", "dossier.md")  # written by commands
)
PLACES = (ROOT, *sorted((ROOT / "packages").iterdir()))
ENTRY_POINTS = {
    "dewmark.attack_engines",
    "dewmark.attacks",
    "dewmark.audits",
    "dewmark.commands",
    "dewmark.encoders",
    "dewmark.hosts",
    "dewmark.schemes",
    "dewmark.trainers",
    "dewmark.translators",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    name = r"(?<![\w./-])dewmark(?:_audit|_lab|_desk|_rewrite)?(?:\.[A-Za-z_]\w*)+(?:[:.]\w+)*"
    dotted = set(re.findall(name, text)) - ENTRY_POINTS
    missing = sorted(name for name in dotted if not _exists(name))
    paths = set(re.findall(r"(?<![\w./-])((?:packages|tests|examples|benchmarks)/[\w/.-]*\w\.py)", text))
    missing += sorted(path for path in paths if not any((place / path).exists() for place in PLACES))
    assert not missing


def test_the_architecture_page_names_functions_where_they_are() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if re.search(r"`[\w/]+\.py` \|$", line)]
    assert len(rows) > 15
    for row in rows:
        files = re.findall(r"`([\w/]+\.py)`", row[-2])
        code = "\n".join((SOURCES["dewmark"] / file).read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"`([\w.]+)`", row[-3]):
            for part in name.split("."):
                assert re.search(rf"\b(?:class|def) {part}\b", code), f"{part} is not in {files}"


def test_the_architecture_page_shows_the_layers_of_the_import_linter() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (core,) = (each for each in contracts if each["name"].startswith("Core: "))
    layers = core["layers"][1:]  # without __main__
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (diagram,) = re.findall(r"```\n(cli .*?)```", page, re.DOTALL)
    assert [re.split(r"  +", line)[0].strip() for line in diagram.splitlines()] == layers


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    code = "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text))
    for line in re.findall(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*dewmark (.*)", code, re.MULTILINE):
        words = line.split("#")[0].split()
        command: object = APP
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        known = {
            option for parameter in command.params for option in parameter.opts + parameter.secondary_opts
        }
        unknown = {word.split("=")[0] for word in words if re.match(r"--\w", word)} - known - {"--help"}
        assert not unknown, line


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_wrapped_at_120_columns(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > 120 and " " in line.strip()]
    assert not [line for line in long if not line.startswith(("|", "#", "![", "    "))]


def _exists(name: str) -> bool:
    """Whether a dotted name is a module of dewmark, or is written in one; nothing is imported."""
    top, *rest = name.replace(":", ".").split(".")
    place = SOURCES[top]
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if rest and (place / f"{rest[0]}.py").exists():
        file = place / f"{rest.pop(0)}.py"
    else:
        file = place / "__init__.py"
    code = file.read_text(encoding="utf-8")
    return not rest or re.search(rf"\b{rest[0]}\b", code) is not None


def test_every_scheme_says_how_it_was_verified() -> None:
    """Pages say it before their first heading; the index has a row for every scheme."""
    folder = ROOT / "docs" / "schemes"
    index = (folder / "index.md").read_text(encoding="utf-8")
    table = index.split("## How each scheme was verified")[1].split("\n## ")[0]
    assert set(SCHEMES) - set(re.findall(r"`([\w-]+)`", table)) == set()
    for page in folder.glob("*.md"):
        if page.name != "index.md":
            start = page.read_text(encoding="utf-8").split("\n## ")[0]
            assert "**Verified**" in start, f"{page.name} does not say how the scheme was verified"
            assert "**What\ndiffers**" in start or "**What differs**" in start, page.name
