"""The part of vLLM's interface that the processor uses, for tests where vLLM is not installed."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from enum import Enum, auto
from types import ModuleType, SimpleNamespace

_NAME = "vllm.v1.sample.logits_processor"


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


class LogitsProcessor:
    pass


@dataclass(frozen=True)
class BatchUpdate:
    batch_size: int
    removed: list
    added: list
    moved: list


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    extra_args: dict | None = field(default=None)


class RunnerLogitsProcessor:
    def __init__(self, vllm_config, req_states) -> None:
        pass


def stub_modules(monkeypatch) -> None:
    """vLLM's modules of both model runners, removed after the test."""
    classes = {
        _NAME: {"LogitsProcessor": LogitsProcessor, "MoveDirectionality": MoveDirectionality},
        "vllm.v1.worker.gpu.sample.logits_processor": {"LogitsProcessor": RunnerLogitsProcessor},
    }
    for name, members in classes.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            whole = ".".join(parts[:i])
            if whole not in sys.modules:
                monkeypatch.setitem(sys.modules, whole, ModuleType(whole))
        vars(sys.modules[name]).update(members)


def processors(monkeypatch) -> ModuleType:
    """`dewmark.hosts.engines.vllm`, imported with these classes and removed after the test."""
    stub_modules(monkeypatch)
    name = "dewmark.hosts.engines.vllm"
    monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, found)
    return found


def engine_config(model: str, vocab: int, *, asynchronous: bool = False, given: bool = True, ranks: int = 1):
    """The part of a VllmConfig that the processor reads."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
        parallel_config=SimpleNamespace(world_size=ranks),
        model_config=SimpleNamespace(
            model=model,
            seed=0,
            logits_processors=["dewmark.hosts.engines.vllm:DewLogitsProcessor"] if given else None,
            get_vocab_size=lambda: vocab,
        ),
    )
