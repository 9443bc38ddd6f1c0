"""The language model of a recipe: it paraphrases, translates, summarises and judges.

``--llm local`` is a packaged model that runs inside the workers, and so does any host that ``--llm`` names.
``--llm URL`` is an endpoint that runs already (llama.cpp's server, vLLM, …).
"""

from __future__ import annotations

import dataclasses
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from dewmark.errors import ModelError
from dewmark_lab.chat.endpoint import check_base_url
from dewmark_lab.experiments.recipe import AttackEntry, Recipe, Settings

LOCAL_MODEL = "qwen2.5-coder-1.5b"
_LOCAL = "local"
_WHO = ("base_url", "model", "host", "key_env")  # settings that name a model


def language_model_settings(
    llm: str, *, device: str, dtype: str, batch_size: int, start: bool = True
) -> dict[str, Any]:
    """The chat settings of a language model; without ``start`` no endpoint is asked, for a dry run."""
    if llm.startswith(("http://", "https://")):
        check_base_url(llm, with_key=False)
        return {"base_url": llm, "model": _first_model(llm) if start else "?"}
    host = LOCAL_MODEL if llm == _LOCAL else llm
    return {"host": host, "batch_size": batch_size, "device": device, "dtype": dtype}


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
