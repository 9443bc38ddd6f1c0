"""The language model of a recipe: it paraphrases, translates, summarises and judges.

``--llm local`` serves a packaged model on this machine over OpenAI's protocol, so that a recipe runs the code
path of a paid endpoint; ``local:MODEL`` serves another host. ``--llm URL`` is an endpoint that runs already
(llama.cpp's server, vLLM, …), and any other value is a host that runs inside the workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from dewmark.errors import ModelError
from dewmark.workspace import Progress
from dewmark_lab.chat.endpoint import check_base_url
from dewmark_lab.experiments.recipe import AttackEntry, Recipe, Settings

LOCAL_MODEL = "qwen2.5-coder-1.5b"
_LOCAL = "local"
_PORT = 8079  # always the same: the endpoint is part of the identity of cached answers
_TIMEOUT = 3600.0  # seconds; a CPU may take long for a batch
_WHO = ("base_url", "model", "host", "key_env")  # settings that name a model


@contextlib.contextmanager
def open_language_model(
    llm: str, *, device: str, dtype: str, batch_size: int, progress: Progress, start: bool = True
) -> Iterator[dict[str, Any]]:
    """The chat settings of a language model, which is served while the context lasts if it is local.

    Without ``start`` nothing is loaded or asked, for a dry run.
    """
    kind, _, name = llm.partition(":")
    if kind == _LOCAL:
        name = name or LOCAL_MODEL
        served = {"key_env": None, "concurrency": batch_size, "timeout": _TIMEOUT}
        if not start:
            yield {"base_url": _url(_PORT), "model": name, **served}
            return
        from dewmark_lab.chat.local import LocalChat
        from dewmark_lab.chat.server import serve_chat

        chat = LocalChat.load(name, device=device, dtype=dtype, batch_size=batch_size, progress=progress)
        with serve_chat(chat, name, port=_PORT, batch_size=batch_size) as base_url:
            yield {"base_url": base_url, "model": name, **served}
    elif llm.startswith(("http://", "https://")):
        check_base_url(llm, with_key=False)
        yield {"base_url": llm, "model": _first_model(llm) if start else "?"}
    else:
        yield {"host": llm, "batch_size": batch_size, "device": device, "dtype": dtype}


def with_language_model(recipe: Recipe, settings: Settings) -> Recipe:
    """The recipe with this model wherever it has one; other settings, such as ``target``, stay."""
    attacks = tuple(
        dataclasses.replace(each, settings=_named(each.settings, settings)) if _uses_model(each) else each
        for each in recipe.attacks
    )
    options = dict(recipe.options)
    if "preference" in recipe.stages:
        options["preference"] = _named(options.get("preference", {}), settings)
    return dataclasses.replace(recipe, attacks=attacks, options=options)


def uses_language_model(recipe: Recipe) -> bool:
    """Whether a recipe has a place for a language model."""
    return "preference" in recipe.stages or any(_uses_model(each) for each in recipe.attacks)


def _uses_model(entry: AttackEntry) -> bool:
    return entry.attack in ("paraphrase", "summarise") or entry.settings.get("engine") == "llm"


def _named(given: Settings, model: Settings) -> Settings:
    return {**{name: value for name, value in given.items() if name not in _WHO}, **model}


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


def _first_model(base_url: str) -> str:
    """The name of the first model that an endpoint lists."""
    try:
        with urllib.request.urlopen(f"{base_url.rstrip('/')}/models", timeout=10) as response:
            listed: Mapping[str, Any] = json.loads(response.read(1 << 20))
        return str(listed["data"][0]["id"])
    except (urllib.error.URLError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise ModelError(
            f"{base_url} lists no model ({reason}): start the server, or name model and base_url in a recipe"
        ) from None
