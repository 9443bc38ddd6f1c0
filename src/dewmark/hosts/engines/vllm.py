r"""A scheme inside vLLM: a logits processor for its V1 engine, offline or behind its HTTP server.

    DEWMARK_KEY_FILE=acme.key vllm serve MODEL \
        --logits-processors dewmark.hosts.engines.vllm:DewLogitsProcessor

It sees logits before vLLM's penalties, temperature, top-k and top-p. A scheme that needs the final
distribution is therefore given a request's own settings: it warps, chooses the token by the request's seed,
and leaves only that one finite, so whatever comes after cannot change it.

Boundary: vLLM's batch in (`BatchUpdate`), marked logits out. What marks a changing batch is
`dewmark.sampling`,
what the operator and a request may say is `dewmark.hosts.engines.vllm`.

How marking in vLLM is set up: a scheme and its keys by the operator, on or off and whose key by a request.

The operator names a key file in ``DEWMARK_KEY_FILE``, or a file in ``DEWMARK_VLLM_CONFIG`` (TOML or JSON):

    scheme = "dew"                # any scheme that marks token by token
    mark = true                   # whether requests that do not say are marked
    host = "smollm2-135m"         # dewmark's name for the model, if it is not the one vLLM was given
    default_key = "acme"          # for requests that name no key; needed with several
    settings = { units = "token" }
    [keys]                        # key id = key file, relative to this file
    acme = "acme.key"

A request may say ``{"dewmark": false}`` or ``{"dewmark_key_id": "acme"}`` in its ``vllm_xargs``
(``extra_args`` in Python). Boundary: no engine, no weights; key files are named here, not read.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import random
import secrets
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark.config import cache_dir
from dewmark.core.keys import Key
from dewmark.errors import ConfigError, VocabularyError
from dewmark.extras import require
from dewmark.hosts import host_info, load_host
from dewmark.registry import SCHEMES, unknown_name
from dewmark.sampling import Row, Rows, Warping
from dewmark.scheme import BoundScheme, Scheme
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["CONFIG", "KEY_FILE", "DewLogitsProcessor", "EngineConfig", "config_from_environment"]

KEY_FILE = "DEWMARK_KEY_FILE"

CONFIG = "DEWMARK_VLLM_CONFIG"

_FIELDS = ("default_key", "host", "keys", "mark", "scheme", "settings")

_SWITCH, _KEY_ID = "dewmark", "dewmark_key_id"

_TRUTH = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


@dataclass(frozen=True)
class EngineConfig:
    """``keys`` are key files by key id; ``default_key`` serves requests that name none."""

    scheme: Scheme
    keys: Mapping[str, Path]
    default_key: str
    mark: bool = True
    host: str | None = None

    def key_id(self, extra_args: Mapping[str, Any] | None) -> str | None:
        """The id of the key that a request is to be marked with; None if it is not to be marked."""
        mine = {name: value for name, value in (extra_args or {}).items() if str(name).startswith(_SWITCH)}
        for name in mine:
            if name not in (_SWITCH, _KEY_ID):
                raise unknown_name("request parameter", name, (_SWITCH, _KEY_ID))
        marked = _switch(mine[_SWITCH]) if _SWITCH in mine else self.mark or _KEY_ID in mine
        if not marked:
            if _KEY_ID in mine:
                raise ConfigError(f"{_KEY_ID} names a key and {_SWITCH} is false: leave one of them out")
            return None
        key_id = str(mine.get(_KEY_ID, self.default_key))
        if key_id not in self.keys:  # the ids of other tenants are nobody's business
            raise ConfigError(f"unknown {_KEY_ID} {key_id[:80]!r}: use one that this server has a key for")
        return key_id


def config_from_environment() -> EngineConfig:
    """What the environment says; read once for the same values."""
    return _load(os.environ.get(CONFIG), os.environ.get(KEY_FILE))


@functools.cache
def _load(config: str | None, key_file: str | None) -> EngineConfig:
    if config and key_file:
        raise ConfigError(f"both {CONFIG} and {KEY_FILE} are set: name the key in the file, or unset one")
    if config:
        return _from_file(Path(config).expanduser())
    if not key_file:
        raise ConfigError(
            f"no key to mark with: set {KEY_FILE} to a key file (make one with: dewmark key new --out FILE), "
            f"or {CONFIG} to a configuration"
        )
    return EngineConfig(SCHEMES["dew"](), {"default": Path(key_file).expanduser()}, "default")


def _from_file(path: Path) -> EngineConfig:
    values = _read(path)
    for name in values:
        if name not in _FIELDS:
            raise unknown_name(f"field of {path}", name, _FIELDS)
    keys, settings = values.get("keys"), values.get("settings", {})
    if not isinstance(keys, dict) or not keys or not all(isinstance(file, str) for file in keys.values()):
        raise ConfigError(f"{path} must name its key files by key id under keys, got {type(keys).__name__}")
    if not isinstance(settings, dict):
        raise ConfigError(f"settings in {path} must be a table of the scheme's parameters")
    default = values.get("default_key", next(iter(keys)) if len(keys) == 1 else None)
    if default not in keys:
        raise ConfigError(f"default_key in {path} must be one of {', '.join(keys)}, got {default!r}")
    mark, host = values.get("mark", True), values.get("host")
    if not isinstance(mark, bool):
        raise ConfigError(f"mark in {path} must be true or false, got {mark!r}")
    if host is not None and not isinstance(host, str):
        raise ConfigError(f"host in {path} must be a model's name or folder, got {host!r}")
    scheme = SCHEMES[str(values.get("scheme", "dew"))]().with_settings(settings)
    files = {name: path.parent / Path(file).expanduser() for name, file in keys.items()}
    return EngineConfig(scheme, files, str(default), mark=mark, host=host)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}, which {CONFIG} names: {error.strerror}") from None
    except ValueError as error:  # both parsers' errors, and text that is not UTF-8
        raise ConfigError(
            f"{path} is not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a table of fields, got {type(values).__name__}")
    return values


def _switch(value: object) -> bool:
    """A request's on or off; over HTTP vLLM turns true into a number."""
    try:
        return _TRUTH[str(value).lower()]
    except KeyError:
        raise ConfigError(f"{_SWITCH} must be true or false, got {str(value)[:80]!r}") from None


_vllm = require("vllm.v1.sample.logits_processor", extra="vllm")

_log = logging.getLogger("vllm.dewmark")  # under vLLM's own, whose handlers and level it shares

_GREEDY = 1e-5  # vLLM takes the likeliest token below this temperature

_PLACEHOLDER = -1  # stands in vLLM's lists for a token that is still on its way from the device

_NEUTRAL = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


class DewLogitsProcessor(_vllm.LogitsProcessor):  # type: ignore[misc, name-defined]
    """Marks the requests of vLLM's batch, each with its own key."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ANN401
        """Read the configuration and make the default key's tables, so that no request waits for them."""
        self._config = config_from_environment()
        self._device = device
        _check_scheme(self._config)
        _check_loading(vllm_config)
        self._host = _host(vllm_config, self._config)
        self._markers: dict[str, Rows] = {}
        self._batch: dict[int, tuple[str, Row]] = {}
        self._warned = False
        # ranks that share the work must draw alike, and all see the same requests in the same order
        together = int(vllm_config.parallel_config.world_size) > 1
        self._seeds = random.Random(vllm_config.model_config.seed if together else secrets.randbits(64))
        self._warm()

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:  # noqa: ANN401 - vLLM's SamplingParams
        """Refuse a request that cannot be marked as it asks; vLLM answers it with HTTP 400."""
        config = config_from_environment()
        if config.key_id(sampling_params.extra_args) is None:
            return
        name, needs = config.scheme.name, config.scheme.needs_as_set
        remedy = 'or send {"dewmark": false}'
        if needs.sampling and sampling_params.temperature < _GREEDY:
            raise ConfigError(
                f"temperature 0 always takes the likeliest token, and {name} hides its mark in the choice "
                f"between tokens: use a temperature above 0, {remedy}"
            )
        for field, neutral in _NEUTRAL.items():
            value = getattr(sampling_params, field)
            if needs.final and value != neutral:
                raise ConfigError(
                    f"{field}={value:g} would come after {name} has chosen the token: "
                    f"leave it at {neutral:g}, {remedy}"
                )

    def is_argmax_invariant(self) -> bool:
        """No: a mark changes which token is likeliest."""
        return False

    def update_state(self, batch_update: Any) -> None:  # noqa: ANN401 - vLLM's BatchUpdate
        """Follow vLLM's batch: what left it, what came, what moved; in this order."""
        if batch_update is None:
            return
        batch = self._batch
        for index in batch_update.removed:
            batch.pop(index, None)
        for index, params, prompt, written in batch_update.added:
            batch.pop(index, None)
            key_id = self._config.key_id(params.extra_args)
            if key_id is not None:
                batch[index] = (key_id, self._open(key_id, params, prompt or [], written))
        for source, target, direction in batch_update.moved:
            moved, replaced = batch.pop(source, None), batch.pop(target, None)
            if moved is not None:
                batch[target] = moved
            if replaced is not None and direction == _vllm.MoveDirectionality.SWAP:
                batch[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mark logits (batch, vocab)."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, (key_id, row) in sorted(self._batch.items()):
            if row.written and row.written[-1] == _PLACEHOLDER:
                self._warn()
            else:
                groups[key_id].append(index)
        for key_id, indices in groups.items():
            rows = [self._batch[index][1] for index in indices]
            everything = len(indices) == len(logits)
            marked = self._marker(key_id).mark(rows, logits if everything else logits[indices])
            if everything:
                return marked
            logits[indices] = marked
        return logits

    def _open(self, key_id: str, params: Any, prompt: list[int], written: list[int]) -> Row:  # noqa: ANN401
        warping = Warping(
            temperature=max(params.temperature, _GREEDY),
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
        )
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed % (1 << 64)
        return self._marker(key_id).open(prompt, written, seed=seed, warping=warping)

    def _marker(self, key_id: str) -> Rows:
        """What marks with a key; its tables are made when the first request asks for it."""
        if key_id not in self._markers:
            bound = self._bind(Key.load(self._config.keys[key_id]))
            self._markers[key_id] = bound.rows(self._device)
            _log.info(
                "dewmark marks with %s, key id %s, key fingerprint %s",
                bound.scheme.name,
                key_id,
                bound.fingerprint,
            )
        return self._markers[key_id]

    def _bind(self, key: Key) -> BoundScheme:
        workspace = Workspace(
            cache=cache_dir(),
            find_host=host_info,
            open_host=functools.cache(lambda name: load_host(name or self._host.name)),
        )
        bound = self._config.scheme.bind(key, self._host, workspace)
        if type(bound).finished is not BoundScheme.finished:
            raise ConfigError(
                f"{bound.scheme.name} keeps a record of every finished text, which vLLM does not tell its "
                "processors: run it in transformers, or use another scheme"
            )
        return bound

    def _warm(self) -> None:
        import torch

        marker = self._marker(self._config.default_key)
        row = marker.open([], [], seed=0, warping=Warping())
        marker.mark([row], torch.zeros((1, self._host.vocab_size), device=self._device))

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "dewmark leaves tokens unmarked: vLLM hands over requests whose last token is not known yet; "
                "start it with --no-async-scheduling"
            )


def _check_scheme(config: EngineConfig) -> None:
    if config.scheme.needs.drafts:
        raise ConfigError(
            f"{config.scheme.name} chooses between drafts of sentences, which vLLM does not write: "
            "run it in transformers, or use a scheme that marks token by token"
        )


def _check_loading(vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's VllmConfig
    """Under asynchronous scheduling vLLM fills in the last token only for processors it was told of."""
    if vllm_config.scheduler_config.async_scheduling and not vllm_config.model_config.logits_processors:
        raise ConfigError(
            "vLLM found dewmark by an entry point and schedules asynchronously, so the last token of a text "
            "is not known when it is marked: pass "
            "--logits-processors dewmark.hosts.engines.vllm:DewLogitsProcessor"
        )


def _host(vllm_config: Any, config: EngineConfig) -> HostInfo:  # noqa: ANN401 - vLLM's VllmConfig
    info = host_info(config.host or vllm_config.model_config.model)
    width = int(vllm_config.model_config.get_vocab_size())
    if width != info.vocab_size:
        raise VocabularyError(
            f"vLLM serves a model of {width} ids and {info.name} has {info.vocab_size}: set host in the "
            "configuration to the model that is served"
        )
    return info
