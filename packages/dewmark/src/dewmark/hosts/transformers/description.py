"""A host by its files: tokenizer, vocabulary and input embeddings for schemes, and its chat format.

Boundary: no model is loaded before ``embeddings`` is called, whose table schemes keep. For a converted host
(a packaged one, a GGUF file) neither torch nor transformers is imported before, so a detector starts fast.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark.arrays import F32
from dewmark.decoding import CHAT_DECODING, Decoding
from dewmark.errors import ConfigError, InputError, ModelError, VocabularyError
from dewmark.hosts.base import ChatFormat, Conversation, no_template
from dewmark.hosts.transformers.model_files import ModelSource, load_error, resolve
from dewmark.hosts.transformers.tokenizer import TOKENIZER_FILE, HFTokenizer
from dewmark.models.hub import quiet_libraries
from dewmark.models.packaged import PACKAGED
from dewmark.workspace import HostInfo, Progress

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

__all__ = ["info_from_model"]

_ROWS_AT_ONCE = 4096


def host_info(name: str, *, progress: Progress | None = None) -> HostInfo:
    """Describe a host by its tokenizer and configuration, without loading its weights."""
    info, _ = describe(resolve(name, weights=False, progress=progress), progress)
    return info


def describe(source: ModelSource, progress: Progress | None = None) -> tuple[HostInfo, HFTokenizer]:
    """A host's description and its tokenizer, from its files."""
    own = source.tokenizer_folder
    if own is not None:
        tokenizer = _own_tokenizer(own, (own / TOKENIZER_FILE).stat().st_mtime_ns)
        tokenizer.open_original = functools.partial(original_tokenizer, source)
        settings = json.loads((Path(source.location) / "config.json").read_text(encoding="utf-8"))
        vocab_size = int(settings["vocab_size"])
    else:
        from transformers import AutoConfig

        try:
            with quiet_libraries():
                config = AutoConfig.from_pretrained(source.location, **source.options)
            tokenizer = HFTokenizer(original_tokenizer(source))
        except Exception as error:  # a broken file raises whatever its reader does
            raise load_error(source.name, error) from error
        vocab_size = int(config.get_text_config().vocab_size)
    # The libraries read tokenizers from GGUF files, and some versions get some of them wrong (transformers
    # 5.17: Gemma's): such a host would write nonsense.
    package = PACKAGED.get(source.name)
    if package is not None and package.tokenizer and package.tokenizer != tokenizer.identity:
        raise ModelError(
            f"the tokenizer of {source.name} was misread (identity {tokenizer.identity}, expected "
            f"{package.tokenizer}): pip install 'transformers>=5.22', delete {source.location}, try again"
        )

    def embeddings() -> F32:
        from transformers import AutoModelForCausalLM

        files = resolve(source.name, weights=True, progress=progress)
        try:
            with quiet_libraries():
                load = functools.partial(AutoModelForCausalLM.from_pretrained, files.location)
                model: Any = load(dtype="auto", **files.options)
        except Exception as error:
            raise load_error(files.name, error) from error
        return _to_float32(model.get_input_embeddings().weight[:vocab_size])

    return HostInfo(source.name, source.identity, vocab_size, tokenizer, embeddings), tokenizer


def info_from_model(
    model: Any,  # noqa: ANN401 - any causal language model of transformers
    tokenizer: HFTokenizer | PreTrainedTokenizerBase,
) -> HostInfo:
    """Describe a model in memory; its identity is the hash of its embeddings and tokenizer."""
    wrapped = tokenizer if isinstance(tokenizer, HFTokenizer) else HFTokenizer(tokenizer)
    vocab_size = int(model.config.get_text_config().vocab_size)
    weight = model.get_input_embeddings().weight
    if weight.is_meta:
        raise ModelError("the model's embeddings are offloaded: load the model without offloading")
    if weight.shape[0] < vocab_size:
        raise VocabularyError(
            f"the model has {weight.shape[0]} embeddings but logits of {vocab_size} ids: check its config"
        )
    digest = hashlib.sha256(f"{wrapped.identity} {tuple(weight.shape)}".encode())
    # as float32, so that dtype and device do not matter
    for start in range(0, weight.shape[0], _ROWS_AT_ONCE):
        digest.update(_to_float32(weight[start : start + _ROWS_AT_ONCE]).tobytes())
    name = getattr(model.config, "_name_or_path", "") or str(model.config.model_type)
    return HostInfo(
        name=name,
        identity=f"{model.config.model_type}@{digest.hexdigest()[:12]}",
        vocab_size=vocab_size,
        tokenizer=wrapped,
        embeddings=lambda: _to_float32(weight[:vocab_size]).copy(),  # never the model's own memory
    )


def chat_format(name: str, *, progress: Progress | None = None) -> ChatFormat:
    """The chat format of a host by name; raises `ConfigError` if it has none."""
    source = resolve(name, weights=False, progress=progress)
    from transformers.utils.hub import cached_file

    options = {**source.options, "_raise_exceptions_for_missing_entries": False}
    try:
        tokenizer = original_tokenizer(source)
        file = cached_file(source.location, "generation_config.json", **options)
        generation = {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise load_error(name, error) from error
    return chat_format_of(tokenizer, generation, name=name)


def original_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """Transformers' own tokenizer of a host, with its chat template."""
    from transformers import AutoTokenizer

    with quiet_libraries():
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source.location, **source.options)
    return tokenizer


def chat_format_of(
    tokenizer: PreTrainedTokenizerBase, generation: Mapping[str, Any], *, name: str
) -> ChatFormat:
    """The chat format of a tokenizer; ``generation`` are the fields of the model's generation_config.

    Its temperature, top-p and top-k are the host's own decoding: if it states one of them, the others filter
    nothing, and if none, `CHAT_DECODING` holds.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise no_template(name)
    names = ("temperature", "top_p", "top_k")
    stated = {each: generation[each] for each in names if generation.get(each) is not None}
    try:
        decoding = Decoding(**stated) if stated else CHAT_DECODING
    except ConfigError as error:
        raise ConfigError(f"{name} has an unusable generation_config ({error}): state the options") from None

    def render(messages: Conversation) -> str:
        plain = [dict(message) for message in messages]
        try:
            return str(tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template raises whatever its author chose
            raise InputError("the model's chat template rejects this conversation: change roles") from error

    return ChatFormat(render, decoding)


@functools.lru_cache(maxsize=2)
def _own_tokenizer(folder: Path, modified: int) -> HFTokenizer:
    """A converted host's tokenizer, parsed once for the host's description and for the host itself."""
    return HFTokenizer.load(folder)


def _to_float32(table: torch.Tensor) -> F32:
    """A table on any device and in any precision, as a float32 array (shared if it is one already)."""
    import torch

    array: F32 = table.detach().to("cpu", torch.float32).contiguous().numpy()
    return array
