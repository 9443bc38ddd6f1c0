"""The examples of the four extension points run, alone and through entry points."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dewmark
import dewmark_lab.testing
from dewmark import registry
from dewmark_lab.attacks import ATTACKS, load_attack

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
ENTRY_POINTS = """\
[dewmark.schemes]
halves = own_scheme:Halves
[dewmark.attacks]
swap = own_attack:Swap
[dewmark.encoders]
ngrams = own_encoder:CharacterNgrams
[dewmark.hosts]
bigrams = own_host:Bigrams
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example as a script, in this process; names that it registers are forgotten afterwards."""
    for table in (ATTACKS, dewmark.ENCODERS, dewmark.HOSTS):
        monkeypatch.setattr(table, "registered", dict(table.registered))

    def run_example(name: str) -> str:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_example


def p_values(output: str) -> list[float]:
    return [float(p) for p in re.findall(r"\(p = ([\d.e+-]+),", output)]


def test_the_own_scheme_reports_its_checks(run, monkeypatch) -> None:
    """Three of them here; ``tests/testing`` runs all of them on this scheme."""
    monkeypatch.setattr("dewmark_lab.testing.CHECKS", dewmark_lab.testing.CHECKS[:3])
    first, *outcomes = run("own_scheme.py").splitlines()
    assert first == "halves:"
    assert [line.split()[0] for line in outcomes] == ["passed"] * 3


def test_the_own_attack_weakens_a_mark(run) -> None:
    untouched, attacked, swapped = p_values(run("own_attack.py"))
    assert untouched < attacked < swapped
    assert untouched < 1e-10


def test_the_own_encoder_serves_dew(run) -> None:
    (p_value,) = p_values(run("own_encoder.py"))
    assert p_value < 1e-4


def test_the_own_host_writes_for_two_schemes(run) -> None:
    output = run("own_host.py")
    assert max(p_values(output)) < 1e-4
    assert re.search(r"perplexity \d+\.\d\n", output)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("own_*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= (120 if path.stem == "own_host" else 70)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch) -> Iterator[None]:
    """A package with the four examples and their entry points, as pip would install it."""
    for path in EXAMPLES.glob("own_*.py"):
        shutil.copy(path, tmp_path)
    package = tmp_path / "my_package-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    registry._published.cache_clear()
    yield
    registry._published.cache_clear()
    for path in EXAMPLES.glob("own_*.py"):
        sys.modules.pop(path.stem, None)


def test_entry_points_publish_all_four(installed) -> None:
    host = dewmark.load_host("bigrams")
    assert host.name == "bigrams"
    scheme = dewmark.load_scheme(
        dewmark.Key(bytes(32)), host="bigrams", scheme="halves", settings={"strength": 3}
    )
    assert scheme.scheme.to_dict() == {"strength": 3.0}
    assert scheme.host.vocab_size == host.info.vocab_size
    assert load_attack("swap", r=1).apply(["one two"], seeds=[1]) == ["two one"]
    assert dewmark.load_encoder("ngrams").encode(["a word"]).shape == (1, 128)
