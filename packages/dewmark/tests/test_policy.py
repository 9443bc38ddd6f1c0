"""Policies: the rules, and that marking honours them without changing what the host would write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.mark import ChoosingSession, Session, Writer, draw
from dewmark.policy import Policy, load_policy
from dewmark.sampling import Choice, RandomStreams, warp
from dewmark.scheme import BoundScheme, Needs, Scheme
from dewmark_lab.testing.fake_host import FakeHost

TEXT = 'Look:\n\n```python\nprint("a b")\n```\n\nYou said "the old bridge", and 3 of `x y` remain.'


def reasons(text: str, prompt: str = "", **switches: bool) -> dict[str, str | None]:
    spans = Policy(**switches).spans(text, prompt)
    return {text[each.start : each.end]: each.reason for each in spans}


def test_each_rule_names_its_spans():
    found = reasons(TEXT, "Who built the old bridge?")
    assert found == {
        "Look": None,
        'python\nprint("a b': "code",
        "You said": None,
        "the old bridge": "quotation",
        "and": None,
        "3": "number",
        "of": None,
        "x y": "code",
        "remain": None,
    }


@pytest.mark.parametrize("rule", ["code", "quotations", "numbers"])
def test_a_rule_can_be_switched_off(rule):
    name = rule.removesuffix("s")
    assert name in reasons(TEXT, "the old bridge").values()
    assert name not in reasons(TEXT, "the old bridge", **{rule: False}).values()


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ('{"name": "a}b", "list": [1, {"x": ', True),
        ('{"name": "done"} and then', False),
        ('[{"a": 1}, ', True),
        ("[see the map", False),
        ("I call it. <tool_call> {", True),
        ("<tool_call>{}</tool_call> So", False),
    ],
)
def test_structured_answers_end_with_their_brackets(text, inside):
    assert (Policy().reason(text) == "structured") is inside


def test_words_that_are_not_the_prompt_s_are_no_quotation():
    assert Policy().reason('He said "a new road', "the old bridge") is None
    assert Policy().reason("He said “the old", "Tell me of the  OLD bridge") == "quotation"
    assert Policy().reason("He said “the old bridge” and", "the old bridge and") is None


def test_versions_follow_the_rules_and_requests_may_be_exempt(tmp_path):
    assert Policy().version != Policy(code=False).version
    assert Policy(least_tokens=50).exempts(max_new_tokens=49) == "short"
    assert Policy(least_tokens=50).exempts(max_new_tokens=50) is None
    assert Policy().exempts(max_new_tokens=9, opted_out=True) == "opted_out"
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"code": False, "least_tokens": 20}))
    assert load_policy(file) == Policy(code=False, least_tokens=20)
    for wrong in ('{"kode": true}', '{"code": 1}', "[]", "{"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=r"policy\.json"):
            load_policy(file)


class _Marks(ChoosingSession):
    """Chooses with numbers of its own, or always the same token."""

    def __init__(self, rows: int, always: int | None = None) -> None:
        self._noise = RandomStreams(range(10_000, 10_000 + rows), device=torch.device("cpu"))
        self._always, self.calls = always, 0

    def choose(self, input_ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding) -> Choice:
        self.calls += 1
        ids, sound = draw(scores, decoding, self._noise, input_ids.shape[1])
        return (ids if self._always is None else torch.full_like(ids, self._always)), sound


@dataclass(frozen=True)
class _Spares:
    """Exemptions that spare the same rows at every step."""

    rows: list[bool]
    unmarked_ids: tuple[int, ...] = ()

    def spares(self, written):
        return self.rows

    def exempts(self, decoding):
        return False


def writer_of(session, spares, *, unmarked_ids=(), final=True) -> tuple[Writer, torch.Tensor]:
    """A writer under a policy, and the ids that its texts begin with."""
    ids = torch.zeros((len(spares), 1), dtype=torch.long)
    exemptions = _Spares(spares, unmarked_ids)
    return Writer(session, ids, seeds=range(len(spares)), final=final, exemptions=exemptions), ids


def test_numbers_are_left_out_and_the_distribution_stays():
    """6,000 draws from 12 tokens: every frequency within 4.5 standard errors of the host's."""
    rows, vocab = 6000, 12
    logits = torch.linspace(0.0, 2.0, vocab).repeat(rows, 1)
    writer, ids = writer_of(_Marks(rows), [False] * rows, unmarked_ids=(3, 11))
    decoding = Decoding(temperature=0.7, top_p=0.9)
    chosen, sound = writer.draw(ids, logits, decoding)
    assert bool(sound.all())
    p = warp(logits[:1], decoding).softmax(dim=1)[0].numpy()
    counts = np.bincount(chosen.numpy(), minlength=vocab) / rows
    assert np.all(np.abs(counts - p) <= 4.5 * np.sqrt(p * (1 - p) / rows))
    assert counts[p == 0.0].sum() == 0.0


def test_spared_rows_never_take_the_mark_s_token():
    rows = 400
    logits = torch.zeros((rows, 50))
    inner = _Marks(rows, always=7)
    spares = [row % 2 == 0 for row in range(rows)]
    writer, ids = writer_of(inner, spares)
    chosen, _ = writer.draw(ids, logits, Decoding())
    assert bool((chosen[1::2] == 7).all())
    assert int((chosen[::2] == 7).sum()) < 20  # 4 expected of 200
    everything, ids = writer_of(inner, [True] * rows)
    calls = inner.calls
    everything.draw(ids, logits, Decoding())
    assert inner.calls == calls


@dataclass(frozen=True)
class _Digit(Scheme):
    """Chooses one token wherever it may."""

    name: ClassVar[str] = "digit"
    summary: ClassVar[str] = "stub"
    needs: ClassVar[Needs] = Needs(final_distribution=True)

    def validate(self):
        """All values are valid."""

    def bind(self, key, host, workspace):
        return _BoundDigit(self, host, "0123456789ab")

    def restore(self, state, host, fingerprint, workspace):
        raise NotImplementedError


class _BoundDigit(BoundScheme):
    def session(self, prompt_ids, attention_mask=None, *, seeds=None):
        return _Likeliest()

    def state(self):
        raise NotImplementedError


class _Likeliest(ChoosingSession):
    def choose(self, input_ids, scores, decoding):
        return scores.argmax(dim=1), torch.ones(len(scores), dtype=torch.bool)


@pytest.mark.parametrize(("policy", "marked"), [(Policy(), 0), (Policy(numbers=False), 1)])
def test_a_scheme_under_the_default_policy_never_marks_a_number(policy, marked):
    """The mark would always take the digit, which has half the probability: only unkeyed draws take it."""
    host, rows = FakeHost(400, kind="bytes").info, 400
    names = host.tokenizer.decode([[i] for i in range(host.vocab_size)])
    digit, letter = names.index("7"), names.index("x")
    logits = torch.full((rows, host.vocab_size), -torch.inf)
    logits[:, [digit, letter]] = torch.tensor([0.1, 0.0])
    ids = torch.full((rows, 1), letter)
    writer = _Digit().bind(None, host, None).under_policy(policy).writer(ids, seeds=range(rows))
    chosen, _ = writer.draw(ids, logits, Decoding())
    p = marked or 1 / (1 + np.exp(-0.1))
    assert np.mean(chosen.numpy() == digit) == pytest.approx(p, abs=4.5 * np.sqrt(p * (1 - p) / rows))


class _Keeps(Session):
    """Remembers the logits that it gets, and marks nothing."""

    def __call__(self, input_ids, scores):
        self.scores = scores.clone()
        return scores


def test_a_session_of_raw_logits_gets_raw_logits():
    """Numbers can be left out of a draw, but not of a bias: the scheme sees what the host computed."""
    inner, logits = _Keeps(), torch.linspace(0.0, 2.0, 12).repeat(5, 1)
    writer, ids = writer_of(inner, [False] * 5, unmarked_ids=(3, 11), final=False)
    writer.draw(ids, logits, Decoding(temperature=0.5, top_k=3))
    assert torch.equal(inner.scores, logits)
