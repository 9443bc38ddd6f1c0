"""The page of a service with tokens and several keys."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect
from tests.desk.live import live_service, make_service

pytestmark = pytest.mark.serve


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """The URL of a service with two keys, and a function that creates a token of a scope."""
    folder = tmp_path_factory.mktemp("guarded")
    service = make_service(folder, tenants=("acme", "beta"))
    with live_service(folder, service=service) as url:

        def token(scope: str) -> str:
            return service.tokens.new("test", [scope])[1]

        token("admin")  # the first token makes tokens mandatory
        yield url, token


@pytest.fixture
def enter(desk, guarded) -> Callable[[str], object]:
    """Open the page with a new token of a scope."""
    url, token = guarded

    def come_in(scope: str):
        one = desk(url=url)
        one.page.fill("#access-token", token(scope))
        one.page.keyboard.press("Enter")
        expect(one.page.locator("#access-dialog")).to_be_hidden()
        return one

    return come_in


def test_page_asks_for_a_token(desk, guarded):
    one = desk(url=guarded[0])
    page = one.page
    expect(page.get_by_role("dialog", name="Access token")).to_be_visible()
    expect(page.locator("#access-token")).to_be_focused()
    assert one.serious() == []
    page.fill("#access-token", "dwm_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This token is not valid.")
    assert page.evaluate("sessionStorage.length") == 0


def test_token_lasts_as_long_as_the_tab_and_is_in_no_url(enter, guarded, marked):
    one = enter("detect")
    page = one.page
    assert one.check(marked) != ""
    page.reload()
    expect(page.locator("#access")).to_be_visible()
    expect(page.locator("#access-dialog")).to_be_hidden()
    kept = page.evaluate("[...Object.values(sessionStorage)]")
    assert len(kept) == 1
    assert kept[0] not in page.evaluate("JSON.stringify(localStorage)")
    assert not [request.url for request in one.requests if kept[0] in request.url]
    page.click("#access")
    page.click("#access-forget")
    assert page.evaluate("sessionStorage.length") == 0


def test_check_without_a_token_asks_for_one_and_continues(desk, guarded, marked):
    url, token = guarded
    one = desk(url=url)
    one.page.click("#access-cancel")
    one.paste(marked)
    expect(one.page.locator("#access-dialog")).to_be_visible()
    expect(one.page.locator("#result")).to_be_hidden()
    one.page.fill("#access-token", token("detect"))
    one.page.keyboard.press("Enter")
    assert "carries the mark of acme" in one.verdict()
    one.errors.clear()  # Chromium logs the 401


def test_matching_key_is_named(enter, marked, unmarked):
    one = enter("detect")
    page = one.page
    one.check(marked)
    expect(page.locator("#verdict")).to_contain_text("carries the mark of acme")
    page.locator("#details summary").click()
    expect(page.locator("#numbers")).to_contain_text("acme, of 2 tried")
    expect(page.locator("#plot-said")).to_contain_text("2.65")  # the level corrected for two keys
    one.check(unmarked)
    expect(page.locator("#verdict")).to_have_text("No mark of the 2 keys was found in this text.")
    expect(page.locator("#numbers")).not_to_contain_text(re.compile("acme|beta"))


def test_key_can_be_chosen_and_linked(enter, marked):
    one = enter("detect")
    page = one.page
    page.locator("summary", has_text="Settings").click()
    page.select_option("#tenant", "beta")
    assert page.url.endswith("#tab=check&level=0.01&key=beta")
    assert one.check(marked) == "No mark of beta was found in this text."
    page.reload()
    expect(page.locator("#settings-now")).to_have_text("(level 1%, key beta)")
    page.click("#tab-audit")
    assert page.locator("#audit-tenant option").all_inner_texts() == ["acme", "beta"]


def test_public_token_gets_a_verdict_only(enter, marked):
    one = enter("detect-public")
    page = one.page
    assert "carries" in one.check(marked)
    expect(page.locator("#warnings")).to_contain_text("Your access shows the verdict only.")
    assert page.locator("#tokens [data-index]").count() == 0
    assert page.locator("#tokens").inner_text() == marked
    for hidden in ("#inspector", "#legend", "#plot", "#passages", "#scores"):
        expect(page.locator(hidden)).to_be_hidden()
    assert page.locator("#level").is_disabled()
