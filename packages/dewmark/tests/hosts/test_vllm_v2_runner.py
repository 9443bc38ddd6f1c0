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
from dewmark.hosts.fake import FakeHost
from dewmark.registry import SCHEMES
from dewmark.serving_rows import Row, Rows, open_rows
from dewmark.workspace import Workspace

VOCAB, SLOTS, ROOM = 300, 6, 64
CPU = torch.device("cpu")
KEYS = {"acme": Key(bytes(32)), "ring": Key(bytes(range(32)), members=4, payload_bits=3)}
REAL = importlib.util.find_spec("vllm") is not None
ENGINES = "dewmark.hosts.engines."


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


@pytest.fixture
def configured(host, bag_encoder, tmp_path, monkeypatch):
    """Writes a configuration with a plain key and a ring, and imports a module of the engine."""
    for name, key in KEYS.items():
        key.save(tmp_path / f"{name}.key")
    monkeypatch.setattr("dewmark.hosts.engines.markers.host_info", lambda name: host.info)

    def module(name: str, settings: str = "", extra: str = "") -> ModuleType:
        file = tmp_path / "dewmark.toml"
        text = f'host = "tiny"\ndefault_key = "acme"\nsettings = {{ {settings} }}\n{extra}\n'
        file.write_text(text + '[keys]\nacme = "acme.key"\nring = "ring.key"\n', encoding="utf-8")
        monkeypatch.setenv("DEWMARK_VLLM_CONFIG", str(file))
        if not REAL:
            stub_modules(monkeypatch)
        for each in (name, "vllm"):
            monkeypatch.delitem(sys.modules, ENGINES + each, raising=False)
        found = importlib.import_module(ENGINES + name)
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
    """A request in the reference model."""

    number: int
    said: dict
    prompt: list[int]
    written: list[int] = field(default_factory=list)
    rows: Rows | None = None
    opened: dict[int, Row] = field(default_factory=dict)  # by the number of drafts before a row

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=0.8, top_p=0.95, seed=self.number, extra_args=self.said)

    def logits(self, drafts: list[int]) -> torch.Tensor:
        ids = [*self.prompt, *self.written, *drafts]
        generator = torch.Generator().manual_seed((ids[-1] << 8) + len(ids))
        return 2 * torch.randn(1, VOCAB, generator=generator)

    def alone(self, scheme, drafts: list[int]) -> int:
        """The token that a row marked alone writes; it is read again where drafts were rejected."""
        rows = self.rows = self.rows or open_rows(scheme, CPU)
        written, row = [*self.written, *drafts], self.opened.get(len(drafts))
        if row is None or written[: len(row.written)] != row.written:
            decoding = Decoding(temperature=0.8, top_p=0.95)
            row = rows.open(self.prompt, written, seed=self.number, decoding=decoding)
            self.opened[len(drafts)] = row
        row.written = written
        return int(rows.mark([row], self.logits(drafts)).argmax())


SAID = [{}, {"dewmark": False}, {"dewmark_key_id": "ring"}]
SAID += [{"dewmark_key_id": "ring", "dewmark_member": 2, "dewmark_payload": 5}]


@pytest.mark.parametrize("drafted", [0, 2])
def test_every_row_is_marked_as_if_alone(host, configured, tmp_path, drafted) -> None:
    device = Device()
    processor = configured("vllm_v2_runner").DewLogitsProcessor(engine_config("tiny", VOCAB), device)
    bound = {
        name: SCHEMES["dew"]().bind(key, host.info, Workspace(cache=tmp_path)) for name, key in KEYS.items()
    }
    chance = random.Random(drafted)
    slots: dict[int, Text] = {}
    seen = changed = 0
    for step in range(8):
        for slot in [slot for slot in slots if chance.random() < 0.1]:
            del slots[slot]
        free = [slot for slot in range(SLOTS) if slot not in slots]
        if free and chance.random() < 0.9:
            prompt = [chance.randrange(4, VOCAB) for _ in range(chance.randrange(1, 9))]
            text = Text(step, chance.choice(SAID), prompt)
            slot = chance.choice(free)
            slots[slot] = text
            device.prompt_len.np[slot] = len(prompt)
            assert processor.add_request(slot, text.params) == (text.said.get("dewmark") is not False)
        order = chance.sample(sorted(slots), len(slots))
        rows = []
        for slot in order:
            text = slots[slot]
            ids = [*text.prompt, *text.written]
            device.all_token_ids.gpu[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
            drafts = [chance.randrange(4, VOCAB) for _ in range(drafted)]
            for local in range(drafted + 1):
                fed = ids[-1] if local == 0 else drafts[local - 1]
                rows.append((slot, local, len(ids) - 1 + local, fed, drafts[:local]))
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
        for row, before, (slot, local, _, _, drafts) in zip(marked, logits, rows, strict=True):
            text = slots[slot]
            if text.said.get("dewmark") is False:
                assert torch.equal(row, before)
                continue
            key_id = text.said.get("dewmark_key_id", "acme")
            asked = {name: text.said.get(f"dewmark_{name}") for name in ("member", "payload")}
            assert int(row.argmax()) == text.alone(for_member(bound[key_id], **asked), drafts)
            assert torch.isfinite(row).sum() == 1
            seen += 1
            changed += local > 0
        for slot in order:  # a few drafts are accepted, the next token is another one
            taken = next(row[4] for row in rows[::-1] if row[0] == slot)[: chance.randrange(drafted + 1)]
            slots[slot].written += [*taken, chance.randrange(4, VOCAB)]
    assert seen > 8
    assert (changed > 8) == (drafted > 0)


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
    module = configured("vllm_v2_runner", extra="opt_out = false")
    with pytest.raises(ValueError, match=message):
        module.DewLogitsProcessor.validate_params(SamplingParams(extra_args=said))


def test_penalties_come_before_the_mark_and_are_allowed(configured) -> None:
    module = configured("vllm_v2_runner")
    module.DewLogitsProcessor.validate_params(SamplingParams(repetition_penalty=1.2))
    with pytest.raises(ConfigError, match="temperature 0"):
        module.DewLogitsProcessor.validate_params(SamplingParams(temperature=0.0))
