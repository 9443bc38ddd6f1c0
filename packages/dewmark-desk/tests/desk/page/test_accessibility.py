"""Accessibility: keyboard, screen reader, phone, dark mode, large text; axe-core finds no violations."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.serve

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
def test_axe_finds_no_serious_violation(desk, marked, scheme, device):
    one = desk(color_scheme=scheme, **device)
    assert one.serious() == []
    one.check(marked)
    for folded in ("Settings", "Details"):
        one.page.locator("summary", has_text=folded).click()
    assert one.serious() == []
    one.page.click("#scores")
    one.page.locator("#token").focus()
    assert one.serious() == []
    one.page.click("#tab-audit")
    assert one.serious() == []


def test_everything_is_reachable_by_keyboard(desk, unmarked):
    one = desk()
    page = one.page
    reached = []

    def tab() -> str:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        return reached[-1]

    assert tab() == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert "#main" not in page.url
    assert tab() == "text"
    page.keyboard.insert_text(unmarked)
    assert tab() == "check"
    page.keyboard.press("Enter")
    one.verdict()
    while tab() != "scores":
        assert len(reached) < 15, reached
    page.keyboard.press("Enter")
    while tab() != "SUMMARY":
        assert len(reached) < 20, reached  # the tokens are one tab stop, not hundreds
    entry = ["check", "file", "clear", "example-marked", "example-unmarked", "SUMMARY"]
    assert reached[2:] == [*entry, "print", "copy", "scores", "token", "SUMMARY"]


def test_arrow_keys_move_between_tokens(desk, marked):
    one = desk()
    one.check(marked)
    page = one.page
    page.click("#scores")
    page.locator("#details summary").click()
    page.locator("#token").focus()
    page.keyboard.press("Home")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    current = page.locator("#tokens .current")
    expect(current).to_have_attribute("data-index", "5")
    said = page.locator("#token").get_attribute("aria-valuetext")
    assert re.match(rf"6 of \d+: “{re.escape(current.inner_text().strip())}” [+−]\d\.\d\d", said)
    expect(page.locator("#tip")).to_be_visible()
    page.keyboard.press("End")
    expect(current).to_be_in_viewport()
    cursor = page.locator("#plot .cursor")
    assert float(cursor.get_attribute("x1")) > 100.0
    page.keyboard.press("Tab")
    expect(page.locator("#tip")).to_be_hidden()


def test_arrow_keys_move_between_tabs(desk):
    page = desk().page
    page.locator("#tab-check").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-audit")).to_be_focused()
    expect(page.locator("#panel-audit")).to_be_visible()
    expect(page.get_by_role("tab", selected=True)).to_have_text("Audit a key")
    page.keyboard.press("Home")
    expect(page.locator("#panel-check")).to_be_visible()


def test_roles_and_names_for_screen_readers(desk, marked):
    one = desk()
    one.check(marked)
    page = one.page
    expect(page.get_by_role("textbox", name="Text to check")).to_be_visible()
    page.click("#scores")
    page.locator("#details summary").click()
    found = re.compile("carries the mark of acme")
    expect(page.get_by_role("heading", name=found)).to_be_visible()
    expect(page.get_by_role("slider", name="Word")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text(found)
    expect(page.get_by_role("img", name=re.compile("The score ends at"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Where the mark is"))).to_be_visible()
    expect(page.get_by_role("region", name=found)).to_be_visible()


def test_page_fits_a_phone(desk, marked):
    one = desk(**PHONE)
    assert one.width_used() == 360
    one.check(marked + "unbreakable" * 30)
    assert one.width_used() == 360
    expect(one.page.locator("#verdict")).to_be_in_viewport()
    one.page.click("#scores")
    one.page.locator("#tokens .p4, #tokens .p3").first.tap()
    expect(one.page.locator("#token-said")).to_contain_text("for a mark")
    small = one.page.evaluate(
        "[...document.querySelectorAll('#panel-check button, #panel-check .button, [role=tab]')]"
        ".filter((e) => e.offsetParent && !e.matches('.link') && e.offsetHeight < 36).map((e) => e.id)"
    )
    assert small == []
    one.page.click("#tab-audit")
    assert one.width_used() == 360


def test_theme_follows_the_system_until_it_is_chosen(desk):
    dark, light = "rgb(17, 19, 23)", "rgb(246, 247, 248)"
    one = desk(color_scheme="dark")
    assert one.background("body") == dark
    one.page.select_option("#theme", "light")
    assert one.background("body") == light
    one.page.reload()
    assert one.background("body") == light  # remembered
    assert desk(color_scheme="light").background("body") == light


def test_page_fits_at_twice_the_text_size(desk, unmarked):
    one = desk(viewport={"width": 640, "height": 512})  # 1280 px at 200%
    one.check(unmarked)
    assert one.width_used() == 640
