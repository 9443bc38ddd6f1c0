"""The vLLM processor with a stand-in for vLLM: requests keep their marks wherever they move in the batch."""

from __future__ import annotations

import logging
import random
import sys
from dataclasses import dataclass, field

import pytest
import torch
from tests.hosts.vllm_stub import BatchUpdate, MoveDirectionality, SamplingParams, engine_config, processors

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, VocabularyError
from dewmark.mark import Row
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

VOCAB = 300
CPU = torch.device("cpu")
KEYS = {"acme": Key(bytes(32)), "globex": Key(bytes(range(32)))}


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


@pytest.fixture
def start(host, bag_encoder, tmp_path, monkeypatch):
    """Starts a processor on the tiny host, with two tenants' keys."""
    module = processors(monkeypatch)
    monkeypatch.setattr("dewmark.hosts.engines.markers.host_info", lambda name: host.info)
    for name, key in KEYS.items():
        key.save(tmp_path / f"{name}.key")

    def started(scheme="dew", settings="", vocab=VOCAB, extra="", **engine):
        file = tmp_path / "dewmark.toml"
        file.write_text(
            f'scheme = "{scheme}"\ndefault_key = "acme"\nsettings = {{ {settings} }}\n{extra}\n'
            '[keys]\nacme = "acme.key"\nglobex = "globex.key"\n',
            encoding="utf-8",
        )
        monkeypatch.setenv("DEWMARK_VLLM_CONFIG", str(file))
        module.config_from_environment.__globals__["_load"].cache_clear()
        made = module.DewLogitsProcessor(engine_config("tiny", vocab, **engine), CPU, False)
        made.validated = module.DewLogitsProcessor.validate_params
        return made

    return started


@dataclass(eq=False)
class Request:
    """A request in the reference model, marked by a row of its own."""

    number: int
    key_id: str | None
    params: SamplingParams
    prompt: list[int]
    written: list[int] = field(default_factory=list)
    row: Row | None = None

    def logits(self) -> torch.Tensor:
        """A stand-in for a host's logits, which depend on the last token."""
        seed = ([*self.prompt, *self.written][-1] << 8) + len(self.written)
        return torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2.0

    def expected(self, markers) -> torch.Tensor:
        if self.key_id is None:
            return self.logits()
        decoding = Decoding(
            temperature=self.params.temperature,
            top_k=self.params.top_k,
            top_p=self.params.top_p,
            min_p=self.params.min_p,
        )
        rows = markers[self.key_id]
        if self.row is None:
            self.row = rows.open(self.prompt, self.written, seed=self.number, decoding=decoding)
        return rows.mark([self.row], self.logits())


def a_request(number: int, chance: random.Random) -> Request:
    key_id = chance.choice([None, "acme", "globex"])
    said = {"dewmark": False} if key_id is None else {"dewmark_key_id": key_id}
    params = SamplingParams(
        temperature=chance.choice([0.6, 1.0]),
        top_p=chance.choice([0.9, 1.0]),
        top_k=chance.choice([0, 0, 30]),
        min_p=chance.choice([0.0, 0.0, 0.05]),
        seed=number,
        extra_args=said,
    )
    return Request(
        number, key_id, params, [chance.randrange(4, VOCAB) for _ in range(chance.randrange(1, 9))]
    )


class Engine:
    """A reference model of vLLM's persistent batch: a list of requests and its changes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.batch: list[Request] = []
        self.preempted: list[Request] = []
        self.made = 0

    def change(self) -> BatchUpdate | None:
        """Remove requests, add new ones into the gaps, fill remaining gaps from the end, and swap a few."""
        chance, slots = self.chance, list(self.batch)
        gone = [i for i in range(len(slots)) if chance.random() < 0.15]
        for i in gone:
            if chance.random() < 0.5:
                self.preempted.append(slots[i])
            slots[i] = None
        added, moved = [], []
        for _ in range(chance.choice([0, 0, 1, 3])):
            if len(self.batch) - len(gone) + len(added) >= 8:
                break
            resume = self.preempted and chance.random() < 0.6
            request = self.preempted.pop() if resume else a_request(self.made, chance)
            self.made += not resume
            request.written = list(request.written)  # a resumed request comes with a list of its own
            if request.row is not None:
                request.row.written = request.written  # its row goes on as if it had stayed
            gap = next((i for i, slot in enumerate(slots) if slot is None), len(slots))
            slots[gap : gap + 1] = [request]
            added.append((gap, request.params, request.prompt, request.written))
        removed = [i for i in gone if slots[i] is None]
        while None in slots:
            if slots[-1] is not None:
                gap = slots.index(None)
                moved.append((len(slots) - 1, gap, MoveDirectionality.UNIDIRECTIONAL))
                slots[gap] = slots[-1]
            slots.pop()
        for _ in range(chance.choice([0, 0, 1, 2]) if len(slots) > 1 else 0):
            a, b = chance.sample(range(len(slots)), 2)
            slots[a], slots[b] = slots[b], slots[a]
            moved.append((a, b, MoveDirectionality.SWAP))
        self.batch = slots
        if not (removed or added or moved):
            return None
        return BatchUpdate(len(slots), removed=sorted(removed, reverse=True), added=added, moved=moved)


@pytest.mark.parametrize(("scheme", "settings"), [("dew", ""), ("dew-paper", "m = 16")])
@pytest.mark.parametrize("number", [0])
def test_every_request_is_marked_as_if_alone_however_the_batch_changes(
    host, start, tmp_path, scheme, settings, number
) -> None:
    processor = start(scheme, settings)
    bindable = processor._config.scheme
    markers = {
        name: bindable.bind(key, host.info, Workspace(cache=tmp_path)).rows(CPU) for name, key in KEYS.items()
    }
    engine = Engine(random.Random(number))
    seen = 0
    for _ in range(40):
        processor.update_state(engine.change())
        if not engine.batch:
            continue
        logits = torch.cat([request.logits() for request in engine.batch])
        marked = processor.apply(logits)
        assert marked.shape == logits.shape
        for row, request in zip(marked, engine.batch, strict=True):
            expected = request.expected(markers)[0]
            torch.testing.assert_close(row.softmax(-1), expected.softmax(-1))
            request.written.append(int(expected.argmax()))
            seen += request.key_id is not None
    assert seen > 40


def test_a_row_with_an_unknown_last_token_is_not_marked_in_that_step(start, caplog) -> None:
    processor = start()
    written = [7, -1]
    params = SamplingParams(seed=1)
    processor.update_state(
        BatchUpdate(2, [], [(0, params, [5, 6], written), (1, params, [5, 6], [7, 8])], [])
    )
    logits = torch.zeros(2, VOCAB)
    with caplog.at_level(logging.WARNING, logger="vllm.dewmark"):
        processor.apply(logits)
        marked = processor.apply(torch.zeros(2, VOCAB))
    assert torch.isfinite(marked[0]).all()
    assert torch.isfinite(marked[1]).sum() == 1
    assert [record.message for record in caplog.records if "--no-async-scheduling" in record.message] != []
    assert len(caplog.records) == 1  # said once, not in every step
    written[-1] = 8
    again = processor.apply(torch.zeros(2, VOCAB))
    assert torch.equal(again[0], again[1])


def test_requests_without_a_seed_differ_on_one_rank_and_agree_on_several(start) -> None:
    def drawn(processor) -> list[int]:
        added = [(i, SamplingParams(), [5, 6, 7], []) for i in range(4)]
        processor.update_state(BatchUpdate(4, [], added, []))
        return processor.apply(torch.zeros(4, VOCAB)).argmax(dim=1).tolist()

    assert len(set(drawn(start()))) > 1
    assert drawn(start(ranks=2)) == drawn(start(ranks=2))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(temperature=0.0), "temperature 0 always takes the likeliest token"),
        (SamplingParams(top_k=1), "top_k 1 always takes the likeliest token"),
        (SamplingParams(min_p=1.0), "min_p 1 always takes the likeliest token"),
        (SamplingParams(top_p=1e-7), "top_p 1e-07 always takes the likeliest token"),
        (SamplingParams(extra_args={"dewmark_kid": "acme"}), "unknown request parameter 'dewmark_kid'"),
    ],
)
def test_requests_that_cannot_be_marked_are_rejected(start, params, message) -> None:
    validate = start(extra='greedy = "refuse"').validated
    with pytest.raises(ValueError, match="dewmark|dew ") as caught:
        validate(params)
    assert message in str(caught.value)
    if params.extra_args is None:
        params.extra_args = {"dewmark": False}
        validate(params)  # the remedy that the message names


def test_greedy_requests_are_answered_without_a_mark_and_logged(start, caplog) -> None:
    processor = start()
    before = torch.randn(1, VOCAB)
    for option, value in (("temperature", 0.0), ("top_k", 1), ("min_p", 1.0)):
        params = SamplingParams(seed=1, **{option: value})
        processor.validated(params)
        with caplog.at_level(logging.INFO, logger="vllm.dewmark"):
            processor.update_state(BatchUpdate(1, [], [(0, params, [5, 6], [])], []))
        assert torch.equal(processor.apply(before.clone()), before)
        assert f"{option} {value:g} without a mark" in caplog.text


def test_penalties_apply_before_the_choice(start) -> None:
    """vLLM's formulas on one row, and a token that a penalty rules out is never drawn."""
    logits, prompt, written = torch.tensor([2.0, -2.0, 1.0, 3.0]), [0], [1, 3, 3]
    found = sys.modules["dewmark.hosts.engines.vllm"].penalised(logits, prompt, written, 0.5, 0.25, 2.0)
    assert found.tolist() == [1.0, -4.0 - 0.25 - 0.5, 1.0, 1.5 - 0.5 - 0.5]
    processor = start()
    params = [SamplingParams(seed=i, presence_penalty=p) for i in range(64) for p in (0.0, 50.0)]
    added = [(i, each, [5, 6], [7, 9, 11 + i // 2]) for i, each in enumerate(params)]
    processor.update_state(BatchUpdate(len(added), [], added, []))
    scores = torch.full((len(added), VOCAB), -30.0)
    scores[:, 7:11] = 0.0
    drawn = processor.apply(scores).argmax(dim=1)
    assert set(drawn[0::2].tolist()) == {7, 8, 9, 10}
    assert set(drawn[1::2].tolist()) == {8, 10}


def test_a_bias_leaves_penalties_to_vllm(start) -> None:
    processor, before = start("dew-paper"), torch.zeros(1, VOCAB)
    given = SamplingParams(seed=1, presence_penalty=50.0)
    processor.update_state(BatchUpdate(1, [], [(0, given, [5, 6], [7])], []))
    assert float(processor.apply(before)[0, 7]) > -40.0
    assert not processor.is_argmax_invariant()


def test_unsuitable_schemes_and_engines_are_rejected_at_the_start(start) -> None:
    with pytest.raises(ConfigError, match="drafts of sentences"):
        start("semstamp", "")
    with pytest.raises(ConfigError, match="keeps a record"):
        start("waterpool", "")
    with pytest.raises(VocabularyError, match="serves a model of 301 ids"):
        start(vocab=301)
    with pytest.raises(ConfigError, match="pass --logits-processors"):
        start(asynchronous=True, given=False)
    start(asynchronous=True)


def test_no_key_is_logged(start, tmp_path, caplog) -> None:
    with caplog.at_level(logging.DEBUG):
        processor = start("kgw", "")
    secret = (tmp_path / "acme.key").read_text(encoding="utf-8").split()[-1]
    assert KEYS["acme"].fingerprint in caplog.text
    assert secret not in caplog.text + repr(vars(processor))


def test_any_scheme_with_sessions_runs(start) -> None:
    for scheme in ("kgw", "exp"):
        assert scheme in SCHEMES
        processor = start(scheme, "")
        processor.update_state(BatchUpdate(1, [], [(0, SamplingParams(seed=3), [5, 6, 7], [])], []))
        marked = processor.apply(torch.zeros(1, VOCAB))
        assert not torch.equal(marked, torch.zeros(1, VOCAB))
