from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from dewmark import registry
from dewmark.errors import ConfigError, MissingExtraError, UnknownNameError
from dewmark.extras import require
from dewmark.registry import Registry


@pytest.fixture
def fruit() -> Registry:
    return Registry("fruit", {"plum": "fractions:Fraction", "apple": "colorsys:rgb_to_hsv"})


def test_nothing_is_imported_before_the_first_lookup(fruit, monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert list(fruit) == ["apple", "plum"]
    assert len(fruit) == 2
    assert "apple" in fruit
    assert "colorsys" not in sys.modules
    assert callable(fruit["apple"])
    assert "colorsys" in sys.modules


def test_a_misspelt_name_gets_a_hint(fruit):
    with pytest.raises(UnknownNameError, match="unknown fruit 'aple'; did you mean 'apple'?"):
        fruit["aple"]


def test_names_are_found_as_papers_write_them(fruit):
    assert fruit["APPLE"] is fruit["apple"]
    with pytest.raises(UnknownNameError, match="unknown fruit 'APLE'; did you mean 'apple'?"):
        fruit["APLE"]


def test_other_packages_publish_names_but_cannot_replace_ours(monkeypatch):
    published = [
        EntryPoint(name="pear", value="fractions:Fraction", group="fruits"),
        EntryPoint(name="plum", value="decimal:Decimal", group="fruits"),
    ]
    asked = []

    def entry_points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return published

    monkeypatch.setattr(registry, "entry_points", entry_points)
    table = Registry("fruit", {"plum": "fractions:Fraction"}, group="fruits")
    from fractions import Fraction

    assert list(table) == ["pear", "plum"]
    assert "pear" in table
    assert table["pear"] is Fraction
    assert table["plum"] is Fraction
    assert set(asked) == {"fruits"}


def test_a_program_registers_names_but_cannot_replace_ours(fruit):
    fruit.register("pear", len)
    fruit.register("fig", "fractions:Fraction")
    assert list(fruit) == ["apple", "fig", "pear", "plum"]
    assert fruit["pear"] is len
    assert fruit["fig"] is fruit["plum"]
    with pytest.raises(ConfigError, match="fruit 'plum' is built in"):
        fruit.register("plum", len)


@pytest.mark.parametrize(
    ("table", "name", "package"),
    [
        (registry.SCHEMES, "vllm-gumbel", "dewmark-lab"),
        (registry.AUDITS, "draw", "dewmark-audit"),
        (registry.AUDITS, "calibration", "dewmark-audit"),
    ],
)
def test_the_core_alone_names_the_package_that_brings_a_name(monkeypatch, table, name, package):
    monkeypatch.setattr(registry, "_published", lambda group: {})
    monkeypatch.setattr(registry, "installed", lambda distribution: False)
    with pytest.raises(UnknownNameError, match=f"unknown {table.kind} '{name}'; .*: pip install {package}"):
        table[name]


def test_require_names_the_command_that_installs_it():
    with pytest.raises(
        MissingExtraError, match=r"no_such_library is not installed; .*pip install 'dewmark\[nice\]'"
    ):
        require("no_such_library.part", extra="nice")


def test_require_does_not_hide_a_fault_inside_an_installed_library(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import another_missing_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="another_missing_library") as caught:
        require("half_installed", extra="nice")
    assert not isinstance(caught.value, MissingExtraError)


OWN = """
class Quince:
    name = "quince"


class Nameless:
    pass
"""


def test_a_class_in_a_file_of_one_s_own(fruit, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    assert fruit[f"{file}:Quince"] is fruit["quince"]  # results carry its name
    for wrong, said in (
        (f"{file}:Missing", "defines no class 'Missing'"),
        (f"{file}:Nameless", "has no name"),
        (f"{tmp_path}/none.py:Quince", "cannot read"),
    ):
        with pytest.raises(ConfigError, match=said):
            fruit[wrong]
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    with pytest.raises(ConfigError, match="broken.py cannot be imported: ModuleNotFoundError"):
        fruit[f"{tmp_path}/broken.py:Quince"]
