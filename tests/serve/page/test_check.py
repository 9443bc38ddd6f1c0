"""The check tab: input, verdict, tokens, passages, plot and warnings."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from tests.serve.test_uploads import docx, pdf

pytestmark = pytest.mark.serve

SCORED = "#tokens [data-index]"


def test_pasted_text_is_checked_at_once(desk, marked):
    one = desk()
    assert one.check(marked) == "Marked"
    page = one.page
    sure = re.compile(r"^(Fewer than )?1 in ([\d,]+|a billion) unmarked texts scores? this high\.$")
    expect(page.locator("#sure")).to_have_text(sure)
    expect(page.locator("#numbers")).to_contain_text("p-value")
    expect(page.locator("#caveat-list")).to_contain_text("It does not say who wrote the text")
    expect(page.locator("#status")).to_have_text(re.compile(r"^Marked\. .* marked passage"))


def test_unmarked_text_is_not_marked(desk, unmarked):
    one = desk()
    assert one.check(unmarked) == "Not marked"
    expect(one.page.locator("#said")).to_contain_text("No mark")
    expect(one.page.locator("#caveat-list p").first).to_contain_text("does not mean that a person wrote")
    expect(one.page.locator("#sure")).to_contain_text("unmarked texts score")


def test_button_and_keyboard_check_a_typed_text(desk, unmarked):
    page = desk().page
    page.fill("#text", unmarked)
    expect(page.locator("#result")).to_be_hidden()  # typing sends no request
    page.click("#check")
    expect(page.locator("#verdict")).to_have_text("Not marked")
    page.click("#clear")
    expect(page.locator("#result")).to_be_hidden()
    expect(page.locator("#text")).to_be_focused()
    page.fill("#text", unmarked)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#verdict")).to_have_text("Not marked")


def test_short_text_gets_a_reason_instead_of_a_verdict(desk):
    one = desk()
    assert one.check("the old bridge") == "Too short to say"
    expect(one.page.locator("#sure")).to_be_hidden()
    expect(one.page.locator("#warnings .warning")).to_contain_text("A verdict needs at least 16")


def test_empty_text_is_an_error(desk):
    page = desk().page
    page.click("#check")
    expect(page.get_by_role("alert")).to_have_text("There is no text yet. Paste one or drop a file.")


@pytest.mark.parametrize("kind", [".txt", ".md", ".docx", ".pdf"])
def test_dropped_file_is_checked(desk, marked, kind):
    words = marked.split()
    lines = [" ".join(words[i : i + 12]) for i in range(0, len(words), 12)]
    body = f"<w:p><w:r><w:t>{marked}</w:t></w:r></w:p>"
    content = {".docx": docx(body), ".pdf": pdf([lines])}.get(kind, marked.encode())
    one = desk()
    one.drop({f"letter{kind}": content})
    assert one.verdict() == "Marked"
    assert one.page.input_value("#text").split() == words


def test_chosen_file_is_checked(desk, unmarked):
    one = desk()
    file = {"name": "a.txt", "mimeType": "text/plain", "buffer": unmarked.encode()}
    one.page.set_input_files("#file", files=[file])
    assert one.verdict() == "Not marked"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.exe", b"MZ", "unsupported file type"),
        ("a.txt", b"caf\xe9", "save it as UTF-8"),
        ("a.pdf", b"no pdf", "damaged"),
    ],
)
def test_unreadable_file_is_an_error(desk, name, content, said):
    one = desk()
    one.drop({name: content})
    expect(one.page.get_by_role("alert")).to_contain_text(said)
    one.errors.clear()  # Chromium logs the error response


def test_tokens_are_coloured_by_score(desk, marked):
    one = desk()
    one.check(marked)
    classes = one.page.eval_on_selector_all(SCORED, "(all) => all.map((e) => e.className)")
    steps = [name for name in classes if re.fullmatch(r"[pm][1-4]", name)]
    green = sum(name.startswith("p") for name in steps)
    assert len(steps) > 20
    assert green > 0.6 * len(steps)  # in unmarked text, half of them would be
    strong = next(name for name in steps if name in ("p3", "p4"))
    assert "rgba(22, 163, 74" in one.background(f"#tokens .{strong}")
    assert one.page.locator("#tokens").inner_text().split() == marked.split()


def test_green_and_red_differ_without_colour(desk, marked):
    one = desk()
    one.check(marked)
    styles = one.page.evaluate(
        "['p', 'm'].map((sign) => [2, 3, 4].map((step) => {"
        " const i = document.querySelector(`.swatches .${sign}${step}`);"
        " return getComputedStyle(i).borderBottomStyle; }))"
    )
    assert styles == [["solid"] * 3, ["dotted"] * 3]


def test_palette_can_be_chosen(desk, marked):
    one = desk()
    one.check(marked)
    assert "rgba(22, 163, 74" in one.background("#tokens .p3")
    one.page.get_by_role("button", name="Use blue and orange").click()
    assert "rgba(37, 99, 235" in one.background("#tokens .p3")
    assert one.serious() == []
    one.page.reload()
    expect(one.page.locator("html")).to_have_class("blue")  # remembered


def test_pointing_at_a_token_shows_its_score(desk, marked):
    one = desk()
    one.check(marked)
    page = one.page
    expect(page.locator("#tip")).to_be_hidden()
    page.locator("#tokens .p4, #tokens .p3").first.hover()
    expect(page.locator("#tip")).to_be_visible()
    expect(page.locator("#tip")).to_contain_text(
        re.compile(r"“\S+” \+\d\.\d\d, for a mark: higher than \d\d in 100")
    )
    page.locator("#tokens .u").first.hover()
    expect(page.locator("#tip")).to_contain_text("not scored")
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()


def test_marked_passage_is_framed_and_listed(desk, marked):
    one = desk()
    one.check(marked)
    page = one.page
    frame = page.locator("#tokens .passage")
    expect(frame).to_have_count(1)
    assert frame.evaluate("(e) => getComputedStyle(e).borderTopStyle") == "solid"
    expect(frame).to_have_attribute("aria-label", "marked passage 1")
    page.locator("#passage-list button").click()
    expect(page.locator("#tokens .passage .current")).to_have_count(1)
    expect(page.locator("#token-said")).to_contain_text("in marked passage 1")


def test_frame_skips_blank_lines(desk, marked):
    words = marked.split()
    one = desk()
    one.check(" ".join(words[:150]) + "\n\n" + " ".join(words[150:]))
    frames = one.page.locator("#tokens .passage")
    said = [frame.get_attribute("aria-label") for frame in frames.all()]
    assert said == ["marked passage 1", "marked passage 1, continued"]
    assert not [text for text in frames.all_inner_texts() if "\n" in text]


def test_running_score_is_plotted_and_described(desk, marked):
    one = desk()
    one.check(marked)
    page = one.page
    z = float(page.locator("#numbers dd").nth(1).inner_text())
    assert page.locator("#plot path.curve").get_attribute("d").count("L") > 50
    said = page.get_by_role("img").evaluate(
        "(e) => document.getElementById(e.getAttribute('aria-labelledby')).innerText"
    )
    assert f"ends at +{z:.2f}, above the 2.33" in said


def test_changing_the_level_repeats_the_check(desk, marked):
    one = desk()
    one.check(marked)
    page = one.page
    page.locator("summary", has_text="Settings").click()
    with page.expect_request("**/v1/detect") as asked:
        page.select_option("#level", "0.0001")
    assert asked.value.post_data_json["fpr"] == 0.0001
    one.verdict()
    expect(page.locator("#plot-said")).to_contain_text("3.72")


def test_offsets_of_astral_characters(desk, marked):
    one = desk()
    one.check("🌧🌧🌧 " + marked + " 𝔘𝔫𝔦 🌧")
    shown = one.page.locator("#tokens").inner_text()
    assert shown.startswith("🌧🌧🌧 ")
    assert shown.rstrip().endswith("𝔘𝔫𝔦 🌧")
    frame = one.page.locator("#tokens .passage").first.inner_text()
    assert frame.strip() in "🌧🌧🌧 " + marked


def test_right_to_left_text(desk):
    one = desk()
    text = "הגשר הישן מעל הנהר <b> " * 30
    one.check(text)
    tokens = one.page.locator("#tokens")
    assert tokens.evaluate("(e) => getComputedStyle(e).direction") == "rtl"
    assert tokens.text_content() == text


def test_oversized_text_is_an_error(desk):
    one = desk()
    one.paste("word " * 200_001)
    expect(one.page.get_by_role("alert")).to_contain_text("1,000,000 bytes")
    expect(one.page.locator("#result")).to_be_hidden()
    one.errors.clear()  # Chromium logs the error response


@pytest.fixture
def told(desk):
    """Open the page on a service with modified answers: `told(language=…)`."""

    def open_with(**changes: object):
        one = desk()

        def change(route):
            response = route.fetch()
            body = response.json()
            body["results"][0].update(changes)
            route.fulfill(response=response, json=body)

        one.page.route("**/v1/detect", change)
        return one

    return open_with


def test_unsupported_language_gives_a_warning(told, unmarked):
    one = told(language={"code": "el", "supported": False})
    one.check(unmarked)
    expect(one.page.locator("#warnings .warning strong")).to_have_text("The encoder does not support Greek.")
    expect(one.page.get_by_role("status")).to_contain_text("does not support Greek")


def test_partly_scored_text_gives_a_warning(told, unmarked):
    one = told(truncated=True, characters=400_000, scored_characters=131_072)
    one.check(unmarked)
    expect(one.page.locator("#warnings .warning")).to_contain_text("131,072 of 400,000 characters")


def test_numbers_that_are_not_finite_are_not_shown(told, marked):
    one = told(z=None, p_value=None, one_in="an unknown share")
    one.check(marked)
    expect(one.page.locator("#numbers")).to_contain_text("unknown")


def test_verdict_is_never_shown_beside_another_text(desk, marked):
    one = desk()
    one.check(marked)
    page = one.page
    expect(page.locator("#stale")).to_be_hidden()
    page.locator("#text").press_sequentially(" and more")
    expect(page.locator("#stale")).to_contain_text("The text has changed since")
    page.route("**/v1/detect", lambda route: route.abort())
    page.click("#check")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.locator("#result")).to_be_hidden()
    one.errors.clear()
