from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dewmark import config
from dewmark.errors import ConfigError


@dataclass(frozen=True)
class Example:
    lambda_: float = 2.0
    k: int = 3
    n: int | None = None
    contexts: Literal["raw", "white"] = "white"
    clip: Literal["none", "hard"] = "hard"
    prefix: str = ""
    keyed: bool = True
    top: int | Literal["all"] = 32


def changed(**values: object) -> Example:
    return config.replace(Example(), values)


class TestReplace:
    def test_text_becomes_the_field_s_type(self):
        new = config.replace(
            Example(),
            config.parse_settings(
                ["lambda=2.5", "k=5", "n=768", "contexts=raw", "keyed=no", "prefix=query: "]
            ),
        )
        assert new == Example(lambda_=2.5, k=5, n=768, contexts="raw", keyed=False, prefix="query:")
        assert type(new.k) is int
        assert type(new.lambda_) is float

    @pytest.mark.parametrize("name", ["lambda", "lambda_"])
    def test_a_keyword_field_has_two_names(self, name):
        assert config.replace(Example(), {name: 1}).lambda_ == 1.0

    @pytest.mark.parametrize("value", [None, "none", "None", "null"])
    def test_none_where_the_field_allows_it(self, value):
        assert config.replace(Example(n=4), {"n": value}).n is None

    def test_none_is_an_ordinary_word_where_the_field_lists_it(self):
        assert changed(clip="none").clip == "none"
        assert changed(prefix="none").prefix == "none"

    @pytest.mark.parametrize("value", [np.int64(5), np.float32(5.0), 5.0, "5", " 5 "])
    def test_whole_numbers_of_every_kind(self, value):
        new = changed(k=value)
        assert new.k == 5
        assert type(new.k) is int

    @pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), 0.5, "0.5", "5e-1", ".5"])
    def test_numbers_of_every_kind(self, value):
        new = changed(lambda_=value)
        assert new.lambda_ == 0.5
        assert type(new.lambda_) is float

    @pytest.mark.parametrize("value", [True, "true", "YES", "1", 1])
    def test_booleans(self, value):
        assert config.replace(Example(keyed=False), {"keyed": value}).keyed is True

    def test_a_union_takes_the_first_type_that_fits(self):
        assert changed(top="64").top == 64
        assert changed(top="all").top == "all"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("k", "three"),
            ("k", 3.5),
            ("k", ""),
            ("k", None),
            ("k", True),
            ("k", [3]),
            ("k", float("nan")),
            ("k", "9" * 5000),
            ("lambda", "strong"),
            ("lambda", float("inf")),
            ("lambda", 10**400),
            ("lambda", True),
            ("n", "many"),
            ("contexts", "grey"),
            ("prefix", 3),
            ("keyed", "maybe"),
            ("top", "some"),
        ],
    )
    def test_a_bad_value_is_rejected_by_name(self, name, value):
        with pytest.raises(ConfigError, match=rf"^{name} must be ") as caught:
            config.replace(Example(), {name: value})
        assert "\n" not in str(caught.value)

    def test_the_message_lists_valid_values(self):
        with pytest.raises(ConfigError, match="one of raw, white, got 'grey'"):
            changed(contexts="grey")
        with pytest.raises(ConfigError, match="a whole number or one of all, got 'some'"):
            changed(top="some")

    @settings(max_examples=40)
    @given(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))
    )
    def test_any_value_gives_a_config_or_a_config_error(self, value):
        for name in config.to_dict(Example()):
            try:
                new = config.replace(Example(), {name: value})
            except ConfigError:
                continue
            # what was accepted is stable: it survives a second pass unchanged
            assert config.replace(Example(), config.to_dict(new)) == new


@dataclass(frozen=True)
class Ranged:
    share: Annotated[float, "in [0, 1)"] = 0.5
    part: Annotated[float, "in (0, 1]"] = 0.5
    count: Annotated[int | None, "at least 2"] = None
    size: Annotated[float, "positive"] = 1.0


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ({"share": 0}, {"share": 1}),
        ({"part": 1}, {"part": 0}),
        ({"count": 2}, {"count": 1}),
        ({"count": None}, {"count": -3}),
        ({"size": 1e-9}, {"size": 0}),
    ],
)
def test_a_range_stands_on_the_type(within, beyond):
    assert config.coerced(Ranged(**within)).items() >= within.items()
    with pytest.raises(ConfigError, match=rf"^{next(iter(beyond))} must (be|lie) .*, got "):
        config.coerced(Ranged(**beyond))


class TestParseSettings:
    def test_values_may_contain_equal_signs_and_spaces(self):
        assert config.parse_settings([" k = 5", "prefix=a=b c", "x="]) == {
            "k": "5",
            "prefix": "a=b c",
            "x": "",
        }

    @pytest.mark.parametrize("setting", ["k", "", "=5", " =5"])
    def test_bad_settings_are_rejected(self, setting):
        with pytest.raises(ConfigError, match="must have the form name=value"):
            config.parse_settings([setting])


def test_to_dict_uses_public_names_and_round_trips():
    plain = config.to_dict(Example(k=7))
    assert plain["lambda"] == 2.0
    assert "lambda_" not in plain
    assert config.replace(Example(), plain) == Example(k=7)


class TestConfigHash:
    def test_it_is_stable_across_machines_and_versions(self):
        assert config.config_hash("dew", {"k": 3, "lambda": 2.0}, "host") == "523ee8cba656facd"

    def test_the_order_of_names_does_not_matter_and_values_do(self):
        assert config.config_hash({"a": 1, "b": 2}) == config.config_hash({"b": 2, "a": 1})
        assert config.config_hash({"a": 1}) != config.config_hash({"a": 2})
        assert config.config_hash("ab", "c") != config.config_hash("a", "bc")


class TestCacheDir:
    def test_the_variable_wins(self, monkeypatch, tmp_path):
        monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "here"))
        assert config.cache_dir() == tmp_path / "here"

    def test_without_it_the_user_s_cache_folder_is_used(self, monkeypatch, tmp_path):
        monkeypatch.setenv("DEWMARK_CACHE", "")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert config.cache_dir() == tmp_path / "dewmark"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", "/users/somebody")
        assert config.cache_dir() == Path("/users/somebody/.cache/dewmark")
