"""The contract suite passes a correct scheme and catches broken ones, each by the check meant for it."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import unittest
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dewmark.mark import Session
from dewmark.scheme import State
from dewmark.stats.key_test import Statistic, one_sided_p
from dewmark_lab.testing import CHECKS, Report, Trial, check_scheme
from dewmark_lab.testing.checks import expect_close, expect_error, expect_valid

EXAMPLE = Path(__file__).parents[4] / "examples" / "own_scheme.py"


def _example() -> SimpleNamespace:
    spec = importlib.util.spec_from_file_location("own_scheme", EXAMPLE)
    module = sys.modules["own_scheme"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


own = _example()
TOKENS, KEYS = 120, 80


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial(own.Halves(), tokens=TOKENS, keys=KEYS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_example(check, trial) -> None:
    check(trial)


class Bound(own.BoundHalves):
    """The base of all mutants."""


class ScoresThePrompt(Bound):
    def read(self, texts, prompts):
        both = [a.text + b.text for a, b in zip(prompts, texts, strict=True)]
        return super().read(self.tokenize(both), prompts)


class CountsRepetitions(Bound):
    """The usual mistake: a repeated pair counts as new evidence."""

    def test(self, evidence, *, test, fpr=0.01):
        scored = evidence.positions[evidence.positions >= 0]
        n = max(len(scored), 1)
        z = float(evidence.scores[scored].sum()) / np.sqrt(n)
        return Statistic(z, one_sided_p(z), float(n))


class ReportsTooSmallPValues(Bound):
    def test(self, evidence, *, test, fpr=0.01):
        honest = super().test(evidence, test=test, fpr=fpr)
        return dataclasses.replace(honest, p_value=honest.p_value / 5)


class ClaimsTooLittleVariance(Bound):
    def evidence(self, readings, *, test=None):
        return [dataclasses.replace(e, kernel=(0.5,)) for e in super().evidence(readings, test=test)]


class FlipsTheSign(Bound):
    def test(self, evidence, *, test, fpr=0.01):
        honest = super().test(evidence, test=test, fpr=fpr)
        return dataclasses.replace(honest, z=-honest.z)


class ShowsItsKey(Bound):
    def __repr__(self) -> str:
        return f"Bound({self.leaked.hex()})"


class DependsOnTheBatch(Bound):
    def whole(self, readings, **options):
        found = super().whole(readings, **options)
        return [dataclasses.replace(each, z=each.z + 0.01 * len(readings)) for each in found]


class ForgetsTheSecret(Bound):
    def state(self):
        return State(meta={}, arrays={"secret": np.zeros(32, dtype=np.uint8)})


class Marks(Bound):
    """Changes the marked logits."""

    def session(self, prompt_ids, attention_mask=None, *, seeds=None):
        inner = super().session(prompt_ids, attention_mask, seeds=seeds)
        return MutantSession(lambda ids, scores: self.mark(inner, prompt_ids, ids, scores))


class MutantSession(Session):
    def __init__(self, marked):
        self.marked = marked

    def __call__(self, input_ids, scores):
        return self.marked(input_ids, scores)


class RemembersTheLastText(Marks):
    calls = 0

    def mark(self, inner, prompts, ids, scores):
        type(self).calls += 1
        return inner(ids, scores) * (1.0 + 0.01 * self.calls)


class SeesPadding(Marks):
    def mark(self, inner, prompts, ids, scores):
        return inner(ids, scores) + (prompts == 0).float().mean(dim=1, keepdim=True) * torch.arange(
            scores.shape[1]
        )


class RevivesForbiddenTokens(Marks):
    def mark(self, inner, prompts, ids, scores):
        return inner(ids, scores).clamp(min=-5.0)


class AcceptsAnything(Marks):
    def mark(self, inner, prompts, ids, scores):
        return inner(ids, torch.nn.functional.pad(scores, (0, 400 - scores.shape[1])).nan_to_num())


class IgnoresSeeds(Marks):
    def mark(self, inner, prompts, ids, scores):
        return inner(ids, scores) + torch.randn_like(scores)


MUTANTS = {
    ScoresThePrompt: "prompt_is_context_only",
    CountsRepetitions: "p_values_are_valid",
    ReportsTooSmallPValues: "wrong_keys_find_nothing",
    ClaimsTooLittleVariance: "evidence_has_the_moments_it_claims",
    FlipsTheSign: "scores_separate_marked_from_unmarked",
    ShowsItsKey: "keeps_its_secret",
    DependsOnTheBatch: "batch_equals_single",
    ForgetsTheSecret: "exported_detector_agrees",
    RemembersTheLastText: "sessions_share_nothing",
    SeesPadding: "padding_changes_nothing",
    RevivesForbiddenTokens: "forbidden_tokens_stay_forbidden",
    AcceptsAnything: "bad_logits_are_rejected",
    IgnoresSeeds: "same_seeds_give_the_same_text",
}


@dataclass(frozen=True)
class Mutant(own.Halves):
    """The example with a mutant as its bound scheme."""

    kind = Bound

    def bind(self, key, host, workspace):
        bound = super().bind(key, host, workspace)
        bound.leaked = key._secret
        return bound

    def bind_secret(self, secret, host, fingerprint, workspace):
        return self.kind(self, host, fingerprint, secret=secret)


@pytest.mark.parametrize(
    ("kind", "name"), MUTANTS.items(), ids=lambda value: getattr(value, "__name__", value)
)
def test_broken_scheme_is_caught(kind, name, tmp_path) -> None:
    scheme = Mutant()
    object.__setattr__(scheme, "kind", kind)
    check = next(check for check in CHECKS if check.__name__ == name)
    with pytest.raises(AssertionError, match="expected"):
        check(Trial(scheme, tokens=TOKENS, keys=KEYS, cache=tmp_path))


def test_scheme_without_the_dataclass_decorator_is_caught(tmp_path) -> None:
    class Undecorated(own.Halves):
        name = "undecorated"

    with pytest.raises(AssertionError, match="frozen dataclass"):
        CHECKS[0](Trial(Undecorated(), cache=tmp_path))


def test_report_lists_failures_and_skips(monkeypatch) -> None:
    def passes(trial):
        """Fine."""

    def breaks(trial):
        raise AssertionError("expected 1, got 2")

    def crashes(trial):
        raise TypeError("no such thing")

    def cannot_tell(trial):
        raise unittest.SkipTest("needs CUDA")

    monkeypatch.setattr("dewmark_lab.testing.CHECKS", (passes, breaks, crashes, cannot_tell))
    report = check_scheme(own.Halves())
    assert not report.passed
    assert str(report).splitlines() == [
        "halves:",
        "passed  passes",
        "failed  breaks: expected 1, got 2",
        "failed  crashes: TypeError: no such thing",
        "skipped cannot tell: needs CUDA",
    ]
    assert Report("halves", report.outcomes[:1]).passed


def test_only_valid_p_values_pass() -> None:
    rng = np.random.default_rng(0)
    expect_valid(rng.uniform(size=400), "uniform")
    expect_valid(np.sqrt(rng.uniform(size=400)), "conservative")
    with pytest.raises(AssertionError, match="too many false positives"):
        expect_valid(rng.uniform(size=400) ** 2, "too small")
    with pytest.raises(AssertionError, match=r"in \[0, 1\]"):
        expect_valid([0.5, float("nan")], "no number")


def test_failures_say_what_was_expected() -> None:
    from dewmark.errors import ConfigError, InputError

    with pytest.raises(AssertionError, match="differ by 0.5"):
        expect_close([1.0, 2.0], [1.0, 2.5], "numbers", within=0.1)
    with pytest.raises(AssertionError, match="NaN"):
        expect_close([float("nan")], [1.0], "numbers", within=0.1)
    with pytest.raises(AssertionError, match="expected InputError, got no error"):
        expect_error(lambda: None, InputError, "nothing")

    def other():
        raise ConfigError("another error")

    with pytest.raises(ConfigError, match="another error"):
        expect_error(other, InputError, "something")
