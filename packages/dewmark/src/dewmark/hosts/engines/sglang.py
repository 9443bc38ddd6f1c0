"""A scheme inside SGLang: a custom logit processor (docs/sglang.md).

SGLang makes a processor anew for every batch from the string that requests carry; what lasts is kept on
SGLang's own object of the request, and ends with it. The configuration file is that of vLLM, and must name
the ``host``.

SGLang has no way to reject a request here, and an exception ends the server. A request whose parameters are
wrong, or which opts out where that is forbidden, is therefore marked with the default key, and the reason is
logged. One without ``custom_params`` is not marked: SGLang then does not say whose logits it passes.
`examples/sglang_gateway.py` rejects the former and completes the latter.

The token of the last step must be known, so the overlap scheduler has to be off. Logits come before
temperature and filters; a scheme that draws applies the request's own and leaves one finite logit.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import random
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dewmark.errors import ConfigError, DewmarkError
from dewmark.extras import require
from dewmark.hosts.engines.markers import Marked, Markers, mark_rows, served_host
from dewmark.hosts.engines.vllm_config import (
    EngineConfig,
    MarkRequest,
    config_from_environment,
    decoding_of,
    load_key,
)

if TYPE_CHECKING:
    import torch

__all__ = ["CONFIG", "DewLogitProcessor"]

CONFIG = "DEWMARK_SGLANG_CONFIG"

_sglang = require("sglang.srt.sampling.custom_logit_processor", extra="sglang")
_context = require("sglang.srt.runtime_context", extra="sglang")

_TEXT = "_dewmark_text"  # our attribute of SGLang's request
_END = "_dewmark_end"  # another one, by which its end is noticed
_log = logging.getLogger("sglang.dewmark")
_lock = threading.Lock()
_markers: dict[str, Markers] = {}  # by device
_ended: deque[tuple[Markers, Marked]] = deque()  # texts to be counted by the next call


class DewLogitProcessor(_sglang.CustomLogitProcessor):  # type: ignore[misc, name-defined]
    """Marks the rows whose requests carry it, each with its own key, member and payload."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Mapping[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """Mark logits (batch, vocab); the parameters of each row name its request as ``__req__``."""
        config = config_from_environment(CONFIG)
        _check_scheduler()
        with _lock:
            while _ended:
                markers, text = _ended.popleft()
                markers.ended(text)
            found = {}
            for index, given in enumerate(custom_param_list or ()):
                if (marked := _text(config, given, logits)) is not None:
                    found[index] = marked
            if len({id(text) for text in found.values()}) < len(found):
                raise ConfigError("dewmark marks one token of a request at a time: no speculative decoding")
            return mark_rows(found, logits)


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)


@functools.cache
def _check_scheduler() -> None:
    if not _context.get_schedule().disable_overlap_schedule:
        raise ConfigError(
            "under SGLang's overlap scheduler the last token of a text is not known when the text is marked: "
            "start the server with --disable-overlap-schedule"
        )


def _text(config: EngineConfig, given: Mapping[str, Any] | None, logits: torch.Tensor) -> Marked | None:
    request = (given or {}).get("__req__")  # a weak proxy, which passes attributes on
    if request is None:
        _warn_once("dewmark leaves requests unmarked that come without custom_params: SGLang hides them")
        return None
    if not hasattr(request, _TEXT):
        setattr(request, _TEXT, _opened(config, given or {}, request, logits))
    text: Marked | None = getattr(request, _TEXT)
    if text is not None:
        text.row.written = request.output_ids  # a retracted request comes back with another list
    return text


def _opened(
    config: EngineConfig,
    given: Mapping[str, Any],
    request: Any,  # noqa: ANN401 - SGLang's Req
    logits: torch.Tensor,
) -> Marked | None:
    markers, params = _markers_of(config, logits), request.sampling_params
    decoding = decoding_of(params)
    said = {name: value for name, value in given.items() if name != "__req__"}
    try:
        mark = markers.wanted(said, decoding=decoding)
    except DewmarkError as error:
        if config.scheme.needs.sampling and decoding.takes_likeliest is not None:
            _log.warning("dewmark leaves a request unmarked: %s", error)
            return None
        _log.warning("dewmark marks a request with the default key: %s", error)
        mark = MarkRequest(config.default_key)
    if mark is None:
        return None
    seed = getattr(params, "sampling_seed", None)
    text = markers.open(
        mark,
        list(request.origin_input_ids),
        request.output_ids,
        seed=_seed(config, mark.key_id, request.rid) if seed is None else seed,
        decoding=decoding,
    )
    setattr(request, _END, end := _End())
    # counting waits for the device and logs, which must not happen wherever the collector runs
    weakref.finalize(end, _ended.append, (markers, text)).atexit = False
    return text


class _End:
    """Lives as long as SGLang's request, which says nothing when it ends."""


def _seed(config: EngineConfig, key_id: str, name: str) -> int:
    """The seed of a request without one, which all ranks of a server must agree on."""
    key = load_key(config.keys[key_id])
    secret = key.subkey("sglang/seeds") if key.numbers is None else key.fingerprint.encode()
    return int.from_bytes(hashlib.blake2b(name.encode(), key=secret, digest_size=8).digest(), "big")


def _markers_of(config: EngineConfig, logits: torch.Tensor) -> Markers:
    device = str(logits.device)
    if device not in _markers:
        if config.host is None:
            raise ConfigError(f"set host in the file that {CONFIG} names to the model that SGLang serves")
        host = served_host(config.host, logits.shape[1], config)
        _markers[device] = Markers(config, host, logits.device, seeds=random.Random(), log=_log)
    return _markers[device]
