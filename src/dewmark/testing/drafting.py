"""What the checks of `marking` promise, for schemes that choose between drafts of sentences.

Boundary: called by the checks there, none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dewmark.errors import ConfigError
from dewmark.testing.expectations import expect, expect_refusal
from dewmark.testing.trial import Trial

__all__ = ["batches_share_nothing", "odd_drafts_do_not_pass", "order_changes_nothing", "sessions_are_refused"]


def order_changes_nothing(trial: Trial, rows: Sequence[int], *, tokens: int) -> None:
    """A prompt gives the same text at either end of a batch of prompts of other lengths."""
    prompts = [trial.prompts[row] for row in rows]
    wanted = trial.write(prompts, trial.bound, tokens=tokens, first_seed=7)
    others = prompts[:0:-1]
    # so that the last row has the seed that the first had
    found = trial.write([*others, prompts[0]], trial.bound, tokens=tokens, first_seed=7 - len(others))
    expect(found[-1] == wanted[0], "expected the same text of a prompt as the first and the last of a batch")


def batches_share_nothing(trial: Trial, *, tokens: int) -> None:
    """The second text is independent of the first: a batch gives the same before and after another one."""
    first = trial.write(trial.prompts[3:5], trial.bound, tokens=tokens)
    trial.write(trial.prompts[8:9], trial.bound, tokens=tokens)
    again = trial.write(trial.prompts[3:5], trial.bound, tokens=tokens)
    expect(first == again, "expected the same texts before and after another one")


def sessions_are_refused(trial: Trial) -> None:
    """Logits cannot be marked, and whoever tries is told so."""
    ids = torch.tensor([[50, 60, 70]])
    expect_refusal(lambda: trial.bound.session(ids), ConfigError, "a session")
    expect_refusal(lambda: trial.bound.processor(ids), ConfigError, "a logits processor")


def odd_drafts_do_not_pass(trial: Trial) -> None:
    """What is no whole sentence does not pass, and a finished one ends where it does."""
    drafts = trial.bound.drafts(["the old bridge."])
    odd = ["", " ", "...", "\ufffd", " an unfinished sentence"]
    scores = drafts.judge([0] * len(odd), odd)
    expect(all(score <= 0.0 for score in scores), f"expected that no draft of {odd} passes, got {scores}")
    expect(all(not math.isnan(score) for score in scores), f"expected numbers, got {scores}")
    whole, rest = " the water was high.", " and"
    expect(drafts.end(0, whole + rest) == len(whole), f"expected {whole!r} to end before {rest!r}")
    expect(drafts.end(0, " the water") is None, "expected no end in a sentence that is not finished")
