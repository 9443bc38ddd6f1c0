"""transformers' continuous batching: every request is marked as if it were alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.fake import FakeHost
from dewmark.hosts.transformers.watermarking_config import WatermarkingConfig
from dewmark.registry import SCHEMES
from dewmark.serving_rows import open_rows
from dewmark.workspace import Workspace

VOCAB = 300
CPU = torch.device("cpu")
KEY = Key(bytes(32))


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


@pytest.fixture
def bound(host, bag_encoder, tmp_path):
    return SCHEMES["dew"]().bind(KEY, host.info, Workspace(cache=tmp_path))


def logits(ids: list[int]) -> torch.Tensor:
    return 2 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed((ids[-1] << 8) + len(ids)))


def alone(rows, opened, prompt, written, decoding, seed) -> int:
    """The token of a text's own row, which is ``opened`` by its seed."""
    row = opened.setdefault(seed, rows.open(prompt, written, seed=seed, decoding=decoding))
    return int(rows.mark([row], logits([*prompt, *written])).argmax())


def state(name: str, prompt: list[int], written: list[int], seed: int):
    """The part of transformers' FutureRequestState that the mark reads."""
    kwargs = {"dewmark_seed": seed}
    inner = SimpleNamespace(
        request_id=name, initial_tokens=prompt, generated_tokens=written, logit_processor_kwargs=kwargs
    )
    return SimpleNamespace(state=inner, has_new_token=True)


def processors(bound, *, per_request: bool) -> ContinuousBatchingLogitsProcessorList:
    made = WatermarkingConfig(bound).construct_processor(VOCAB, CPU)
    return ContinuousBatchingLogitsProcessorList(LogitsProcessorList([made]), per_request)


def test_continuous_batching_marks_each_request_by_its_history(bound) -> None:
    marks, rows = processors(bound, per_request=True), open_rows(bound, CPU)
    opened: dict = {}
    storage = torch.zeros(marks.tensors_required, 16, dtype=torch.int32)
    marks.fill_defaults(storage)
    texts = {name: ([5 + i, 6, 7], [], i) for i, name in enumerate(("a", "b", "c"))}
    marks.check_kwargs({"dewmark_seed": 1})
    for step in range(12):
        names = [["a", "b"], ["c", "a"], ["b", "c", "a"]][step % 3]
        marks.prepare_tensor_args([state(name, *texts[name]) for name in names], storage)
        scores = torch.cat([logits([*texts[name][0], *texts[name][1]]) for name in names])
        padded = torch.cat((scores, torch.zeros(1, VOCAB)))
        marked = marks(torch.zeros(len(padded), dtype=torch.long), padded, storage)
        assert torch.equal(marked[-1], padded[-1])
        for name, row in zip(names, marked, strict=False):
            prompt, written, seed = texts[name]
            token = alone(rows, opened, prompt, written, Decoding(), seed)
            assert int(row.argmax()) == token
            written.append(token)
    marks.prepare_tensor_args([state("a", *texts["a"])], storage)
    marks(torch.zeros(1, dtype=torch.long), scores[:1], storage)
    with pytest.raises(ConfigError, match="use_async_batching=False"):  # the token is not known yet
        marks(torch.zeros(1, dtype=torch.long), scores[:1], storage)


def test_continuous_batching_says_which_option_it_needs(bound) -> None:
    marks = processors(bound, per_request=False)
    with pytest.raises(ConfigError, match="per_request_processors=True"):
        marks(torch.zeros(2, dtype=torch.long), torch.zeros(2, VOCAB), torch.zeros(0, 2, dtype=torch.int32))
