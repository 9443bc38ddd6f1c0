"""The check tab: input, verdict, passages, tokens, plot, warnings, several files and history."""

from __future__ import annotations

import csv
import hashlib
import re

import pytest
from playwright.sync_api import expect
from tests.desk.live import live_service
from tests.desk.test_documents import docx, odt, pdf

from dewmark_desk.signing import SigningKey, verify

pytestmark = pytest.mark.serve

SCORED = "#tokens [data-index]"
FOUND = re.compile(r"carries the mark of acme")
NONE = "No mark of acme was found in this text."


def test_pasted_text_is_checked_at_once(desk, marked):
    one = desk()
    assert FOUND.search(one.check(marked))
    page = one.page
    sure = re.compile(r"^If it carried no mark, (fewer than )?1 in ([\d,]+|a billion) keys would still find")
    expect(page.locator("#sure")).to_have_text(sure)
    expect(page.locator("#meaning-not")).to_contain_text("who wrote the text, or why")
    expect(page.locator("#meaning-keys")).to_contain_text("counts keys, not texts")
    expect(page.locator("#status")).to_have_text(FOUND)
    expect(page.locator("#numbers")).to_be_hidden()  # numbers are behind "Details"
    page.locator("#details summary").click()
    expect(page.locator("#numbers")).to_contain_text("p-value")


def test_unmarked_text_is_not_marked(desk, unmarked):
    one = desk()
    assert one.check(unmarked) == NONE
    expect(one.page.locator("#meaning-not")).to_contain_text("that a person wrote it")
    expect(one.page.locator("#sure")).to_contain_text("keys would find as much or more")
    for hidden in ("#map", "#passages", "#power"):  # nothing was measured for this detector
        expect(one.page.locator(hidden)).to_be_hidden()


def test_verdict_has_a_neutral_colour(desk, marked, unmarked):
    one = desk()
    seen = set()
    for text in (marked, unmarked, "the old bridge"):
        one.check(text)
        style = "(e) => [getComputedStyle(e).borderTopColor, getComputedStyle(e.querySelector('h2')).color]"
        seen.add(tuple(one.page.locator("#verdict-card").evaluate(style)))
    (colours,) = seen  # the same for every verdict
    for colour in colours:
        red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
        assert blue >= green >= red, colour


def test_button_and_keyboard_check_a_typed_text(desk, unmarked):
    page = desk().page
    page.fill("#text", unmarked)
    expect(page.locator("#result")).to_be_hidden()  # typing sends no request
    page.click("#check")
    expect(page.locator("#verdict")).to_have_text(NONE)
    page.click("#clear")
    expect(page.locator("#result")).to_be_hidden()
    expect(page.locator("#text")).to_be_focused()
    page.fill("#text", unmarked)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#verdict")).to_have_text(NONE)


def test_short_text_gets_a_reason_instead_of_a_verdict(desk):
    one = desk()
    assert one.check("the old bridge and the water of the river") == "This text is too short to say."
    expect(one.page.locator("#sure")).to_contain_text("a verdict needs at least 16. Add more of the text.")
    for hidden in ("#details", "#plot", "#scores", "#meaning-keys"):  # no p, no z, no curve
        expect(one.page.locator(hidden)).to_be_hidden()


@pytest.mark.parametrize("kind", [".txt", ".md", ".docx", ".odt", ".pdf"])
def test_dropped_file_is_checked(desk, marked, kind):
    words = marked.split()
    lines = [" ".join(words[i : i + 12]) for i in range(0, len(words), 12)]
    body = f"<w:p><w:r><w:t>{marked}</w:t></w:r></w:p>"
    made = {".docx": docx(body), ".odt": odt(f"<text:p>{marked}</text:p>"), ".pdf": pdf([lines])}
    content = made.get(kind, marked.encode())
    one = desk()
    one.drop({f"letter{kind}": content})
    assert FOUND.search(one.verdict())
    assert one.page.input_value("#text").split() == words
    expect(one.page.locator("#meta")).to_contain_text(re.compile(rf"^letter\{kind} · .*20\d\d, \d"))


def test_latin_1_file_is_read_with_a_warning(desk, unmarked):
    one = desk()
    one.drop({"alt.txt": f"Käfer über Bäumen {unmarked}".encode("latin-1")})
    one.verdict()
    assert one.page.input_value("#text").startswith("Käfer über Bäumen ")
    expect(one.page.locator("#warnings")).to_contain_text("read as Windows-1252")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.exe", b"MZ", "unsupported file type"),
        ("a.txt", "Привет, мир".encode("cp1251"), "save it as UTF-8"),
        ("a.pdf", b"no pdf", "damaged"),
    ],
)
def test_unreadable_file_is_an_error(desk, marked, name, content, said):
    one = desk()
    one.check(marked)
    one.drop({name: content})
    expect(one.page.get_by_role("alert")).to_contain_text(said)
    expect(one.page.get_by_role("alert")).to_contain_text(name)
    expect(one.page.locator("#result")).to_be_hidden()  # not the verdict on another text
    expect(one.page.locator("#text")).to_have_value("")
    one.errors.clear()  # Chromium logs the error response


def test_tokens_are_coloured_by_score(desk, marked):
    one = desk()
    one.check(marked)
    expect(one.page.locator("#legend")).to_be_hidden()
    one.page.click("#scores")
    classes = one.page.eval_on_selector_all(SCORED, "(all) => all.map((e) => e.className)")
    steps = [name for name in classes if re.fullmatch(r"[pm][1-4]", name)]
    green = sum(name.startswith("p") for name in steps)
    assert len(steps) > 20
    assert green > 0.6 * len(steps)  # in unmarked text, half of them would be
    strong = next(name for name in steps if name in ("p3", "p4"))
    assert "rgba(59, 99, 200" in one.background(f"#tokens .{strong}")
    one.page.get_by_role("button", name="Hide word scores").click()
    assert one.background(f"#tokens .{strong}") == "rgba(0, 0, 0, 0)"
    assert one.page.locator("#tokens").inner_text().split() == marked.split()


def test_colours_differ_without_hue(desk, marked):
    one = desk()
    one.check(marked)
    one.page.click("#scores")
    styles = one.page.evaluate(
        "['p', 'm'].map((sign) => [2, 3, 4].map((step) => {"
        " const i = document.querySelector(`.swatches .${sign}${step}`);"
        " return getComputedStyle(i).borderBottomStyle; }))"
    )
    assert styles == [["solid"] * 3, ["dotted"] * 3]


def test_pointing_at_a_token_shows_its_score(desk, marked):
    one = desk()
    one.check(marked)
    page = one.page
    page.locator("#tokens .p4, #tokens .p3").first.hover()
    expect(page.locator("#tip")).to_be_hidden()  # only where scores are shown
    page.click("#scores")
    page.locator("#verdict").hover()
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
    assert frame.evaluate("(e) => getComputedStyle(e).borderBottomStyle") == "solid"
    expect(frame).to_have_attribute("aria-label", "marked passage 1")
    quoted = page.locator("#passage-list blockquote").inner_text()
    head, tail = quoted.split(" […] ")
    assert head.strip("…") in frame.inner_text()
    assert tail.strip("…") in frame.inner_text()
    page.locator("#passage-list button").click()
    expect(frame).to_be_focused()
    expect(page.locator("#map .place")).to_have_count(1)


def test_running_score_is_plotted_and_described(desk, marked):
    one = desk()
    one.check(marked)
    page = one.page
    page.locator("#details summary").click()
    z = float(page.locator("#numbers dd").nth(1).inner_text())
    assert page.locator("#plot path.curve").get_attribute("d").count("L") > 50
    said = page.locator("#plot svg").evaluate(
        "(e) => document.getElementById(e.getAttribute('aria-labelledby')).innerText"
    )
    assert f"ends at +{z:.2f}, above the 2.41" in said


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


@pytest.fixture
def told(desk):
    """Open the page on a service with modified answers: `told(language=…)`."""

    def open_with(*, locale: str = "en-US", **changes: object):
        one = desk(locale=locale)

        def change(route):
            response = route.fetch()
            body = response.json()
            body["results"][0].update(changes)
            route.fulfill(response=response, json=body)

        one.page.route("**/v1/detect", change)
        return one

    return open_with


def test_unknown_language_gets_no_verdict(told, unmarked):
    one = told(verdict="unsupported_language", language={"code": "cy", "name": "Welsh", "supported": False})
    assert one.check(unmarked) == "There is no verdict on texts in Welsh."
    expect(one.page.locator("#sure")).to_contain_text("needs an audit of this key on such texts")
    for hidden in ("#details", "#plot", "#scores", "#meaning-keys"):
        expect(one.page.locator(hidden)).to_be_hidden()


def test_power_is_told_with_its_basis(told, unmarked):
    power = {"found_in_100": 93, "host": "smollm2-135m", "texts": 32, "own": False, "language": "en"}
    one = told(power=power)
    one.check(unmarked)
    page = one.page
    expect(page.locator("#power")).to_have_text(
        "A marked text of this length would be found in 93 of 100 cases."
    )
    expect(page.locator("#power-basis")).to_contain_text(
        "Measured on 32 texts that smollm2-135m wrote, not on the"
    )
    one = told(power={**power, "own": True}, language={"code": "en", "name": "English", "supported": True})
    one.check(unmarked)
    expect(one.page.locator("#power-basis")).to_contain_text("Measured by the operator on 32 texts")
    expect(one.page.locator("#power-basis")).not_to_contain_text("not known")
    one = told(power=power, language={"code": "fr", "name": "French", "supported": True})
    one.check(unmarked)
    expect(one.page.locator("#power-basis")).to_contain_text(
        "The measured texts are in English; how many are found in French is not known."
    )


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


def test_example_can_be_tried(desk):
    one = desk()
    page = one.page
    expect(page.locator("#whose")).to_contain_text(re.compile(r"mark of one key, acme \([0-9a-f]{8}\)"))
    page.click("#example-marked")
    expect(page.locator("#meta")).to_contain_text("Example, marked in part")
    expect(page.locator("#warnings")).to_contain_text("No AI system wrote them.")
    assert page.input_value("#text").startswith("The ferry to the island")
    page.click("#example-unmarked")
    expect(page.locator("#meta")).to_contain_text("Moby-Dick")
    expect(page.locator("#verdict")).to_have_text(NONE)


def test_several_files_are_listed(desk, marked, unmarked):
    one = desk()
    page = one.page
    files = {"one.txt": unmarked.encode(), "two.exe": b"MZ", "three.txt": marked.encode()}
    one.drop({**files, "four.txt": b"the old bridge"})
    rows = page.locator("#history-rows tr")
    expect(rows).to_have_count(4)
    expect(page.locator("#history-expect")).to_contain_text(
        "2 texts at level 1%: if none of them carries a mark"
    )
    said = [row.locator("td").all_inner_texts()[:2] for row in rows.all()]
    assert said == [
        ["one.txt", "No mark found"],
        ["two.exe", "Not checked"],
        ["three.txt", "Marked"],
        ["four.txt", "Too short to say"],
    ]
    expect(page.locator("#meta")).to_contain_text("one.txt")
    assert one.serious() == []
    page.get_by_role("button", name="three.txt").click()
    expect(page.locator("#verdict")).to_have_text(FOUND)
    expect(page.locator("#text")).to_have_value(marked)
    page.get_by_role("button", name="two.exe").click()
    expect(page.get_by_role("alert")).to_contain_text("two.exe: unsupported file type")
    expect(page.locator("#result")).to_be_hidden()


def test_table_of_verdicts_is_saved_with_a_signature(desk, marked, unmarked, tmp_path, monkeypatch):
    monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))
    signer = SigningKey.generate()
    signer.save(tmp_path / "desk.pem")
    with live_service(tmp_path, signers=(str(tmp_path / "desk.pem"),)) as url:
        page = (one := desk(url=url)).page
        expect(page.locator("#history-signed")).to_be_hidden()
        one.drop({"one.txt": unmarked.encode(), "two.exe": b"MZ", "three.txt": marked.encode()})
        expect(page.locator("#history-running")).to_be_hidden()
        saved = {}
        page.on("download", lambda each: saved.update({each.suggested_filename: each}))
        page.click("#history-signed")
        expect(page.locator("#history-signed")).to_have_text("Saved")
        page.wait_for_timeout(500)  # the second file may still be on its way
        files = {name: each.path().read_bytes() for name, each in saved.items()}
    assert sorted(files) == ["verdicts.csv", "verdicts.jws"]
    claims = verify(files["verdicts.jws"].decode(), [signer.public]).payload
    assert claims["files"] == {"verdicts.csv": hashlib.sha256(files["verdicts.csv"]).hexdigest()}
    rows = list(csv.DictReader(files["verdicts.csv"].decode().splitlines()))
    assert [(row["text"], row["verdict"]) for row in rows] == [
        ("one.txt", "not_marked"),
        ("three.txt", "marked"),
    ]


def test_history_stays_in_the_browser_without_texts(desk, marked, unmarked):
    one = desk()
    page = one.page
    one.check(marked)
    one.drop({"secret plan.txt": unmarked.encode()})
    expect(page.locator("#meta")).to_contain_text("secret plan.txt")
    sent = len([request for request in one.requests if "/v1/" in request.url])
    page.reload()
    expect(page.locator("#history-count")).to_have_text("(2)")
    page.locator("#history summary").click()
    expect(page.locator("#history-rows tr").first).to_contain_text("secret plan.txt")
    expect(page.locator("#history-rows tr").nth(1)).to_contain_text("Pasted text")
    expect(page.locator("#history-rows button")).to_have_count(0)  # results were not kept
    assert unmarked.split(".")[0][:30] not in page.evaluate("JSON.stringify(localStorage)")
    later = [request.url for request in one.requests if "/v1/" in request.url][sent:]
    assert not [url for url in later if "whoami" not in url and "jobs" not in url]
    page.click("#history-forget")
    expect(page.locator("#history")).to_be_hidden()
    assert page.evaluate("localStorage.getItem('dewmark-history')") == "[]"


def test_printed_page_has_the_result_and_its_details(desk, marked, tmp_path):
    one = desk()
    one.drop({"letter.txt": marked.encode()})
    assert FOUND.search(one.verdict())
    page = one.page
    page.evaluate("window.print = () => { window.printed = true; }")
    page.click("#print")
    assert page.evaluate("window.printed")
    page.emulate_media(media="print")
    for shown in ("#verdict", "#meta", "#passages", "#tokens", "#meaning"):
        expect(page.locator(shown)).to_be_visible()
    for hidden in ("#check-form", ".top", "#print", "#history"):
        expect(page.locator(hidden)).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("#numbers")).to_contain_text("p-value")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(page.locator("#numbers")).to_be_hidden()


@pytest.mark.parametrize(
    ("locale", "found", "heading"),
    [
        ("de-DE", "trägt", "Was das bedeutet"),
        ("fr-FR", "porte", "Ce que cela signifie"),
        ("pl-PL", "carries", "What this means"),
    ],
)
def test_page_speaks_the_language_of_the_browser(desk, marked, locale, found, heading):
    one = desk(locale=locale)
    page = one.page
    assert found in one.check(marked)
    expect(page.get_by_role("heading", name=heading)).to_be_visible()
    assert page.locator("html").get_attribute("lang") == ("en" if locale == "pl-PL" else locale[:2])
    assert one.serious() == []
    page.click("#tab-audit")
    assert one.serious() == []


def test_language_can_be_chosen_and_is_remembered(desk, marked):
    one = desk()
    page = one.page
    one.check(marked)
    page.click("#scores")
    page.select_option("#language", "de")
    expect(page.locator("#verdict")).to_contain_text("trägt")
    expect(page.locator("#scores")).to_have_text("Wortwerte verbergen")
    expect(page.locator("#history-rows")).to_contain_text("Eingefügter Text")
    expect(page.locator("#check")).to_have_text("Prüfen")
    page.reload()
    expect(page.locator("#tab-check")).to_have_text("Text prüfen")
    expect(page.locator("#settings-now")).to_have_text("(Niveau 1\u00a0%)")
