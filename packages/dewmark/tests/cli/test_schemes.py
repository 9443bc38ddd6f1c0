"""``dewmark schemes``: every scheme is described, and each of its parameters."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dewmark.registry import SCHEMES


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


def test_an_unknown_scheme(run) -> None:
    assert "did you mean 'dew'" in run("schemes", "dwe").error


def test_a_broken_plugin_does_not_hide_other_schemes(run, monkeypatch) -> None:
    monkeypatch.setitem(SCHEMES.registered, "broken", "no_such_package:Thing")
    found = {row["name"]: row for row in rows(run)}
    assert "no_such_package" in found["broken"]["error"]
    assert found["dew"]["summary"]
    assert "cannot be loaded" in run("schemes").out
    assert "no_such_package" in run("schemes", "broken").error
