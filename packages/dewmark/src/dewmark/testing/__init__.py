"""The contract of a scheme as tests that anyone can run on their own scheme.

With pytest, in five lines:

    from dewmark.testing import SchemeContract
    from my_package import MyScheme

    class TestMyScheme(SchemeContract):
        scheme = MyScheme()

Without it: ``print(check_scheme(MyScheme()))``. Everything runs offline on a tiny random language model. A
failure says what was expected; checks that cannot run here (no CUDA, no evidence offered) are skipped.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from dewmark.scheme import Scheme
from dewmark.testing.checks import CHECKS, Check
from dewmark.testing.trial import Trial

__all__ = ["CHECKS", "Check", "CheckOutcome", "Report", "SchemeContract", "Trial", "check_scheme"]


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of one check, ``passed``, ``failed`` or ``skipped``, and the reason."""

    check: str
    outcome: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:8}{self.check.replace('_', ' ')}" + (
            f": {self.message}" if self.message else ""
        )


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
    trial = Trial(scheme, tokens=tokens, keys=keys)
    try:
        return Report(scheme.name, tuple(_run(check, trial) for check in CHECKS))
    finally:
        trial.close()


def _run(check: Check, trial: Trial) -> CheckOutcome:
    name = check.__name__
    try:
        check(trial)
    except unittest.SkipTest as reason:
        return CheckOutcome(name, "skipped", str(reason))
    except AssertionError as error:
        return CheckOutcome(name, "failed", str(error))
    except Exception as error:  # noqa: BLE001 - any error of a scheme is a failure
        return CheckOutcome(name, "failed", f"{type(error).__name__}: {error}")
    return CheckOutcome(name, "passed")


class SchemeContract:
    """Subclass it in a test file and set ``scheme``: pytest then runs every check as its own test."""

    scheme: ClassVar[Scheme]
    trial: ClassVar[Trial]

    @classmethod
    def setup_class(cls) -> None:
        """Create the trial that the checks share; override it for other text lengths or key counts."""
        cls.trial = Trial(cls.scheme)

    @classmethod
    def teardown_class(cls) -> None:
        """Delete the trial's files."""
        cls.trial.close()


def _as_test(check: Check) -> Callable[[Any], None]:
    def test(self: SchemeContract) -> None:
        check(self.trial)

    test.__doc__ = check.__doc__
    return test


for _check in CHECKS:
    setattr(SchemeContract, f"test_{_check.__name__}", _as_test(_check))
