"""What a causal model loses by a substitution is what it loses when the whole text is read again."""

from __future__ import annotations

import re

import pytest
import torch

from dewmark_lab.testing.fake_host import FakeHost
from dewmark_rewrite.fluency import CausalReading
from dewmark_rewrite.thesaurus import Candidate

TEXT = "The old bridge over the river was built long ago, and many people from the town still cross it daily."


def test_losses_are_those_of_the_text_read_again():
    host = FakeHost(kind="bytes", vocab_size=400)
    pairs = [("old", "new"), ("built", "made"), ("many", "most"), ("people", "persons"), ("daily", "often")]
    candidates = [Candidate(at := TEXT.index(old), at + len(old), old, new) for old, new in pairs]
    found = CausalReading(host, TEXT).losses(candidates)
    for each, loss in zip(candidates, found, strict=True):
        tail = re.compile(r"(?:\s*\S+){0,3}").match(TEXT, each.end).group()
        old, new = (TEXT[: each.start] + word + tail for word in (each.old, each.new))
        (before, _), (after, _) = host.log_likelihood(["", ""], [old, new])
        assert loss.word + loss.after == pytest.approx(before - after, abs=1e-3)


def test_the_opening_of_a_change_is_its_first_token():
    host = FakeHost(kind="bytes", vocab_size=400)
    change = Candidate(at := TEXT.index("old"), at + 3, "old", "new")
    (found,) = CausalReading(host, TEXT).openings([change])
    (root,) = host.prompt_ids([""])
    (joined,) = host.tokenizer.encode([TEXT[:at] + "new"])
    first = next(i for i, (_, end) in enumerate(joined.offsets) if end > at)
    before = [*(root or joined.ids[:1]), *joined.ids[:first]]
    with torch.no_grad():
        logs = host.model(torch.tensor([before])).logits[0, -1].float().log_softmax(-1)
    assert found == pytest.approx(float(logs[joined.ids[first]]), abs=1e-3)


def test_long_texts_are_read_in_pieces():
    text = " ".join([TEXT] * 8)
    change = Candidate(at := text.rindex("old"), at + 3, "old", "new")
    (whole,) = CausalReading(FakeHost(kind="bytes", vocab_size=400), text).losses([change])
    part = CausalReading(FakeHost(kind="bytes", vocab_size=400), text[-240:])
    first = at - len(text) + 240
    (alone,) = part.losses([Candidate(first, first + 3, "old", "new")])
    assert whole.word == pytest.approx(alone.word, abs=0.5)


def test_no_candidates_no_losses():
    assert CausalReading(FakeHost(kind="bytes", vocab_size=400), TEXT).losses([]) == []
