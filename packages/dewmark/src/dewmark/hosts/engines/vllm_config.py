"""How marking in an engine is configured: operators set scheme and keys, requests choose among them.

The operator sets ``DEWMARK_KEY_FILE`` to a key file, or ``DEWMARK_VLLM_CONFIG`` (for SGLang
``DEWMARK_SGLANG_CONFIG``) to a TOML file with the fields of `EngineConfig`, ``[keys]`` (key id = key file,
relative to the file) and the scheme's ``settings`` (docs/vllm.md). A request may pass ``{"dewmark": false}``,
``{"dewmark_key_id": "acme"}``, ``{"dewmark_payload": 47}`` or ``{"dewmark_member": 3}`` in its ``vllm_xargs``
(``extra_args`` in Python). Boundary: no engine, no weights; only members and payloads of a key are checked.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dewmark.config import replace
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.policy import Policy, load_policy
from dewmark.registry import SCHEMES, unknown_name
from dewmark.scheme import Scheme

KEY_FILE = "DEWMARK_KEY_FILE"
CONFIG = "DEWMARK_VLLM_CONFIG"

_SWITCH, _KEY_ID = "dewmark", "dewmark_key_id"
_MEMBER, _PAYLOAD = "dewmark_member", "dewmark_payload"
_PARAMETERS = (_SWITCH, _KEY_ID, _MEMBER, _PAYLOAD)
_TRUTH = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


class MarkRequest(NamedTuple):
    """What a request is marked with; without a member, a ring's seed chooses one."""

    key_id: str
    member: int | None = None
    payload: int | None = None


@dataclass(frozen=True)
class EngineConfig:
    """``keys`` maps key ids to key files; ``default_key`` is for requests that name none."""

    scheme: Scheme
    keys: Mapping[str, Path]
    default_key: str
    mark: bool = True
    host: str | None = None
    opt_out: bool = True
    """Whether a request may switch the mark off."""
    greedy: Literal["unmarked", "refuse"] = "unmarked"
    """Whether requests that leave no choice to mark are answered ``unmarked``, or refused (``refuse``)."""
    policy: Policy | None = None
    """Which parts of a text carry no mark; the rule for numbers is off, since engines draw those tokens."""

    def key_id(self, extra_args: Mapping[str, Any] | None) -> str | None:
        """The id of the key to mark a request with; None for no mark."""
        given = {name: value for name, value in (extra_args or {}).items() if str(name).startswith(_SWITCH)}
        for name in given:
            if name not in _PARAMETERS:
                raise unknown_name("request parameter", name, _PARAMETERS)
        marked = _switch(given[_SWITCH]) if _SWITCH in given else self.mark or _KEY_ID in given
        if not marked:
            if not self.opt_out:
                raise ConfigError(f"this server marks every text: remove {_SWITCH}, or set it to true")
            if _KEY_ID in given:
                raise ConfigError(f"{_KEY_ID} names a key but {_SWITCH} is false: remove one of them")
            return None
        key_id = str(given.get(_KEY_ID, self.default_key))
        if key_id not in self.keys:  # the ids of other tenants stay private
            raise ConfigError(f"unknown {_KEY_ID} {key_id[:80]!r}: use one that this server has a key for")
        return key_id

    def mark_request(
        self, extra_args: Mapping[str, Any] | None, *, decoding: Decoding = Decoding()
    ) -> MarkRequest | None:
        """What to mark a request with; None for no mark."""
        key_id = self.key_id(extra_args)
        if key_id is None:
            return None
        chosen = member_and_payload(extra_args)
        if any(value is not None for value in chosen.values()):
            if not self.scheme.reads_rings:
                raise ConfigError(f"{self.scheme.name} carries neither members nor payloads: use dew")
            load_key(self.keys[key_id]).check_use(**chosen)
        if self.scheme.needs.sampling and decoding.takes_likeliest is not None:
            if self.greedy == "refuse":
                decoding.check_samples(self.scheme.name, otherwise=f', or send {{"{_SWITCH}": false}}')
            return None
        return MarkRequest(key_id, **chosen)


def decoding_of(params: Any) -> Decoding:  # noqa: ANN401 - an engine's sampling parameters
    """The temperature and filters of a request, which the mark applies itself if it draws."""
    top_k = int(params.top_k)
    return Decoding(
        temperature=params.temperature,
        top_k=top_k if 0 < top_k < 1 << 30 else 0,
        top_p=params.top_p,
        min_p=params.min_p,
    )


@functools.cache
def load_key(path: Path) -> Key:
    """The key of a file, read once."""
    return Key.load(path)


def member_and_payload(extra_args: Mapping[str, Any] | None) -> dict[str, int | None]:
    """The ``member`` and the ``payload`` that a request asks for, None where it does not."""
    found: dict[str, int | None] = {}
    for name, parameter in (("member", _MEMBER), ("payload", _PAYLOAD)):
        value = (extra_args or {}).get(parameter)
        try:
            found[name] = None if value is None else int(str(value), 0)
        except ValueError:
            raise ConfigError(f"{parameter} must be a whole number, got {str(value)[:80]!r}") from None
    return found


def config_from_environment(variable: str = CONFIG) -> EngineConfig:
    """The configuration that the environment variables name; cached by their values."""
    return _load(variable, os.environ.get(variable), os.environ.get(KEY_FILE))


@functools.cache
def _load(variable: str, config: str | None, key_file: str | None) -> EngineConfig:
    if config and key_file:
        raise ConfigError(f"both {variable} and {KEY_FILE} are set: name the key in the file, or unset one")
    if config:
        return _from_file(Path(config).expanduser(), variable)
    if not key_file:
        raise ConfigError(
            f"no key to mark with: set {KEY_FILE} to a key file (create one: dewmark key new --out FILE), "
            f"or {variable} to a configuration file"
        )
    return EngineConfig(SCHEMES["dew"](), {"default": Path(key_file).expanduser()}, "default")


def _from_file(path: Path, variable: str) -> EngineConfig:
    values = _read(path, variable)
    keys, settings = values.pop("keys", None), values.pop("settings", {})
    if not isinstance(keys, dict) or not keys or not all(isinstance(file, str) for file in keys.values()):
        raise ConfigError(f"keys in {path} must map key ids to key files, got {type(keys).__name__}")
    if not isinstance(settings, dict):
        raise ConfigError(f"settings in {path} must be a table of the scheme's parameters")
    default = values.pop("default_key", next(iter(keys)) if len(keys) == 1 else None)
    if default not in keys:
        raise ConfigError(f"default_key in {path} must be one of {', '.join(keys)}, got {default!r}")
    scheme = SCHEMES[str(values.pop("scheme", "dew"))]().with_settings(settings)
    files = {name: path.parent / Path(file).expanduser() for name, file in keys.items()}
    policy = _policy(values.pop("policy", None), path)
    try:
        found = replace(EngineConfig(scheme, files, str(default), policy=policy), values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not found.mark and not found.opt_out:
        raise ConfigError(f"mark and opt_out in {path} are both false: set one of them to true")
    return found


def _policy(name: object, path: Path) -> Policy | None:
    """The policy that a configuration names, with the rules that engines can keep."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise ConfigError(f'policy in {path} must be "default" or a JSON file, got {name!r}')
    policy = load_policy(name if name == "default" else path.parent / Path(name).expanduser())
    if policy.least_tokens:
        raise ConfigError(
            f"policy in {path}: engines cannot leave out short requests; remove least_tokens, and send "
            '{"dewmark": false} with them'
        )
    return dataclasses.replace(policy, numbers=False)


def _read(path: Path, variable: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}, which {variable} names: {error.strerror}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _switch(value: object) -> bool:
    """A request's true or false; over HTTP vLLM turns true into a number."""
    try:
        return _TRUTH[str(value).lower()]
    except KeyError:
        raise ConfigError(f"{_SWITCH} must be true or false, got {str(value)[:80]!r}") from None
