"""Decoding options are checked when they are created."""

from __future__ import annotations

import pytest

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 2.5},
        {"max_new_tokens": True},
        {"min_new_tokens": 4, "max_new_tokens": 3},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"no_repeat_ngram": -2},
    ],
)
def test_values_out_of_range_are_named(settings) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Decoding(**settings)


def test_a_mark_in_the_sampling_needs_a_choice() -> None:
    for some in ({"temperature": 0.1}, {"top_k": 2}, {"top_p": 1e-5}, {"min_p": 0.99}):
        Decoding(**some).check_samples()
    for none, remedy in (
        ({"temperature": 0.0}, "temperature 0 .*use a temperature above 0"),
        ({"temperature": 1e-6}, "temperature 1e-06 .*use a temperature of at least 1e-05"),
        ({"temperature": 1e-6}, "temperature 1e-06 "),
        ({"top_k": 1}, "top_k 1 .*leave out top_k"),
        ({"top_p": 1e-6}, "top_p 1e-06 "),
        ({"min_p": 1.0}, "min_p 1 "),
    ):
        with pytest.raises(ConfigError, match=f"{remedy}") as error:
            Decoding(**none).check_samples("dew")
        assert "always takes the likeliest token, and dew puts its mark in the choice" in str(error.value)


def test_only_filters_remove_tokens() -> None:
    assert not Decoding(temperature=0.5, no_repeat_ngram=4).filters
    assert all(
        Decoding(**{name: value}).filters for name, value in [("top_k", 9), ("top_p", 0.9), ("min_p", 0.1)]
    )


def test_plain_values_restore_it() -> None:
    """Hashes of texts written before ``min_p`` existed must stay the same."""
    assert "min_p" not in Decoding().to_dict()
    for decoding in (Decoding(), Decoding(min_p=0.1, top_k=3, max_new_tokens=7)):
        assert Decoding(**decoding.to_dict()) == decoding
