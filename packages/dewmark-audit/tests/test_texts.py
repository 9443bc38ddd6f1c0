"""The prompts that the package carries."""

from __future__ import annotations

import pytest

from dewmark.errors import ConfigError
from dewmark_audit.texts import requests


def test_requests_are_varied_and_split():
    english = requests()
    assert len(english) >= 200
    assert len({row["kind"] for row in english[:10]}) == 10
    assert len(requests(split="eval")) == 200
    assert english[:200] == requests(split="eval")
    every = list(english)
    for language in ("de", "fr", "es", "pt", "zh"):
        rows = requests(language)
        assert len(rows) == 40
        assert len(requests(language, split="eval")) == 32
        every += rows
    assert len({row["text"] for row in every}) == len(every) == len({row["id"] for row in every})
    with pytest.raises(ConfigError, match="languages are de, en, es, fr, pt, zh"):
        requests("xx")
