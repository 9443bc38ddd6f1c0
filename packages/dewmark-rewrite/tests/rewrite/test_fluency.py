"""What a causal model loses by a substitution is what it loses when the whole text is read again."""

from __future__ import annotations

import re

import pytest

from dewmark.hosts.fake import FakeHost
from dewmark_rewrite.fluency import CausalJudge
from dewmark_rewrite.thesaurus import Candidate

TEXT = "The old bridge over the river was built long ago, and many people from the town still cross it daily."


def test_losses_are_those_of_the_text_read_again():
    host = FakeHost(kind="bytes", vocab_size=400)
    pairs = [("old", "new"), ("built", "made"), ("many", "most"), ("people", "persons"), ("daily", "often")]
    candidates = [Candidate(at := TEXT.index(old), at + len(old), old, new) for old, new in pairs]
    found = CausalJudge(host).losses(TEXT, candidates)
    for each, loss in zip(candidates, found, strict=True):
        tail = re.compile(r"(?:\s*\S+){0,3}").match(TEXT, each.end).group()
        old, new = (TEXT[: each.start] + word + tail for word in (each.old, each.new))
        (before, _), (after, _) = host.log_likelihood(["", ""], [old, new])
        assert loss.word + loss.after == pytest.approx(before - after, abs=1e-3)


def test_no_candidates_no_losses():
    assert CausalJudge(FakeHost(kind="bytes", vocab_size=400)).losses(TEXT, []) == []
