"""The page of an audit: self-contained, readable, and safe for any labels."""

from __future__ import annotations

import re

import numpy as np

from dewmark.reports.audit_page import render_audit
from dewmark.stats.audit import Audit, Trust, audit

PICTURE = "<svg><title>points</title></svg>"


def example(*, lean: bool, language: str = "de") -> Audit:
    p = np.random.default_rng(0).uniform(size=500)
    if lean:
        p[:100] **= 3
    return audit(p, languages=[language] * 100 + ["en"] * 400, lengths=[120] * 500)


def page(found: Audit) -> str:
    return render_audit(found, title="Audit of key 0123", notes=["a <note>"], plot=PICTURE)


def test_the_page_is_self_contained() -> None:
    source = page(example(lean=False))
    assert not re.search(r"(?:https?:)?//|@import|<script|<link|url\(", source)
    assert "default-src 'none'" in source
    assert PICTURE in source


def test_outcome_and_table() -> None:
    found = example(lean=True)
    source = page(found)
    assert 'class="badge fails">fails<' in source
    assert found.sentence.replace("'", "&#x27;") in source
    assert source.count("<tr>") == 1 + 3  # headings, all texts, de, en
    bad = sum(group.trust is Trust.NOT_TRUSTED for group in found.groups)
    assert source.count('class="bad"') == sum(cell.significant for cell in found.cells) + bad > bad > 0
    calm = page(example(lean=False))
    assert 'class="badge passes">passes<' in calm
    assert 'class="bad"' not in calm


def test_labels_are_escaped() -> None:
    source = page(example(lean=False, language="<img src=x>"))
    assert "<img src=x>" not in source
    assert "&lt;img src=x&gt;" in source
    assert "a &lt;note&gt;" in source


def test_what_goes_together_is_shown() -> None:
    m = np.random.default_rng(1).normal(size=(60, 900)).astype(np.float32)
    m[:20] += 40.0 * np.eye(900, dtype=np.float32)[0]
    m /= np.linalg.norm(m, axis=1, keepdims=True)
    found = audit(
        np.random.default_rng(0).uniform(size=60),
        languages=["cy"] * 20 + ["en"] * 40,
        lengths=[120] * 60,
        directions=m,
    )
    source = page(found)
    welsh = next(group for group in found.groups if group.group == "cy")
    assert f"<td>{welsh.together.r:.3f}</td>" in source
    assert "20 of 20 texts of cy are one block" in source
    assert f"<td>{welsh.together.matched:.3f}</td>" in source
    assert source.count("<th>") == 11
