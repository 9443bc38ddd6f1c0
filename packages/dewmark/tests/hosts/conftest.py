from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from dewmark.mark import Session
from dewmark.scheme import BoundScheme, Needs, Scheme
from dewmark_lab.testing.fake_host import FakeHost


@dataclass(frozen=True)
class Force(Scheme):
    """Forces one token at every step; with ``token`` below 0 it changes nothing."""

    name = "force"
    summary = "forces a token"
    needs = Needs(sampling=True)
    token: int = 7

    def validate(self):
        return None

    def bind(self, key, host, workspace):
        return BoundForce(self, host, "0123456789ab")

    def restore(self, state, host, fingerprint, workspace):
        raise NotImplementedError


class BoundForce(BoundScheme):
    def __init__(self, *args):
        super().__init__(*args)
        self.opened = []

    def session(self, prompt_ids, attention_mask=None, *, seeds=None):
        self.opened.append((prompt_ids.clone(), None if attention_mask is None else attention_mask.clone()))
        return ForceSession(self.scheme.token)

    def state(self):
        raise NotImplementedError


class ForceSession(Session):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores):
        if self.token < 0:
            return scores
        forced = torch.full_like(scores, -float("inf"))
        forced[:, self.token] = 0.0
        return forced


@pytest.fixture(scope="module")
def host():
    return FakeHost()


@pytest.fixture
def force():
    """Bind the forcing scheme to a host: ``force(host.info, token)``."""
    return lambda info, token=7: Force(token=token).bind(None, info, None)
