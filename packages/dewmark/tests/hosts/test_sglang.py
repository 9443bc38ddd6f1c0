"""SGLang: every request is marked as if it were alone, and a gateway rejects what the server cannot.

With SGLang installed these tests use its own requests, sampling parameters, processor class and the function
that calls processors (make test-sglang); elsewhere stand-ins of the same shape.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import sys
import weakref
from array import array
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tests.hosts.sglang_on_a_cpu import replace_packages

from dewmark.capabilities import for_member
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

VOCAB = 300
CPU = torch.device("cpu")
KEYS = {"acme": Key(bytes(32)), "ring": Key(bytes(range(32)), members=4, payload_bits=3)}
REAL = importlib.util.find_spec("sglang") is not None
PROCESSORS, CONTEXT = "sglang.srt.sampling.custom_logit_processor", "sglang.srt.runtime_context"
GATEWAY = Path(__file__).parents[4] / "examples" / "sglang_gateway.py"


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


def stand_ins(monkeypatch) -> None:
    """Modules in the place of SGLang's."""
    for name in (PROCESSORS, CONTEXT):
        for i in range(1, name.count(".") + 2):
            part = ".".join(name.split(".")[:i])
            if part not in sys.modules:
                monkeypatch.setitem(sys.modules, part, ModuleType(part))
    sys.modules[PROCESSORS].CustomLogitProcessor = type("CustomLogitProcessor", (), {})


@pytest.fixture
def configured(host, bag_encoder, tmp_path, monkeypatch):
    """Writes a configuration with a plain key and a ring, and imports the module."""
    for name, key in KEYS.items():
        key.save(tmp_path / f"{name}.key")
    file = tmp_path / "dewmark.toml"
    monkeypatch.setenv("DEWMARK_SGLANG_CONFIG", str(file))
    monkeypatch.setattr("dewmark.hosts.engines.markers.host_info", lambda name: host.info)
    replace_packages() if REAL else stand_ins(monkeypatch)

    def module(extra: str = "", *, overlap: bool = False):
        text = f'host = "tiny"\ndefault_key = "acme"\n{extra}\n'
        file.write_text(text + '[keys]\nacme = "acme.key"\nring = "ring.key"\n', encoding="utf-8")
        context = importlib.import_module(CONTEXT)
        schedule = SimpleNamespace(disable_overlap_schedule=not overlap)
        monkeypatch.setattr(context, "get_schedule", lambda: schedule, raising=False)
        monkeypatch.delitem(sys.modules, "dewmark.hosts.engines.sglang", raising=False)
        found = importlib.import_module("dewmark.hosts.engines.sglang")
        found.config_from_environment.__globals__["_load"].cache_clear()
        return found

    return module


class StandInRequest:
    """The part of SGLang's Req that the processor reads; like it, it hands out a weak proxy of itself."""

    def __init__(self, rid, text, ids, params, custom_logit_processor) -> None:
        self.rid, self.origin_input_ids, self.output_ids = rid, array("q", ids), array("q")
        self.sampling_params = params
        if isinstance(params.custom_params, dict):
            params.custom_params = params.custom_params | {"__req__": weakref.proxy(self)}


def request(number: int, ids: list[int], said: dict | None, *, seeded: bool = True, **more: float):
    """A request as SGLang's scheduler makes it."""
    given = {"temperature": 0.9, "top_p": 0.95, "custom_params": said, **more}
    if seeded:
        given["sampling_seed"] = number
    if REAL:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        return Req(f"r{number}", "", array("q", ids), SamplingParams(**given), custom_logit_processor="dew")
    if given["temperature"] == 0.0:
        given |= {"temperature": 1.0, "top_k": 1}
    params = SimpleNamespace(**{"top_k": 1 << 30, "min_p": 0.0, "sampling_seed": None, **given})
    return StandInRequest(f"r{number}", "", ids, params, custom_logit_processor="dew")


def called(processor, logits: torch.Tensor, requests) -> torch.Tensor:
    """The logits after SGLang has called the processor for a batch, made anew as it does."""
    params = [each.sampling_params.custom_params for each in requests]
    if not REAL:
        return processor()(logits, params)
    from sglang.srt.layers.sampler import apply_custom_logit_processor
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor, _cache_from_str

    _cache_from_str.cache_clear()  # it may hold the class of the test before
    made = CustomLogitProcessor.from_str(processor.to_str())
    rows = list(range(len(params)))
    entry = SimpleNamespace(processor=made, rows=rows, indices=torch.tensor(rows))

    class Info(SimpleNamespace):
        def __len__(self) -> int:
            return len(params)

    logits = logits.clone()
    info = Info(custom_params=params, device=CPU, custom_logit_processor={0: entry})
    apply_custom_logit_processor(logits, info)
    return logits


def scores(each) -> torch.Tensor:
    ids = [*each.origin_input_ids, *each.output_ids]
    return 2 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed((ids[-1] << 8) + len(ids)))


SAID = [{}, {"dewmark_key_id": "acme"}, {"dewmark": False}]  # which this server forbids
SAID += [
    {"dewmark_key_id": "ring", "dewmark_member": 2, "dewmark_payload": 5},
    {"dewmark_kid": "ring"},
    {"dewmark_payload": 9},
]


def test_each_request_is_marked_by_its_history(host, configured, tmp_path, caplog) -> None:
    processor = configured("opt_out = false").DewLogitProcessor
    bound = {n: SCHEMES["dew"]().bind(key, host.info, Workspace(cache=tmp_path)) for n, key in KEYS.items()}
    texts = [request(i, [5 + i, 6, 7], said) for i, said in enumerate(SAID)]
    alone = {}
    for step in range(12):
        order = [0, 1, 2, 3, 4, 5] if step % 2 else [5, 4, 2, 3, 0]
        batch = [texts[i] for i in order]
        if step == 6:  # retracted and prefilled again: SGLang may hand over another list
            texts[0].output_ids = array("q", texts[0].output_ids)
        marked = called(processor, torch.cat([scores(each) for each in batch]), batch)
        for i, each, row in zip(order, batch, marked, strict=True):
            if i not in alone:
                mine = SAID[i] if i == 3 else {}
                scheme = bound["ring" if mine else "acme"]
                asked = {name: mine.get(f"dewmark_{name}") for name in ("member", "payload")}
                rows = (for_member(scheme, **asked) if mine else scheme).rows(CPU)
                decoding = Decoding(temperature=0.9, top_p=0.95)
                alone[i] = rows, rows.open(list(each.origin_input_ids), [], seed=i, decoding=decoding)
            rows, own = alone[i]
            own.written = list(each.output_ids)
            token = int(rows.mark([own], scores(each)).argmax())
            assert torch.isfinite(row).sum() == 1
            assert int(row.argmax()) == token
            each.output_ids.append(token)
    assert "marks every text" in caplog.text
    assert "dewmark_kid" in caplog.text


def test_a_text_ends_with_its_request_and_is_counted_by_the_next_call(configured) -> None:
    """SGLang holds requests by weak proxies only; the collector, which notices, may run in any thread."""
    module, each, other = configured(), request(1, [5, 6], {}), request(2, [5, 6], {})
    processor = module.DewLogitProcessor
    called(processor, scores(each), [each])
    (markers,) = module._markers.values()
    gone = weakref.ref(each._dewmark_text.row)
    ends = [end for end in weakref.finalize._registry if end.peek()[0] is each._dewmark_end]
    assert [end.atexit for end in ends] == [False]
    del each, ends
    gc.collect()
    assert not markers.counts
    called(processor, scores(other), [other])
    assert markers.counts == {"no_room": 1}  # one token is too short for a verdict
    assert gone() is None


def test_greedy_requests_and_those_without_parameters_stay_unmarked(configured, caplog) -> None:
    for extra in ("", 'greedy = "refuse"'):
        processor = configured(extra).DewLogitProcessor
        caplog.clear()
        batch = [request(1, [5, 6], {}, temperature=0.0), request(2, [5, 6], None)]
        before = torch.cat([scores(each) for each in batch])
        with caplog.at_level("INFO"):
            assert torch.equal(called(processor, before.clone(), batch), before)
        assert "top_k 1" in caplog.text  # which is what SGLang makes of temperature 0
        assert "without custom_params" in caplog.text


def test_ranks_agree_on_requests_without_a_seed(configured) -> None:
    """Each rank is a process of its own that samples by itself: they must draw the same tokens."""
    drawn = []
    for _ in range(2):  # a fresh module is a fresh process
        processor = configured().DewLogitProcessor
        batch = [request(i, [5, 6], {}, seeded=False) for i in range(8)]
        drawn.append(called(processor, torch.zeros(8, VOCAB), batch).argmax(dim=1).tolist())
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 1


def test_overlap_scheduling_and_drafts_are_refused(configured) -> None:
    each = request(1, [5, 6], {})
    with pytest.raises(ConfigError, match="--disable-overlap-schedule"):
        called(configured(overlap=True).DewLogitProcessor, scores(each), [each])
    with pytest.raises(ConfigError, match="no speculative decoding"):
        called(configured().DewLogitProcessor, torch.zeros(2, VOCAB), [each, each])


@pytest.fixture
def gateway(configured):
    """The gateway of the examples."""
    configured('opt_out = false\ngreedy = "refuse"')
    spec = importlib.util.spec_from_file_location("sglang_gateway", GATEWAY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gateway_completes_requests(gateway) -> None:
    native = gateway.admitted("/generate", {"text": "a", "sampling_params": {"top_p": 0.9}})
    assert native["sampling_params"] == {"top_p": 0.9, "custom_params": {}}
    chat = gateway.admitted(
        "/v1/chat/completions", {"model": "m", "custom_params": {"dewmark_key_id": "ring"}}
    )
    assert chat["custom_params"] == {"dewmark_key_id": "ring"}
    for body in (native, chat):
        assert body["custom_logit_processor"] == gateway.PROCESSOR
    if REAL:
        from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

        assert type(CustomLogitProcessor.from_str(gateway.PROCESSOR)).__name__ == "DewLogitProcessor"
    name = bytes.fromhex(json.loads(gateway.PROCESSOR)["callable"])
    assert b"dewmark.hosts.engines.sglang" in name


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/generate", {"sampling_params": {"custom_params": {"dewmark_kid": 1}}}, "dewmark_kid"),
        ("/generate", {"sampling_params": {"temperature": 0.0}}, "temperature 0"),
        ("/generate", {"sampling_params": [{}, {"custom_params": {"dewmark": False}}]}, "marks every text"),
        ("/v1/completions", {"custom_params": {"dewmark_key_id": "initech"}}, "unknown dewmark_key_id"),
        ("/v1/completions", {"custom_params": {"dewmark_payload": 5}}, "payloads of 0 bits"),
        ("/v1/completions", {"temperature": "hot"}, "temperature must be a number"),
        ("/v1/completions", {"custom_params": 3}, "custom_params must be an object"),
        ("/v1/completions", {"n": 2, "seed": 5}, "one text"),
        ("/generate", {"sampling_params": {"n": 2, "sampling_seed": 5}}, "one text"),
        ("/v1/completions", {"custom_logit_processor": "{}"}, "custom_logit_processor"),
    ],
)
def test_the_gateway_rejects_what_the_server_cannot(gateway, path, body, message) -> None:
    with pytest.raises(ValueError, match=message):
        gateway.admitted(path, body)
