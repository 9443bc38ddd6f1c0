"""Hosts that run in transformers: load one by name, or wrap a model in memory.

A converted host writes with `PlainLlama` where that computes its model, and loads transformers only for more
than writing. Boundary: this module joins files, tokenizer, decoding loop and likelihoods into a `Host`; it
decides nothing about schemes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dewmark.capabilities import Drafts
from dewmark.decoding import Decoding
from dewmark.errors import InputError, ModelError
from dewmark.hosts.base import ChatFormat, Host, OnStep
from dewmark.hosts.transformers.attention import share_keys
from dewmark.hosts.transformers.decoding_loop import CausalLM, decode, device_of
from dewmark.hosts.transformers.description import chat_format, chat_format_of, describe, info_from_model
from dewmark.hosts.transformers.likelihood import completion_logits
from dewmark.hosts.transformers.model_files import ModelSource, load_error, resolve
from dewmark.hosts.transformers.plain_llama import PlainLlama
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.models.devices import torch_device, torch_dtype
from dewmark.models.hub import quiet_libraries
from dewmark.sampling import draft_seed
from dewmark.scheme import BoundScheme
from dewmark.types import DraftCount
from dewmark.workspace import HostInfo, Progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TransformersHost", "load_host"]


class TransformersHost(Host):
    """A causal language model in memory and its tokenizer.

    ``writer`` writes: the model of transformers or, on a CPU, a `PlainLlama`. Then ``open_model`` loads the
    model of transformers, which does everything else.
    """

    writes_drafts = True

    def __init__(
        self,
        model: CausalLM,
        tokenizer: HFTokenizer | PreTrainedTokenizerBase,
        *,
        info: HostInfo | None = None,
        open_chat: Callable[[], ChatFormat] | None = None,
        open_model: Callable[[], CausalLM] | None = None,
    ) -> None:
        self.writer: CausalLM = model.eval()
        self._open_model = open_model
        if open_chat is None and not isinstance(tokenizer, HFTokenizer):
            config = getattr(model, "generation_config", None)
            generation = {} if config is None else config.to_diff_dict()
            name = str(model.config.model_type)
            open_chat = functools.partial(chat_format_of, tokenizer, generation, name=name)
        self._open_chat = open_chat
        self.tokenizer = tokenizer if isinstance(tokenizer, HFTokenizer) else HFTokenizer(tokenizer)
        self._info = info or info_from_model(model, self.tokenizer)
        text_config = model.config.get_text_config()
        self.context: int | None = getattr(text_config, "max_position_embeddings", None)
        self._writable = torch.tensor(self._info.markable)
        self.needs_bos = str(model.config.model_type).startswith("gemma")  # without it Gemma repeats itself

    @functools.cached_property
    def model(self) -> CausalLM:
        """The model of transformers, which writes from now on: one copy of the weights is enough."""
        if self._open_model is not None:
            self.writer = self._open_model().eval()
        return self.writer

    @property
    def info(self) -> HostInfo:
        return self._info

    @functools.cached_property
    def chat(self) -> ChatFormat:
        """The chat format of the tokenizer that the host was made with."""
        return super().chat if self._open_chat is None else self._open_chat()

    @property
    def device(self) -> torch.device:
        return device_of(self.writer)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a text, from the model's configuration and its tokenizer."""
        configs = (getattr(self.writer, "generation_config", None), self.writer.config.get_text_config())
        found: set[int] = set() if self.tokenizer.eos_id is None else {self.tokenizer.eos_id}
        for config in configs:
            ids = getattr(config, "eos_token_id", None)
            found.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
        return frozenset(i for i in found if i < self.info.vocab_size)

    @property
    def fill_id(self) -> int:
        """The id that pads rows."""
        return 0 if self.tokenizer.pad_id is None else self.tokenizer.pad_id

    def prompt_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        """The ids of each prompt, with what the model needs before them."""
        return self.tokenizer.encode_prompts(prompts, needs_bos=self.needs_bos)

    def check_prompts(self, prompts: Sequence[str], max_new_tokens: int) -> None:
        for i, row in enumerate(self.prompt_ids(prompts)):
            self.check_row(f"prompt {i}", row, max_new_tokens)

    def complete(
        self, prompts: Sequence[str], *, scheme: BoundScheme | None, seeds: Sequence[int], decoding: Decoding
    ) -> list[list[int]]:
        return self.complete_steps(prompts, scheme=scheme, seeds=seeds, decoding=decoding)

    def complete_steps(
        self,
        prompts: Sequence[str],
        *,
        scheme: BoundScheme | None,
        seeds: Sequence[int],
        decoding: Decoding,
        on_step: OnStep | None = None,
    ) -> list[list[int]]:
        rows, drafts = self.prompt_ids(prompts), decoding.drafts if scheme is not None else 1
        try:
            # some models warn about rows that end in padding, as finished ones do
            with contextlib.nullcontext() if isinstance(self.writer, PlainLlama) else quiet_libraries():
                made = decode(
                    self.writer,
                    [row for row in rows for _ in range(drafts)],
                    decoding=decoding,
                    seeds=[draft_seed(seed, i) for seed in seeds for i in range(drafts)],
                    scheme=scheme,
                    eos_ids=sorted(self.eos_ids),
                    fill_id=self.fill_id,
                    writable=self._writable,
                    on_step=on_step,
                )
        except torch.OutOfMemoryError:
            raise self._out_of_memory(f"{len(rows)} texts at once") from None
        return made[::drafts]

    def complete_drafts(
        self, prompts: Sequence[str], *, drafts: Drafts, seeds: Sequence[int], decoding: Decoding
    ) -> list[tuple[list[int], DraftCount]]:
        rows = self.prompt_ids(prompts)
        try:
            with quiet_libraries():
                return drafts.write(
                    self.model,
                    rows,
                    decoding=decoding,
                    seeds=seeds,
                    tokenizer=self.tokenizer,
                    eos_ids=sorted(self.eos_ids),
                    fill_id=self.fill_id,
                    writable=self._writable,
                )
        except torch.OutOfMemoryError:
            raise self._out_of_memory(f"{len(rows)} texts of {drafts.at_once} drafts at once") from None

    def next_logits(
        self, prompts: Sequence[str], completions: Sequence[Sequence[int]]
    ) -> Iterator[torch.Tensor]:
        """As `Host.next_logits`: invalid rows raise at once, and the model runs when logits are consumed."""
        if len(prompts) != len(completions):
            raise InputError(f"{len(prompts)} prompts but {len(completions)} texts: give one prompt per text")
        distinct = list(dict.fromkeys(prompts))  # many texts may follow one prompt
        found = self.prompt_ids(distinct)
        known = dict(zip(distinct, found, strict=True))
        rows = [known[prompt] for prompt in prompts]
        for i, (row, completion) in enumerate(zip(rows, completions, strict=True)):
            self.check_row(f"prompt {i} with its text", [*row, *completion], 0)

        def logits() -> Iterator[torch.Tensor]:
            sizes = {"fill_id": self.fill_id, "vocab_size": self.info.vocab_size}
            try:
                yield from (
                    each.float() for each in completion_logits(self.model, rows, completions, **sizes)
                )
            except torch.OutOfMemoryError:
                raise self._out_of_memory("texts of this length") from None

        return logits()

    def check_row(self, what: str, ids: Sequence[int], new: int) -> None:
        """Raise `InputError` for ids that exceed the context with ``new`` more, or have no embedding."""
        if self.context is not None and len(ids) + new > self.context:
            raise InputError(
                f"{what} has {len(ids)} tokens and leaves no room for {new} more in the context of "
                f"{self.context} tokens of {self.name}: shorten it"
            )
        # a special token of a related model, for which this one has no embedding
        if max(ids) >= self.info.vocab_size:
            raise InputError(f"{what} contains token {max(ids)}, which {self.name} does not know: remove it")

    def _out_of_memory(self, what: str) -> ModelError:
        remedy = "use a smaller batch_size, fewer tokens or dtype='bfloat16'"
        return ModelError(f"out of memory for {what} with {self.name}: {remedy}")


def load_host(
    name: str, *, device: str = "auto", dtype: str = "auto", progress: Progress | None = None
) -> TransformersHost:
    """Load a host: a packaged name, a local folder or .gguf file, or a hub id (``owner/model``).

    ``device="auto"`` is CUDA if available. ``dtype="auto"`` is bfloat16 on CUDA and float32 on a CPU: many
    CPUs emulate bfloat16 slowly, and only float32 keeps a text independent of its batch.
    """
    target = torch_device(device)
    kind = torch_dtype(dtype, target)
    source = resolve(name, weights=True, progress=progress)
    if progress is not None:
        progress(f"loading {name}", 0, 1)
    info, tokenizer = describe(source, progress)
    plain = (
        source.tokenizer_folder is not None  # dewmark saved the model
        and target.type == "cpu"
        and kind == torch.float32
        and PlainLlama.can_load(Path(source.location))
    )
    model = _load_model(source, target, kind, plain=plain)
    if progress is not None:
        progress(f"loading {name}", 1, 1)
    return TransformersHost(
        model,
        tokenizer,
        info=info,
        open_chat=functools.partial(chat_format, name, progress=progress),
        open_model=functools.partial(_load_model, source, target, kind) if plain else None,
    )


def _load_model(
    source: ModelSource, device: torch.device, dtype: torch.dtype, *, plain: bool = False
) -> CausalLM:
    try:
        if plain:
            return PlainLlama(Path(source.location), dtype=dtype)
        from transformers import AutoModelForCausalLM

        with quiet_libraries():
            opened = functools.partial(AutoModelForCausalLM.from_pretrained, source.location)
            model: CausalLM = opened(dtype=dtype, **source.options)
            if device.type == "cuda":
                share_keys(model)
            return model.to(device)
    except torch.OutOfMemoryError:
        raise ModelError(f"{source.name} does not fit in the memory of {device}: use device='cpu'") from None
    except Exception as error:
        raise load_error(source.name, error) from error
