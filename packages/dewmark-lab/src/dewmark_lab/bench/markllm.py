"""The schemes of PyPI's ``markllm`` as peers; optional, and best in an environment of its own.

    pip install --no-deps markllm==0.1.5

KGW, Unigram, SWEET, EWD and EXP of that release run unchanged, on the same model in memory, configured as
ours are in `configurations`. It has no SynthID, MorphMark, UnbiasedWM or DiPmark.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dewmark.hosts.transformers.model import TransformersHost
from dewmark_lab.bench.writers import Chooses, processed

PEERS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "kgw": ("KGW", {"prefix_length": 3, "f_scheme": "time", "window_scheme": "left"}),
    "unigram": ("Unigram", {}),
    "sweet": ("SWEET", {"prefix_length": 1, "entropy_threshold": 0.9}),
    "ewd": ("EWD", {"prefix_length": 1}),
    "exp": ("EXP", {"prefix_length": 3, "threshold": 0.01, "top_k": 0}),
}
_KEY = {"gamma": 0.5, "delta": 2.0, "hash_key": 15485863, "z_threshold": 4.0}


def installed() -> bool:
    """Whether markllm is installed."""
    return importlib.util.find_spec("markllm") is not None


class Peer:
    """One of markllm's schemes: marking a step, generating, and detecting one text."""

    def __init__(self, name: str, host: TransformersHost) -> None:
        configurations = importlib.import_module("markllm.utils.transformers_config")
        schemes = importlib.import_module("markllm.watermark.auto_watermark")
        algorithm, settings = PEERS[name]
        self.batches = algorithm != "EXP"  # EXP decodes one text at a time, the others are logits processors
        self._host = host
        self._tokenizer = _tokenizer(host)
        configuration = {"algorithm_name": algorithm, "sequence_length": 200, **_KEY, **settings}
        environment = configurations.TransformersConfig(
            model=host.model,
            tokenizer=self._tokenizer,
            vocab_size=host.info.vocab_size,
            device=str(host.model.device),
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "configuration.json"
            path.write_text(json.dumps(configuration), encoding="utf-8")
            self._scheme: Any = schemes.AutoWatermark.load(algorithm, str(path), environment)

    def step(self) -> Callable[[torch.Tensor, torch.Tensor], object]:
        """A function that marks logits (batch, vocab); for EXP, one that chooses the token."""
        if self.batches:
            mark: Callable[[torch.Tensor, torch.Tensor], object] = self._scheme.logits_processor
            return mark
        return self._choose

    def chooser(self, prompt: torch.Tensor) -> Chooses:
        """The scheme's processor before this library's unmarked draw after prompts (batch, length)."""
        return processed(self.step(), prompt)

    def detect(self, text: str) -> object:
        """The scheme's verdict on one text."""
        return self._scheme.detect_watermark(text)

    def generate(self, prompts: list[str], tokens: int) -> object:
        """Marked completions of ``tokens`` tokens, written by markllm's own code."""
        if self.batches:
            return generate(self._host, prompts, tokens, self._scheme.logits_processor)
        self._scheme.config.sequence_length = tokens
        return [self._scheme.generate_watermarked_text(prompt) for prompt in prompts]

    def _choose(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # the body of EXP's generation loop without the model
        utils = self._scheme.utils
        probabilities = scores.softmax(dim=-1).cpu()
        utils.seed_rng(ids[0])
        numbers = torch.rand(scores.shape[1], generator=utils.rng)
        chosen: torch.Tensor = utils.exp_sampling(probabilities, numbers)
        return chosen


def generate(host: TransformersHost, prompts: list[str], tokens: int, processor: object = None) -> object:
    """Completions by transformers' own ``generate``, with or without a logits processor."""
    rows = host.tokenizer.encode_prompts(prompts, needs_bos=False)
    width, fill = max(map(len, rows)), host.tokenizer.pad_id or 0
    ids = torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows], device=host.model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=host.model.device)
    return host.model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        pad_token_id=fill,
        logits_processor=[] if processor is None else [processor],
    )


def _tokenizer(host: TransformersHost) -> Any:  # noqa: ANN401 - transformers types little
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        host.tokenizer.save(Path(folder))
        file = f"{folder}/tokenizer.json"
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=file)  # type: ignore[no-untyped-call]
    tokenizer.pad_token_id = host.tokenizer.pad_id
    return tokenizer
