"""Without torch: detection works, and marking says what to install before it fetches anything."""

from __future__ import annotations

import importlib.util

import pytest

import dewmark
from dewmark.detect import score_text
from dewmark.errors import MissingExtraError
from dewmark.hosts import host_info, load_host


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find no torch, even where it is installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    monkeypatch.setitem(__import__("sys").modules, "torch", None)


@pytest.mark.parametrize("call", [load_host, host_info])
def test_a_host_names_the_extra_before_anything_is_fetched(call, monkeypatch) -> None:
    monkeypatch.setattr("dewmark.models.packaged.fetch", pytest.fail)
    with pytest.raises(MissingExtraError, match=r"pip install 'dewmark\[host\]'"):
        call("smollm2-135m")


def test_the_default_detects(tmp_path) -> None:
    scheme = dewmark.load_scheme(dewmark.Key(bytes(32)))
    found = score_text(
        scheme, "The old bridge over the river was built by people who came from the north. " * 3
    )
    assert found.verdict in dewmark.Verdict
