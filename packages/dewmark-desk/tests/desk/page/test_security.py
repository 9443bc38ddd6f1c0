"""The page never leaks or executes a text and contacts no third party; how it handles a failing service."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.serve

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script><b>bold</b> "


def test_markup_is_shown_as_text(desk, marked):
    one = desk()
    one.check(MARKUP + marked)
    page = one.page
    assert page.title() == "dewmark desk"
    assert page.locator("#result img, #result script, #result b").count() == 0
    assert MARKUP.strip() in page.locator("#tokens").inner_text()
    page.click("#scores")
    page.locator("#tokens [data-index]").first.hover()
    assert page.locator("#tip *").count() == 0


def test_no_third_party_requests(desk, marked):
    one = desk()
    one.check(marked)
    one.page.click("#tab-audit")
    assert {request.url.split("/")[2] for request in one.requests if not request.url.startswith("data:")} == {
        one.url.split("/")[2]
    }


def test_url_never_contains_the_text(desk, marked):
    one = desk()
    one.page.locator("summary", has_text="Settings").click()
    one.page.fill("#prompt", "secret prompt")
    one.check(f"secretword {marked}")
    one.page.select_option("#level", "0.001")
    one.verdict()
    one.page.click("#tab-audit")
    one.addresses += [one.page.url, *(request.url for request in one.requests)]
    assert one.page.url == f"{one.url}/#tab=audit&level=0.001"
    assert not [address for address in one.addresses if "secret" in address or "bridge" in address]
    stored = one.page.evaluate("JSON.stringify([localStorage, sessionStorage])")
    assert "secret" not in stored
    assert "bridge" not in stored


def test_link_carries_the_settings(desk, marked):
    one = desk("#tab=check&level=0.0001")
    assert one.page.input_value("#level") == "0.0001"
    one.check(marked)
    expect(one.page.locator("#numbers")).to_contain_text("0.01%")
    assert desk("#tab=audit").page.locator("#panel-audit").is_visible()
    assert desk("#level=7&tab=<b>").page.input_value("#level") == "0.01"


def test_policy_forbids_inline_script_and_style(desk):
    one = desk()
    violations = one.page.evaluate(
        """() => new Promise((done) => {
          const seen = [];
          addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
          const image = document.createElement("div");
          image.setAttribute("style", "color: red");
          const script = document.createElement("script");
          script.textContent = "window.owned = true";
          document.body.append(image, script);
          setTimeout(() => done([seen.map((d) => d.split("-")[0]), window.owned === true]), 300);
        })"""
    )
    assert violations == [["style", "script"], False]
    one.errors.clear()  # Chromium logs it, too


def test_busy_service_is_retried(desk, unmarked):
    one = desk()
    answers = iter([503, 429])

    def busy(route):
        status = next(answers, None)
        if status is None:
            return route.continue_()
        return route.fulfill(status=status, headers={"Retry-After": "0"}, json={"error": {"message": "busy"}})

    one.page.route("**/v1/detect", busy)
    assert one.check(unmarked).startswith("No mark")
    one.errors.clear()
