"""A host's chat format, from its tokenizer's template and its generation_config.

Boundary: conversations in, prompts and decoding options out; no weights are loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark.decoding import CHAT_DECODING, Decoding
from dewmark.errors import ConfigError, InputError
from dewmark.hosts.base import ChatFormat, Conversation, no_template
from dewmark.hosts.transformers.model_files import ModelSource, load_error, resolve
from dewmark.models.hub import quiet_libraries
from dewmark.workspace import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_GENERATION = "generation_config.json"


def chat_format(name: str, *, progress: Progress | None = None) -> ChatFormat:
    """The chat format of a host by name; raises `ConfigError` if it has none."""
    from transformers import AutoTokenizer

    source = resolve(name, weights=False, progress=progress)
    try:
        with quiet_libraries():
            tokenizer = AutoTokenizer.from_pretrained(source.location, **source.options)
    except (OSError, ValueError) as error:
        raise load_error(name, error) from error
    return chat_format_of(tokenizer, _generation_config(source), name=name)


def chat_format_of(
    tokenizer: PreTrainedTokenizerBase, generation: Mapping[str, Any], *, name: str
) -> ChatFormat:
    """The chat format of a tokenizer; ``generation`` are the fields of the model's generation_config."""
    if not getattr(tokenizer, "chat_template", None):
        raise no_template(name)

    def template(messages: Conversation, **options: Any) -> Any:  # noqa: ANN401 - text, ids or tensors
        asks_ids = any(name.startswith("return_") for name in options)
        stated = {"tokenize": asks_ids, "add_generation_prompt": True, **options}
        try:
            return tokenizer.apply_chat_template([dict(message) for message in messages], **stated)
        except Exception as error:  # a template raises whatever its author chose
            raise InputError(
                "the model's chat template rejects this conversation: change its roles"
            ) from error

    return ChatFormat(lambda messages: str(template(messages)), own_decoding(generation, name=name), template)


def own_decoding(generation: Mapping[str, Any], *, name: str) -> Decoding:
    """The temperature, top-p and top-k of a generation_config, or `CHAT_DECODING` if it states none.

    If a config states one of them, the others filter nothing.
    """
    names = ("temperature", "top_p", "top_k")
    stated = {each: generation[each] for each in names if generation.get(each) is not None}
    if not stated:
        return CHAT_DECODING
    try:
        return Decoding(**stated)
    except ConfigError as error:
        raise ConfigError(f"{name} has an unusable generation_config ({error}): state the options") from None


def _generation_config(source: ModelSource) -> dict[str, Any]:
    folder = Path(source.location)
    if folder.is_dir():
        file = folder / _GENERATION
        found: Path | None = file if file.is_file() else None
    else:
        from transformers.utils.hub import cached_file

        named = cached_file(
            source.location, _GENERATION, _raise_exceptions_for_missing_entries=False, **source.options
        )
        found = None if named is None else Path(named)
    if found is None:
        return {}
    try:
        values: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise load_error(source.name, error) from error
    return values
