from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.desk.live import bound, host

from dewmark.core.keys import Key
from dewmark.errors import ConfigError
from dewmark.scheme import for_languages
from dewmark.text.languages import LanguagePolicy
from dewmark.watermark import Watermark
from dewmark_desk.settings import Settings
from dewmark_desk.tenants import Tenant, open_writers
from dewmark_lab.testing.fake_host import FakeHost


def writers(folder: Path, *ids: str, detects_on: Any, writes_on: Any) -> list[str]:
    """The tenants that mark if each of these ids has a key and a detector of a host-bound scheme."""
    tenants, keys = {}, []
    for i, id_ in enumerate(ids):
        key = Key(bytes([i]) * 32)
        key.save(folder / f"{i}.key")
        keys.append((id_, str(folder / f"{i}.key")))
        tenants[id_] = Tenant(id_, Watermark(key, host=detects_on, scheme="vllm-gumbel").scheme)
    _, found = open_writers(Settings(keys=tuple(keys), host_model=writes_on), tenants)
    return sorted(found)


def test_retired_keys_do_not_mark(tmp_path):
    assert writers(tmp_path, "acme", "acme@2025", "beta", detects_on=host(), writes_on=host()) == [
        "acme",
        "beta",
    ]


def test_languages_of_a_tenant_are_in_order():
    known = ["cy", "de", "el", "en", "es", "fr", "it", "sw"]
    tenant = Tenant("acme", for_languages(bound("acme"), LanguagePolicy(known=frozenset(known))))
    assert tenant.languages == (*known,)


def test_only_retired_keys_cannot_mark(tmp_path):
    with pytest.raises(ConfigError, match="all keys are retired"):
        writers(tmp_path, "acme@2025", detects_on=host(), writes_on=host())


def test_detector_for_another_tokenizer_does_not_mark(tmp_path):
    with pytest.raises(ConfigError, match="whose tokenizer differs"):
        writers(tmp_path, "acme", detects_on=FakeHost(256), writes_on=host())
