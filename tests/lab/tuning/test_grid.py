"""Which configurations a grid stands for."""

from __future__ import annotations

import pytest

from dewmark.errors import ConfigError, UnknownNameError
from dewmark.lab.tuning import curve_of, describe, expand, flags, parse_grid, varying


def test_each_sampler_gets_its_own_strengths_only():
    found = expand(
        {"sampler": ["bias", "gumbel"], "lambda": [1, 2], "alpha": [0.1, 0.25], "units": ["token"]}
    )
    assert found == [
        {"units": "token", "sampler": "bias", "lambda": 1.0},
        {"units": "token", "sampler": "bias", "lambda": 2.0},
        {"units": "token", "sampler": "gumbel", "alpha": 0.1},
        {"units": "token", "sampler": "gumbel", "alpha": 0.25},
    ]


def test_what_is_given_replaces_the_default_values_and_the_rest_stays():
    default = expand({})
    assert {settings["sampler"] for settings in default} == {"bias", "gumbel"}
    assert {settings["units"] for settings in default} == {"token", "word"}
    found = expand(parse_grid(["k=3,5", "sampler=gumbel"]))
    gumbel = [settings for settings in default if settings["sampler"] == "gumbel"]
    assert [{**settings, "k": k} for settings in gumbel for k in (3, 5)] == found
    assert len(expand(parse_grid(["units=word", "sampler=gumbel", "alpha=0.5"]))) == 1


def test_values_that_say_the_same_are_one_configuration():
    assert len(expand({"sampler": ["bias"], "lambda": ["2", "2.0", 2]})) == len(
        expand({"sampler": ["bias"], "lambda": [2.0]})
    )


def test_another_scheme_has_no_default_grid():
    assert expand({"delta": ["1", "2"]}, scheme="kgw") == [{"delta": 1.0}, {"delta": 2.0}]
    with pytest.raises(ConfigError, match="kgw has no default grid"):
        expand({}, scheme="kgw")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (["lambda="], ConfigError, "--grid lambda needs at least one value"),
        (["lambda= , "], ConfigError, "--grid lambda needs at least one value"),
        (["lambda"], ConfigError, "must have the form name=value"),
        (["lamda=1"], UnknownNameError, "did you mean 'lambda'"),
        (["lambda=-1"], ConfigError, "lambda must be positive"),
        (["sampler=bias", "alpha=0.5"], ConfigError, "alpha has no meaning for any sampler of the grid"),
        (["sampler=greedy"], ConfigError, "sampler must be one of bias, gumbel"),
    ],
)
def test_grids_that_cannot_be(options, error, said):
    with pytest.raises(error, match=said) as caught:
        expand(parse_grid(options))
    assert "\n" not in str(caught.value)


def test_no_values_in_the_library():
    with pytest.raises(ConfigError, match="the grid is empty"):
        expand({"sampler": []})


def test_names_of_a_configuration():
    settings = {"units": "word", "sampler": "gumbel", "alpha": 0.25, "k": 5}
    assert describe(settings) == "gumbel units=word alpha=0.25 k=5"
    assert flags(settings) == "--set units=word --set sampler=gumbel --set alpha=0.25 --set k=5"
    assert curve_of(settings) == ("gumbel units=word k=5", "alpha=0.25")
    assert curve_of({"delta": 2.0}) == ("", "delta=2")


def test_what_all_configurations_share_is_left_out():
    both = [{"k": 3, "sampler": "bias", "lambda": 1.0}, {"k": 3, "sampler": "bias", "lambda": 2.0}]
    assert varying(both) == [{"sampler": "bias", "lambda": 1.0}, {"sampler": "bias", "lambda": 2.0}]
    assert varying([{"k": 3, "delta": 2.0}, {"k": 5, "delta": 2.0}]) == [{"k": 3}, {"k": 5}]
