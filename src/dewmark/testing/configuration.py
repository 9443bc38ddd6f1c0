"""Checks of what a scheme says about itself: configuration, hashes, secrets."""

from __future__ import annotations

import base64
import json

import torch

from dewmark.errors import ConfigError
from dewmark.scheme import Needs, Scheme
from dewmark.testing.expectations import expect, expect_refusal
from dewmark.testing.trial import Trial

__all__ = ["CHECKS"]


def describes_itself(trial: Trial) -> None:
    """Name, one-line summary, needs, defaults for every field; frozen; at least one test."""
    scheme = trial.scheme
    kind = type(scheme)
    expect(
        kind.name and kind.name == kind.name.strip().lower(), f"name: expected lower case, got {kind.name!r}"
    )
    expect(
        kind.summary and "\n" not in kind.summary, "summary: expected one line that says what the scheme is"
    )
    expect(isinstance(scheme.needs, Needs), f"needs: expected a Needs, got {type(scheme.needs).__name__}")
    expect(
        "__dataclass_fields__" in vars(kind),
        "expected a frozen dataclass: decorate the class with @dataclass(frozen=True)",
    )
    try:
        kind()
    except TypeError as error:
        raise AssertionError(
            f"expected a default for every field, so that {kind.__name__}() works: {error}"
        ) from None
    expect(
        trial.bound.tests, "tests: expected the names of the scheme's statistical tests, the default first"
    )


def config_round_trips(trial: Trial) -> None:
    """A configuration survives JSON and the text values of a command line."""
    scheme = trial.scheme
    plain = scheme.to_dict()
    try:
        stored = json.loads(json.dumps(plain))
    except TypeError as error:
        raise AssertionError(f"to_dict: expected plain JSON values: {error}") from None
    default: Scheme = type(scheme)()
    expect(default.with_settings(stored) == scheme, f"expected the same scheme back from {stored}")
    text: dict[str, object] = {name: str(value) for name, value in plain.items()}
    expect(default.with_settings(text) == scheme, f"expected the same scheme from the texts {text}")
    expect_refusal(
        lambda: default.with_settings({"no_such_parameter": 1}), ConfigError, "an unknown parameter"
    )


def config_hash_names_the_configuration(trial: Trial) -> None:
    """The same for the same configuration and key, another for another key."""
    same, other = trial.bind(trial.secret), trial.others[0]
    expect(same.config_hash == trial.bound.config_hash, "config_hash: expected the same for the same key")
    expect(other.config_hash != trial.bound.config_hash, "config_hash: expected another for another key")


def keeps_its_secret(trial: Trial) -> None:
    """Nothing that is printed or stored in the open holds the key, and no array holds the key itself."""
    bound, secret = trial.bound, trial.secret
    state = bound.state()
    detection = bound.detect(trial.marked[0])
    shown = {
        "repr of the bound scheme": repr(bound),
        "str of the bound scheme": str(bound),
        "repr of a session": repr(
            bound.drafts(["a text"]) if bound.needs.drafts else bound.session(torch.tensor([[5, 6, 7]]))
        ),
        "to_dict": json.dumps(bound.scheme.to_dict()),
        "config_hash": bound.config_hash,
        "repr of the state": repr(state),
        "meta of the state": json.dumps(dict(state.meta)),
        "a detection": repr(detection) + str(detection) + json.dumps(detection.to_dict(tokens=True)),
    }
    forms = (
        secret.hex(),
        base64.b64encode(secret).decode().rstrip("="),
        repr(secret)[2:-1],
        str(list(secret)),
    )
    for what, text in shown.items():
        expect(
            not any(form.lower() in text.lower() for form in forms), f"{what}: expected no key, it shows it"
        )
    for name, array in state.arrays.items():
        expect(
            secret not in array.tobytes(), f"array {name!r} of the state: expected a sub-key, it is the key"
        )


CHECKS = (describes_itself, config_round_trips, config_hash_names_the_configuration, keeps_its_secret)
