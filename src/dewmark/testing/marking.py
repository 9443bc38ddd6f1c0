"""Checks of sessions: what a scheme does to logits, and that texts do not disturb each other.

A scheme that chooses between drafts of sentences has no sessions: what a check promises is then looked at in
the texts that come of it.
"""

from __future__ import annotations

import math
import unittest

import torch

from dewmark.errors import NumericalError, VocabularyError
from dewmark.testing import drafting
from dewmark.testing.expectations import expect, expect_close, expect_refusal
from dewmark.testing.trial import VOCABULARY, Trial

__all__ = ["CHECKS"]

_ROWS = (0, 3, 8)  # prompts of one, four and nine words
_SHORT = 40  # tokens, where two texts are compared word for word
_ROUNDING = 1e-4  # of a probability: a batch may sum in another order than a single row


def padding_changes_nothing(trial: Trial) -> None:
    """A row in a left-padded batch is marked as it is alone, with a mask and without."""
    if trial.scheme.needs.drafts:
        drafting.order_changes_nothing(trial, _ROWS, tokens=_SHORT)
        return
    for what, processor in (("session", False), ("processor", True)):
        together = trial.steps(_ROWS, processor=processor, mask=True)
        unmasked = trial.steps(_ROWS, processor=processor)
        expect_close(unmasked, together, f"{what}: padding seen by its id and by the mask", within=_ROUNDING)
        for i, row in enumerate(_ROWS):
            alone = trial.steps([row], processor=processor)[:, 0]
            expect_close(together[:, i], alone, f"{what}: row {i} padded and alone", within=_ROUNDING)


def sessions_share_nothing(trial: Trial) -> None:
    """The second text is independent of the first: a session gives the same before and after another one."""
    if trial.scheme.needs.drafts:
        drafting.batches_share_nothing(trial, tokens=_SHORT)
        return
    first = trial.steps([3])
    trial.steps([8])
    expect_close(trial.steps([3]), first, "the same text marked again after another one", within=0.0)


def batches_do_not_change_texts(trial: Trial) -> None:
    """A text is the same whether it is written alone or in a batch."""
    prompts = [trial.prompts[row] for row in _ROWS]
    together = trial.write(prompts, trial.bound, tokens=_SHORT)
    for i, prompt in enumerate(prompts):
        alone = trial.write([prompt], trial.bound, tokens=_SHORT, first_seed=i)[0]
        expect(
            alone == together[i], f"row {i}: expected the same text in a batch of {len(prompts)} and alone"
        )


def same_seeds_give_the_same_text(trial: Trial) -> None:
    """Prompt, seed and key decide a text; a second bound scheme writes it again."""
    prompts = trial.prompts[:4] if trial.scheme.needs.drafts else trial.prompts  # drafts take their time
    texts = (trial.write(prompts, bound, tokens=_SHORT) for bound in (trial.bound, trial.bind(trial.secret)))
    for i, (first, second) in enumerate(zip(*texts, strict=True)):
        expect(first == second, f"text {i}: expected the same text from the same prompt, seed and key")


def forbidden_tokens_stay_forbidden(trial: Trial) -> None:
    """A token of logit -inf keeps probability 0, and the others get all of it."""
    if trial.scheme.needs.drafts:
        drafting.sessions_are_refused(trial)
        return
    ids = torch.tensor([[50, 60, 70, 80]])
    for allowed in ([100], [100, 101], [*range(90, 120)]):
        logits = torch.full((1, VOCABULARY), -math.inf)
        logits[0, allowed] = torch.linspace(0.0, 1.0, len(allowed))
        marked = trial.bound.session(ids, seeds=[1])(ids, logits)
        expect(
            marked.shape == logits.shape,
            f"expected logits of shape {tuple(logits.shape)}, got {tuple(marked.shape)}",
        )
        share = float(marked.float().softmax(dim=-1)[0, allowed].sum())
        expect(
            math.isclose(share, 1.0, abs_tol=1e-5),
            f"expected all probability on the {len(allowed)} tokens of finite logit, got {share:g}",
        )


def bad_logits_are_refused(trial: Trial) -> None:
    """Logits of another vocabulary, and NaN, are errors and not a silent loss of the mark."""
    if trial.scheme.needs.drafts:
        drafting.odd_drafts_do_not_pass(trial)
        return
    ids = torch.tensor([[50, 60, 70]])
    session = trial.bound.session(ids, seeds=[1])
    expect_refusal(lambda: session(ids, torch.zeros(1, VOCABULARY - 100)), VocabularyError, "too few logits")
    bad = torch.zeros(1, VOCABULARY)
    bad[0, 3] = math.nan
    expect_refusal(lambda: trial.bound.session(ids, seeds=[1])(ids, bad), NumericalError, "NaN logits")


def devices_agree(trial: Trial) -> None:
    """CPU and GPU mark alike, so that text marked on one is found on the other."""
    if not torch.cuda.is_available():
        raise unittest.SkipTest("needs CUDA")
    if trial.scheme.needs.drafts:
        raise unittest.SkipTest("the scheme sees texts, and no device")
    for processor in (False, True):
        cpu = trial.steps(_ROWS, processor=processor)
        gpu = trial.steps(_ROWS, processor=processor, device="cuda")
        expect_close(gpu, cpu, "probabilities on GPU and CPU", within=1e-3)


CHECKS = (
    padding_changes_nothing,
    sessions_share_nothing,
    batches_do_not_change_texts,
    same_seeds_give_the_same_text,
    forbidden_tokens_stay_forbidden,
    bad_logits_are_refused,
    devices_agree,
)
