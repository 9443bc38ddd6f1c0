"""vLLM's second model runner: rows by slot, and drafts of speculative decoding.

With vLLM installed these tests use its own classes (make test-vllm), elsewhere stand-ins of the same shape.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from tests.hosts.vllm_stub import SamplingParams, engine_config, stub_modules

from dewmark.capabilities import for_member
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

VOCAB, SLOTS, ROOM, LENGTH = 300, 6, 64, 14
CPU = torch.device("cpu")
KEYS = {"acme": Key(bytes(32)), "ring": Key(bytes(range(32)), members=4, payload_bits=3)}
REAL = importlib.util.find_spec("vllm") is not None
ENGINE = "dewmark.hosts.engines.vllm"


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


@pytest.fixture
def configured(host, bag_encoder, tmp_path, monkeypatch):
    """Writes a configuration with a plain key and a ring, and imports a module of the engine."""
    for name, key in KEYS.items():
        key.save(tmp_path / f"{name}.key")
    monkeypatch.setattr("dewmark.hosts.engines.markers.host_info", lambda name: host.info)

    def module(settings: str = "", extra: str = "") -> ModuleType:
        file = tmp_path / "dewmark.toml"
        text = f'host = "tiny"\ndefault_key = "acme"\nsettings = {{ {settings} }}\n{extra}\n'
        file.write_text(text + '[keys]\nacme = "acme.key"\nring = "ring.key"\n', encoding="utf-8")
        monkeypatch.setenv("DEWMARK_VLLM_CONFIG", str(file))
        if not REAL:
            stub_modules(monkeypatch)
        monkeypatch.delitem(sys.modules, ENGINE, raising=False)
        found = importlib.import_module(ENGINE)
        found.config_from_environment.__globals__["_load"].cache_clear()
        return found

    return module


def context(**fields):
    """vLLM's LogitsContext, or one like it."""
    if REAL:
        from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

        return LogitsContext(**fields)
    return SimpleNamespace(**fields)


class Device:
    """The model runner's buffers: ids of each slot, and how long its prompt is."""

    def __init__(self) -> None:
        self.device, self.max_num_reqs, self.vocab_size = CPU, SLOTS, VOCAB
        self.all_token_ids = SimpleNamespace(gpu=torch.zeros(SLOTS, ROOM, dtype=torch.int32))
        self.prompt_len = SimpleNamespace(np=np.zeros(SLOTS, dtype=np.int32))


@dataclass
class Text:
    """A request in the reference model, and the text that a row of its own writes, without any drafts."""

    number: int
    said: dict
    prompt: list[int]
    alone: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=0.8, top_p=0.95, seed=self.number, extra_args=self.said)

    @property
    def marked(self) -> bool:
        return self.said.get("dewmark") is not False

    def logits(self, written: list[int]) -> torch.Tensor:
        ids = [*self.prompt, *written]
        generator = torch.Generator().manual_seed((ids[-1] << 8) + len(ids))
        return 2 * torch.randn(1, VOCAB, generator=generator)

    def write_alone(self, bound) -> None:
        """Fill ``alone``: one row, marked once per token."""
        asked = {name: self.said.get(f"dewmark_{name}") for name in ("member", "payload")}
        rows = for_member(bound[self.said.get("dewmark_key_id", "acme")], **asked).rows(CPU)
        decoding = Decoding(temperature=0.8, top_p=0.95)
        row = rows.open(self.prompt, self.alone, seed=self.number, decoding=decoding)
        while len(self.alone) < LENGTH:
            self.alone.append(int(rows.mark([row], self.logits(self.alone)).argmax()))


SAID = [{}, {"dewmark": False}, {"dewmark_key_id": "ring"}]
SAID += [{"dewmark_key_id": "ring", "dewmark_member": 2, "dewmark_payload": 5}]


@pytest.mark.parametrize("drafted", [0, 3])
def test_the_text_is_the_one_without_drafts_or_preemption(host, configured, tmp_path, drafted) -> None:
    """Drafts are guesses that are often right; vLLM accepts one if its row's choice is the same token."""
    device, chance = Device(), random.Random(drafted)
    processor = configured().DewLogitsProcessor(engine_config("tiny", VOCAB), device)
    bound = {n: SCHEMES["dew"]().bind(key, host.info, Workspace(cache=tmp_path)) for n, key in KEYS.items()}
    slots: dict[int, Text] = {}
    away: list[Text] = []
    made = finished = accepted = preempted = 0
    while finished < 5:
        for slot in [slot for slot in slots if chance.random() < 0.1]:
            preempted += bool(slots[slot].written)
            away.append(slots.pop(slot))
        free = [slot for slot in range(SLOTS) if slot not in slots]
        if free and chance.random() < 0.9:
            if away and chance.random() < 0.7:
                text = away.pop(0)
            else:
                prompt = [chance.randrange(4, VOCAB) for _ in range(chance.randrange(1, 9))]
                text = Text(made, SAID[made % len(SAID)], prompt)
                made += 1
                text.write_alone(bound)
            slot = chance.choice(free)
            slots[slot] = text
            device.prompt_len.np[slot] = len(text.prompt)
            assert processor.add_request(slot, text.params) == text.marked
        order = chance.sample(sorted(slots), len(slots))
        rows, drafts = [], {}
        for slot in order:
            text = slots[slot]
            ids = [*text.prompt, *text.written]
            device.all_token_ids.gpu[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
            right = text.alone[len(text.written) :][:drafted]
            guesses = [token if chance.random() < 0.7 else chance.randrange(4, VOCAB) for token in right]
            drafts[slot] = guesses
            for local, fed in enumerate([ids[-1], *guesses]):
                rows.append((slot, local, len(ids) - 1 + local, fed, [*text.written, *guesses[:local]]))
        if not rows:
            continue
        columns = [torch.tensor([row[i] for row in rows], dtype=torch.int32) for i in range(4)]
        logits = torch.cat([slots[row[0]].logits(row[4]) for row in rows])
        marked = processor.apply(
            logits.clone(),
            context(
                expanded_idx_mapping=columns[0],
                idx_mapping=torch.tensor(order, dtype=torch.int32),
                idx_mapping_np=np.array(order),
                expanded_local_pos=columns[1],
                input_ids=columns[3],
                pos=columns[2],
                seq_lens_upper_bound_np=np.zeros(len(order)),
            ),
        )
        for slot in order:
            text, mine = slots[slot], [i for i, row in enumerate(rows) if row[0] == slot]
            if not text.marked:
                assert torch.equal(marked[mine], logits[mine])
                text.written.append(chance.randrange(4, VOCAB))
            else:
                assert (torch.isfinite(marked[mine]).sum(dim=1) == 1).all()
                chosen = marked[mine].argmax(dim=1).tolist()
                taken = 0
                while taken < len(drafts[slot]) and drafts[slot][taken] == chosen[taken]:
                    taken += 1
                accepted += taken
                text.written += chosen[: taken + 1]
                assert text.written[:LENGTH] == text.alone[: len(text.written)]
            if len(text.written) >= LENGTH:
                finished += text.marked
                del slots[slot]
    assert preempted > 2
    assert (accepted > 20) == (drafted > 0)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"dewmark_key_id": "ring", "dewmark_member": 4}, "members 0 to 3, got 4"),
        ({"dewmark_key_id": "ring", "dewmark_payload": -1}, "payloads of 3 bits .0 to 7., got -1"),
        ({"dewmark_payload": 5}, "payloads of 0 bits .none., got 5"),
        ({"dewmark_member": "x"}, "dewmark_member must be a whole number, got 'x'"),
        ({"dewmark": False}, "marks every text"),
    ],
)
def test_requests_that_cannot_be_marked_are_rejected(configured, said, message) -> None:
    module = configured(extra="opt_out = false")
    with pytest.raises(ValueError, match=message):
        module.DewLogitsProcessor.validate_params(SamplingParams(extra_args=said))


def test_greedy_requests_are_answered_or_refused(configured) -> None:
    greedy = SamplingParams(temperature=0.0)
    processor = configured().DewLogitsProcessor(engine_config("tiny", VOCAB), Device())
    assert not processor.add_request(0, greedy)
    module = configured(extra='greedy = "refuse"')
    with pytest.raises(ConfigError, match="temperature 0"):
        module.DewLogitsProcessor.validate_params(greedy)


def test_vllm_accepts_the_class_for_both_runners(configured) -> None:
    """Each runner checks that the class is one of its own interface."""
    made = configured().DewLogitsProcessor
    for name in ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor"):
        assert issubclass(made, importlib.import_module(name).LogitsProcessor)
    second = made(engine_config("tiny", VOCAB), Device())
    first = made(engine_config("tiny", VOCAB), CPU, False)
    assert isinstance(second, importlib.import_module(name).LogitsProcessor)
    assert not first.is_argmax_invariant()
