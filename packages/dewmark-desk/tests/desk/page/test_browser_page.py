"""The detector of the browser in a real browser: from a disk and over HTTP, and 500 golden texts."""

from __future__ import annotations

import functools
import http.server
import threading

import pytest
from tests.desk.golden_texts import golden_texts
from tests.desk.page.desk import serious
from tests.desk.test_browser_detector import agrees, folder, public  # noqa: F401 - fixtures

pytestmark = [pytest.mark.serve]


class _Silent(http.server.SimpleHTTPRequestHandler):
    def guess_type(self, path):
        """Call everything UTF-8, as many servers do; a script's byte order mark must count for more."""
        return f"{super().guess_type(path)}; charset=utf-8"

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address(folder, request):  # noqa: F811
    if request.param == "file":
        yield folder.as_uri() + "/index.html"
        return
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Silent, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture
def opened(browser, address):
    context = browser.new_context(viewport={"width": 375, "height": 700}, locale="de-DE")
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(address)
    page.wait_for_selector("html[data-ready]", state="attached")
    yield page, errors
    context.close()


@pytest.mark.parametrize("address", ["file", "http"], indirect=True)
def test_a_person_checks_a_text_on_a_phone(opened):
    page, errors = opened
    page.context.set_offline(True)
    assert page.locator("html").get_attribute("lang") == "de"
    page.get_by_label("Zu prüfender Text").fill(golden_texts(1)[0])
    page.get_by_role("button", name="Prüfen").click()
    page.wait_for_selector("#result:not([hidden])")
    assert page.evaluate("document.activeElement.id") == "verdict"
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.get_by_label("Sprache").select_option(label="français")
    assert "clé" in page.locator("#about").inner_text()
    assert errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", ["file"], indirect=True)
def test_axe_finds_no_serious_violation(opened, scheme):
    page, _ = opened
    page.emulate_media(color_scheme=scheme)
    assert serious(page) == []
    page.get_by_label("Zu prüfender Text").fill(golden_texts(1)[0])
    page.get_by_role("button", name="Prüfen").click()
    page.wait_for_selector("#result:not([hidden])")
    assert serious(page) == []


@pytest.mark.parametrize("address", ["http"], indirect=True)
def test_no_text_can_leave_the_page(opened):
    page, errors = opened
    said = page.evaluate("fetch('/?text').then(() => 'sent', () => 'refused')")
    assert said == "refused"
    assert any("Content Security Policy" in each for each in errors)


@pytest.mark.parametrize("address", ["file"], indirect=True)
def test_chromium_says_what_python_says_of_500_texts(opened, public):  # noqa: F811
    page, _ = opened
    texts, found = golden_texts(500), []
    for i in range(0, len(texts), 25):
        found += page.evaluate(
            "texts => texts.map(text => ({forms: detector.words.forms(text), ...detector.detect(text)}))",
            texts[i : i + 25],
        )
    agrees(found, public, texts)
