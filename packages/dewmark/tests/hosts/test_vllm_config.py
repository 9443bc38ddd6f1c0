"""Options of operators and requests for the vLLM processor, and the errors for wrong ones."""

from __future__ import annotations

import re

import pytest

from dewmark.core.keys import Key
from dewmark.errors import ConfigError
from dewmark.hosts.engines.vllm_config import CONFIG, KEY_FILE, EngineConfig, config_from_environment
from dewmark.registry import SCHEMES

TOML = """
scheme = "kgw"
mark = false
default_key = "acme"
settings = { delta = 3.0 }

[keys]
acme = "acme.key"
globex = "/etc/dewmark/globex.key"
"""


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    monkeypatch.delenv(CONFIG, raising=False)
    monkeypatch.delenv(KEY_FILE, raising=False)


def configured(tmp_path, monkeypatch, text: str) -> EngineConfig:
    file = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv(CONFIG, str(file))
    return config_from_environment()


def test_a_key_file_alone_marks_everything_with_the_default_scheme(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "a.key"))
    config = config_from_environment()
    assert config.scheme == SCHEMES["dew"]()
    assert config.key_id(None) == "default"
    assert config.keys["default"] == tmp_path / "a.key"


def test_a_configuration_names_scheme_settings_and_keys(tmp_path, monkeypatch) -> None:
    config = configured(tmp_path, monkeypatch, TOML)
    assert config.scheme == SCHEMES["kgw"]().with_settings({"delta": 3.0})
    assert config.keys["acme"] == tmp_path / "acme.key"
    assert str(config.keys["globex"]) == "/etc/dewmark/globex.key"


@pytest.mark.parametrize(
    ("said", "key_id"),
    [
        (None, None),  # mark = false
        ({"dewmark": True}, "acme"),
        ({"dewmark": 1}, "acme"),  # what vLLM makes of true over HTTP
        ({"dewmark": "true", "dewmark_key_id": "globex"}, "globex"),
        ({"dewmark_key_id": "globex"}, "globex"),  # naming a key asks for a mark
        ({"another_processor": 7}, None),
    ],
)
def test_a_request_chooses_marking_and_key(tmp_path, monkeypatch, said, key_id) -> None:
    assert configured(tmp_path, monkeypatch, TOML).key_id(said) == key_id


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"dewmark_keyid": "acme"},
            "unknown request parameter 'dewmark_keyid'; did you mean 'dewmark_key_id'",
        ),
        ({"dewmark": "maybe"}, "dewmark must be true or false, got 'maybe'"),
        ({"dewmark": False, "dewmark_key_id": "acme"}, "remove one of them"),
        ({"dewmark_key_id": "initech"}, "unknown dewmark_key_id 'initech'"),
        ({"dewmark_key_id": ["acme"]}, "unknown dewmark_key_id"),
    ],
)
def test_bad_request_parameters_give_a_one_line_error(tmp_path, monkeypatch, said, message) -> None:
    config = configured(tmp_path, monkeypatch, TOML)
    with pytest.raises(ValueError, match="dewmark") as caught:  # vLLM answers a ValueError with HTTP 400
        config.key_id(said)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "globex" not in str(caught.value)  # other tenants' ids stay private


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheme = ", "is not valid TOML"),
        ('schema = "kgw"\nkeys = { a = "a" }', "unknown parameter 'schema'"),
        ('scheme = "kgv"\nkeys = { a = "a" }', "did you mean 'kgw'"),
        ("settings = { unit = 1 }\nkeys = { a = 'a' }", "unknown parameter 'unit'"),
        ("mark = 3\nkeys = { a = 'a' }", "mark must be true or false, got 3"),
        ("keys = { a = 1 }", "must map key ids"),
        ("keys = { a = 'a', b = 'b' }", "default_key in"),
        ("default_key = 'c'\nkeys = { a = 'a', b = 'b' }", "must be one of a, b, got 'c'"),
    ],
)
def test_a_wrong_configuration_is_rejected(tmp_path, monkeypatch, text, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        configured(tmp_path, monkeypatch, text)


def test_no_key_two_sources_and_a_missing_file_are_rejected(tmp_path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="dewmark key new"):
        config_from_environment()
    monkeypatch.setenv(CONFIG, str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="cannot read"):
        config_from_environment()
    monkeypatch.setenv(KEY_FILE, "a.key")
    with pytest.raises(ConfigError, match="unset one"):
        config_from_environment()


def test_the_configuration_contains_no_key(tmp_path, monkeypatch) -> None:
    key = Key.generate()
    key.save(tmp_path / "acme.key")
    config = configured(tmp_path, monkeypatch, TOML)
    secret = (tmp_path / "acme.key").read_text(encoding="utf-8").split()[-1]
    assert secret not in repr(config)


def test_opting_out_may_be_forbidden(tmp_path, monkeypatch) -> None:
    forbidding = configured(tmp_path, monkeypatch, 'opt_out = false\n[keys]\nacme = "acme.key"\n')
    assert forbidding.key_id({"dewmark": True}) == forbidding.key_id(None) == "acme"
    with pytest.raises(ConfigError, match="marks every text"):
        forbidding.key_id({"dewmark": False})
    with pytest.raises(ConfigError, match="both false"):
        configured(tmp_path, monkeypatch, 'mark = false\nopt_out = false\n[keys]\nacme = "a.key"\n')
