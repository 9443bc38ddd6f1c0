"""The audit tab: collect texts, follow the job and read the report."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.serve


def letters(number: int, unmarked: str) -> dict[str, bytes]:
    words = unmarked.split()
    return {f"letter-{i}.txt": " ".join(words[i:] + words[:i]).encode() for i in range(number)}


def test_folder_is_audited(desk, unmarked, tmp_path):
    for name, content in letters(12, unmarked).items():
        (tmp_path / name).write_bytes(content)
    inner = tmp_path / "more"
    inner.mkdir()
    (inner / "rows.jsonl").write_text(
        "".join(json.dumps({"text": f"{i} {unmarked}"}) + "\n" for i in range(3))
    )
    (inner / "photo.jpg").write_bytes(b"\xff\xd8")
    one = desk("#tab=audit")
    page = one.page
    page.set_input_files("#audit-folder", tmp_path)
    expect(page.locator("#gathered")).to_contain_text("15 texts with")
    expect(page.locator("#unread summary")).to_have_text("1 file could not be read")
    page.click("#audit-start")
    expect(page.locator("#report")).to_be_visible()
    expect(page.locator("#outcome")).to_have_text(re.compile("The key (passes|fails)|Cannot tell"))
    expect(page.locator("#rates tbody tr").first).to_contain_text("all texts")
    expect(page.locator("#rates thead")).to_contain_text("at 1%")
    expect(page.locator("#audit-progress")).to_be_hidden()
    expect(page.locator("#outcome")).to_be_focused()
    with page.expect_download() as saved:
        page.click("#download")
    report = json.loads(saved.value.path().read_text())
    assert report["outcome"] in ("passes", "fails", "cannot tell")
    assert one.serious() == []


def test_dropped_files_are_collected_and_removed(desk, unmarked):
    one = desk("#tab=audit")
    one.drop(letters(3, unmarked), target="#audit-drop")
    expect(one.page.locator("#gathered")).to_contain_text("3 texts with")
    one.drop({"bad.jsonl": b"{}\n"}, target="#audit-drop")
    expect(one.page.locator("#unread li")).to_have_text("bad.jsonl, line 1: no “text” field.")
    one.page.click("#audit-clear")
    expect(one.page.locator("#gathered")).to_contain_text("No texts yet")


def job(state: str, **more: object) -> dict[str, object]:
    return {
        "id": "j_1",
        "kind": "audit",
        "state": state,
        "done": 3,
        "total": 12,
        "error": None,
        "result": None,
        **more,
    }


@pytest.fixture
def slow(desk, unmarked):
    """The page during an audit, and the job's state as a dictionary that the test changes."""
    one = desk("#tab=audit")
    state = job("running")
    started = {"status": 202, "json": {"job": job("queued")}}
    one.page.route("**/v1/audit", lambda route: route.fulfill(**started))
    one.page.route("**/v1/jobs/*", lambda route: route.fulfill(json=state))
    one.drop(letters(12, unmarked), target="#audit-drop")
    expect(one.page.locator("#gathered")).to_contain_text("12 texts")
    one.page.click("#audit-start")
    return one, state


def test_progress_is_shown(slow):
    page = slow[0].page
    expect(page.locator("#audit-bar-said")).to_have_text("Checked 3 of 12 texts")
    assert page.get_by_role("progressbar").get_attribute("value") == "0.25"


def test_audit_can_be_stopped(slow):
    page = slow[0].page
    with page.expect_request(lambda request: request.method == "DELETE"):
        page.click("#audit-cancel")
    expect(page.locator("#audit-progress")).to_be_hidden()
    expect(page.locator("#report")).to_be_hidden()


def test_audit_is_followed_after_a_reload(slow):
    page = slow[0].page
    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": [job("running")]}))
    page.reload()
    expect(page.locator("#audit-bar-said")).to_have_text("Checked 3 of 12 texts")
    expect(page.locator("#audit-cancel")).to_be_visible()


def test_restarting_service_is_waited_for(slow):
    one, state = slow
    one.page.unroute("**/v1/jobs/*")
    one.page.route("**/v1/jobs/*", lambda route: route.abort())
    with one.page.expect_event("requestfailed"):
        pass
    one.page.route("**/v1/jobs/*", lambda route: route.fulfill(json=state))
    state.update(job("failed", error="the end"))
    expect(one.page.get_by_role("alert")).to_have_text("the end")
    one.errors.clear()  # Chromium logs the failures


def test_high_rate_is_flagged_in_words(slow):
    one, state = slow
    cell = {
        "kind": "all",
        "group": "all texts",
        "name": "all texts",
        "level": 0.01,
        "texts": 400,
        "alarms": 40,
    }
    cell |= {"rate": 0.1, "low": 0.07, "high": 0.13, "p_value": 1e-9, "corrected": 1e-8, "significant": True}
    report = {"outcome": "fails", "sentence": "The key fails for all texts.", "texts": 400, "too_short": 0}
    cell |= {"independent": 12.3}
    report |= {
        "remarks": ["Form letters are one block."],
        "left_out": 0,
        "scheme": "dew",
        "test": "key",
        "key_fingerprint": "f0",
        "cells": [cell],
    }
    state.update(job("done", result=report))
    expect(one.page.locator("#outcome")).to_have_text("The key fails")
    expect(one.page.locator("#rates td").first).to_have_text("400worth 12 independent")
    expect(one.page.locator("#rates td").nth(1)).to_have_text(re.compile("10% too high"))
    expect(one.page.locator("#outcome-sentence")).to_contain_text("Form letters are one block.")
    assert one.serious() == []
