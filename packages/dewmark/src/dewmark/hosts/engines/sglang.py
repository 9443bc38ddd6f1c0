r"""A scheme inside SGLang: a custom logit processor.

    DEWMARK_SGLANG_CONFIG=dewmark.toml python -m sglang.launch_server --model-path MODEL \
        --enable-custom-logit-processor --disable-overlap-schedule

    requests.post(url + "/generate", json={
        "text": prompt,
        "custom_logit_processor": DewLogitProcessor.to_str(),
        "sampling_params": {"temperature": 1.0, "custom_params": {"dewmark_key_id": "acme"}}})

SGLang makes a processor anew for every batch from the string that requests carry (the name of this class, so
dewmark must be installed where the server runs); what lasts is kept in this module, by request. The
configuration file is that of vLLM, and must name the ``host``.

SGLang has no way to reject a request here. One whose parameters are wrong, or which opts out where that is
forbidden, is marked with the default key, and the reason is logged. A request that carries no processor is
not marked at all: put it into requests at your gateway.

The token of the last step must be known, so the overlap scheduler has to be off. Logits come before
temperature and filters; a scheme that draws applies the request's own and leaves one finite logit.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dewmark.errors import ConfigError
from dewmark.extras import require
from dewmark.hosts.engines.markers import Marked, Markers, decoding_of, mark_rows, served_host
from dewmark.hosts.engines.vllm_config import EngineConfig, MarkRequest, config_from_environment

if TYPE_CHECKING:
    import torch

__all__ = ["CONFIG", "DewLogitProcessor"]

CONFIG = "DEWMARK_SGLANG_CONFIG"

_sglang = require("sglang.srt.sampling.custom_logit_processor", extra="sglang")

_log = logging.getLogger("sglang.dewmark")
_lock = threading.Lock()
_markers: dict[str, Markers] = {}  # by device
_texts: weakref.WeakKeyDictionary[Any, Marked | None] = weakref.WeakKeyDictionary()  # by request


class DewLogitProcessor(_sglang.CustomLogitProcessor):  # type: ignore[misc, name-defined]
    """Marks the rows whose requests carry it, each with its own key, member and payload."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Mapping[str, Any]] | None = None
    ) -> torch.Tensor:
        """Mark logits (batch, vocab); the parameters of each row name its request as ``__req__``."""
        config = config_from_environment(CONFIG)
        with _lock:
            found = {}
            for index, given in enumerate(custom_param_list or ()):
                text = _text(config, given, logits)
                if text is not None:
                    found[index] = text
            return mark_rows(found, logits)


def _text(config: EngineConfig, given: Mapping[str, Any], logits: torch.Tensor) -> Marked | None:
    request = given.get("__req__")
    if request is None:
        raise ConfigError("this version of SGLang does not pass the request (__req__) to its processors")
    if request not in _texts:
        mark, params = _mark_request(config, given), request.sampling_params
        greedy = int(params.top_k) == 1 and config.scheme.needs_as_set.sampling
        _texts[request] = (
            None
            if mark is None or greedy
            else _markers_of(config, logits).open(
                mark,
                list(request.origin_input_ids),
                request.output_ids,
                seed=getattr(params, "sampling_seed", None),
                decoding=decoding_of(params),
            )
        )
    text = _texts[request]
    if text is not None and text.row.written is not request.output_ids:
        text.row.written = request.output_ids  # a retracted request comes back with another list
    return text


def _mark_request(config: EngineConfig, given: Mapping[str, Any]) -> MarkRequest | None:
    try:
        return config.mark_request({name: value for name, value in given.items() if name != "__req__"})
    except ConfigError as error:
        _log.warning("dewmark marks a request with the default key: %s", error)
        return MarkRequest(config.default_key)


def _markers_of(config: EngineConfig, logits: torch.Tensor) -> Markers:
    device = str(logits.device)
    if device not in _markers:
        if config.host is None:
            raise ConfigError(f"set host in the file that {CONFIG} names to the model that SGLang serves")
        host = served_host(config.host, logits.shape[1], config)
        seeds = random.Random(secrets.randbits(64))
        _markers[device] = Markers(config, host, logits.device, seeds=seeds, log=_log)
    return _markers[device]
