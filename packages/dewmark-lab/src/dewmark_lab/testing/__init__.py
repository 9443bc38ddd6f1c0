"""The contract of a scheme as tests that anyone can run on their own scheme.

``print(check_scheme(MyScheme()))`` runs them all. With pytest, each can be a test of its own:

    trial = Trial(MyScheme())

    @pytest.mark.parametrize("check", CHECKS)
    def test_contract(check):
        check(trial)

Everything runs offline on a tiny random language model. A
failure says what was expected; checks that cannot run here (no CUDA, no evidence offered) are skipped.
"""

from __future__ import annotations

import contextlib
import unittest
from dataclasses import dataclass

from dewmark.scheme import Scheme
from dewmark_lab.testing.checks import CHECKS, Check
from dewmark_lab.testing.trial import Trial

__all__ = ["CHECKS", "Check", "CheckOutcome", "Report", "Trial", "check_scheme"]


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of one check, ``passed``, ``failed`` or ``skipped``, and the reason."""

    check: str
    outcome: str
    message: str = ""

    def __str__(self) -> str:
        reason = f": {self.message}" if self.message else ""
        return f"{self.outcome:8}{self.check.replace('_', ' ')}{reason}"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of all checks of one scheme."""

    scheme: str
    outcomes: tuple[CheckOutcome, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(outcome.outcome != "failed" for outcome in self.outcomes)

    def __str__(self) -> str:
        return "\n".join([f"{self.scheme}:", *map(str, self.outcomes)])


def check_scheme(scheme: Scheme, *, tokens: int = 200, keys: int = 200) -> Report:
    """Run every check on a scheme, with texts of ``tokens`` tokens and ``keys`` random keys."""
    outcomes = []
    with contextlib.closing(Trial(scheme, tokens=tokens, keys=keys)) as trial:
        for check in CHECKS:
            outcome, message = "passed", ""
            try:
                check(trial)
            except unittest.SkipTest as reason:
                outcome, message = "skipped", str(reason)
            except AssertionError as error:
                outcome, message = "failed", str(error)
            except Exception as error:  # noqa: BLE001 - any error of a scheme is a failure
                outcome, message = "failed", f"{type(error).__name__}: {error}"
            outcomes.append(CheckOutcome(check.__name__, outcome, message))
    return Report(scheme.name, tuple(outcomes))
