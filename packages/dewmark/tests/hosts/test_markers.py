"""Engines leave to themselves what a policy spares, and mark the rest as if the policy were not there."""

from __future__ import annotations

import logging
import random

import pytest
import torch

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.engines.markers import Markers, mark_rows
from dewmark.hosts.engines.vllm_config import CONFIG, EngineConfig, MarkRequest, config_from_environment
from dewmark.policy import Policy
from dewmark.registry import SCHEMES
from dewmark_lab.testing.fake_host import FakeHost

VOCAB = 400
SPARED = ["Here:\n```\nx = the old", '{"bridge": "over', "Use `the"]
MARKED = ["Here: the old bridge", "```\nx\n```\nThe old", "{} the old bridge"]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    host = FakeHost(VOCAB, kind="bytes")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Key(bytes(32)).save(tmp_path / "a.key")

    def texts(written: list[str], policy: Policy | None):
        config = EngineConfig(SCHEMES["dew"](), {"a": tmp_path / "a.key"}, "a", policy=policy)
        markers = Markers(
            config, host.info, torch.device("cpu"), seeds=random.Random(1), log=logging.getLogger("x")
        )
        ids = [list(each.ids) for each in host.info.tokenizer.encode(written)]
        return {
            i: markers.open(MarkRequest("a"), [5, 6], each, seed=i, decoding=Decoding())
            for i, each in enumerate(ids)
        }

    return texts


def test_texts_that_end_are_counted_and_those_without_room_are_logged(tmp_path, monkeypatch, caplog) -> None:
    """One text has much to choose from and one next to nothing; one that is preempted counts once."""
    host = FakeHost(VOCAB)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Key(bytes(32)).save(tmp_path / "a.key")
    config = EngineConfig(SCHEMES["dew"](), {"a": tmp_path / "a.key"}, "a")
    markers = Markers(
        config, host.info, torch.device("cpu"), seeds=random.Random(1), log=logging.getLogger("x")
    )
    written: dict[int, list[int]] = {0: [], 1: []}
    texts = {
        i: markers.open(MarkRequest("a"), [5, 6], written[i], seed=i, decoding=Decoding()) for i in written
    }
    forbidden = ~torch.tensor(host.info.markable)
    for step in range(40):
        logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(step))
        logits[1] *= 100.0
        marked = mark_rows(texts, logits.masked_fill(forbidden, -torch.inf))
        for i, ids in written.items():
            ids.append(int(marked[i].argmax()))
    with caplog.at_level(logging.INFO):
        for text in texts.values():
            markers.ended(text)
    assert markers.counts == {"marked": 1, "no_room": 1}
    assert "counts a text as unmarked: no room" in caplog.text
    assert "marked 1, no_room 1" in caplog.text
    again = markers.open(
        MarkRequest("a"), [5, 6], list(written[0]), seed=0, decoding=Decoding(), before=[texts[0]]
    )
    assert markers.counts["marked"] == 0
    assert again.rows.room(again.row) == texts[0].rows.room(texts[0].row)


def test_rows_that_a_policy_spares_stay_as_they_are(opened) -> None:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(3))
    policed = mark_rows(opened([*SPARED, *MARKED], Policy(numbers=False)), logits.clone())
    plain = mark_rows(opened([*SPARED, *MARKED], None), logits.clone())
    assert torch.equal(policed[:3], logits[:3])
    assert torch.equal(policed[3:], plain[3:])
    assert (plain.isfinite().sum(dim=1) == 1).all()  # without a policy every row is drawn


def test_a_text_goes_on_with_its_mark_after_what_was_spared(opened) -> None:
    (text,) = opened(["Use `the"], Policy(numbers=False)).values()
    (other,) = opened(["Use `the` old"], None).values()
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(4))
    assert torch.equal(mark_rows({0: text}, logits.clone()), logits)
    text.row.written = other.row.written
    assert torch.equal(mark_rows({0: text}, logits.clone()), mark_rows({0: other}, logits.clone()))


@pytest.mark.parametrize(
    ("said", "message"), [("policy = 3", "policy in"), ('policy = "none.json"', "no policy")]
)
def test_a_wrong_policy_is_refused(tmp_path, monkeypatch, said, message) -> None:
    Key(bytes(32)).save(tmp_path / "a.key")
    (tmp_path / "dewmark.toml").write_text(f'{said}\n[keys]\na = "a.key"\n', encoding="utf-8")
    monkeypatch.setenv(CONFIG, str(tmp_path / "dewmark.toml"))
    with pytest.raises(ConfigError, match=message):
        config_from_environment()


def test_a_policy_of_short_requests_is_refused_and_numbers_are_the_engine_s(tmp_path, monkeypatch) -> None:
    Key(bytes(32)).save(tmp_path / "a.key")
    file = tmp_path / "dewmark.toml"
    file.write_text('policy = "default"\n[keys]\na = "a.key"\n', encoding="utf-8")
    monkeypatch.setenv(CONFIG, str(file))
    assert config_from_environment().policy == Policy(numbers=False)
    (tmp_path / "short.json").write_text('{"least_tokens": 9}', encoding="utf-8")
    other = tmp_path / "other.toml"
    other.write_text('policy = "short.json"\n[keys]\na = "a.key"\n', encoding="utf-8")
    monkeypatch.setenv(CONFIG, str(other))
    with pytest.raises(ConfigError, match="least_tokens"):
        config_from_environment()
