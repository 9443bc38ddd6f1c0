"""``dewmark schemes``: every scheme is described, and each of its parameters."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import pytest

from dewmark.cli.schemes import field_help
from dewmark.registry import SCHEMES
from dewmark.scheme import Scheme

pytest.importorskip("torch", reason="the marks of engines need it")


def rows(run, *arguments: str) -> list[dict]:
    done = run("schemes", *arguments, "--json")
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_all_schemes_are_listed_with_their_parameters(run) -> None:
    found = rows(run)
    assert [row["name"] for row in found] == list(SCHEMES)
    for row in found:
        parameters = {parameter["name"]: parameter["default"] for parameter in row["parameters"]}
        fields = dataclasses.fields(SCHEMES[row["name"]])
        assert parameters == {field.name.rstrip("_"): field.default for field in fields}
        assert row["summary"]
        assert row["needs"][0] == "logits"


def test_needs_are_the_declared_ones(run) -> None:
    assert rows(run, "dew")[0]["needs"] == ["logits", "sampling", "final_distribution"]


@pytest.mark.parametrize("name", SCHEMES)
def test_every_parameter_is_explained(run, name) -> None:
    for parameter in rows(run, name)[0]["parameters"]:
        assert parameter["help"].endswith("."), parameter
        assert parameter["type"]


def test_plain_table(run) -> None:
    listed, one = run("schemes"), run("schemes", "dew-paper")
    assert listed.code == one.code == 0
    for name in SCHEMES:
        assert name in listed.out
    assert "gamma=0.5" in listed.out
    assert "whiten_contexts=false  (true or false)" in one.out
    assert "n=none  (whole number or none)" in one.out
    assert "Another model whose input embeddings replace" in one.out


def test_an_unknown_scheme(run) -> None:
    assert "did you mean 'dew'" in run("schemes", "dwe").error


def test_a_broken_plugin_does_not_hide_other_schemes(run, monkeypatch) -> None:
    monkeypatch.setitem(SCHEMES.registered, "broken", "no_such_package:Thing")
    found = {row["name"]: row for row in rows(run)}
    assert "no_such_package" in found["broken"]["error"]
    assert found["dew"]["summary"]
    assert "cannot be loaded" in run("schemes").out
    assert "no_such_package" in run("schemes", "broken").error


def test_help_is_read_from_bases_too_and_may_be_missing() -> None:
    @dataclass(frozen=True)
    class Base(Scheme):
        a: int = 1
        """Of the ``base``,
        on two lines."""
        b: int = 2

    @dataclass(frozen=True)
    class Derived(Base):
        c: int = 3
        """Its own."""

    assert field_help(Derived) == {"a": "Of the base, on two lines.", "c": "Its own."}
    made = type("Made", (Base,), {"__module__": "nowhere"})
    assert field_help(made) == {"a": "Of the base, on two lines."}
