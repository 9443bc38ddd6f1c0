"""The page as a user sees it in a real Chromium: paste, drop, press keys and read."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect

# Playwright cannot drop files: create the events as the browser would.
_DROP = """([target, files]) => {
  const transfer = new DataTransfer();
  for (const [name, content] of files) {
    const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
    transfer.items.add(new File([bytes], name));
  }
  const options = { bubbles: true, cancelable: true, dataTransfer: transfer };
  for (const kind of ["dragenter", "dragover", "drop"]) {
    document.querySelector(target).dispatchEvent(new DragEvent(kind, options));
  }
}"""

_PASTE = """(text) => {
  const transfer = new DataTransfer();
  transfer.setData("text/plain", text);
  const area = document.querySelector("#text");
  const event = new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData: transfer });
  area.dispatchEvent(event);
  area.setRangeText(text, 0, area.value.length, "end");
  area.dispatchEvent(new InputEvent("input", { bubbles: true, inputType: "insertFromPaste" }));
}"""


def serious(page: Page) -> list[str]:
    """Serious and critical violations that axe-core finds on a page, one line each."""
    import axe_playwright_python

    axe = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(axe)
    found = page.evaluate("axe.run()")
    assert len(found["passes"]) > 15  # it did run
    return [
        f"{fault['id']}: {fault['help']}: {node['html'][:200]}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


class Desk:
    """A browser tab with the page; it records requests, URLs and errors."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.page: Page = context.new_page()
        self.page.set_default_timeout(15_000)
        self.requests: list[Any] = []
        self.addresses: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request))  # noqa: PLW0108 - it takes no builtin
        self.page.on("framenavigated", lambda frame: self.addresses.append(frame.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))

    def open(self, fragment: str = "") -> Desk:
        with self.page.expect_response("**/v1/whoami"):
            self.page.goto(self.url + "/" + fragment)
        expect(self.page.locator("#about")).to_contain_text("dewmark 0")
        return self

    def paste(self, text: str) -> None:
        self.page.locator("#text").focus()
        self.page.evaluate(_PASTE, text)

    def drop(self, files: dict[str, bytes], target: str = "#text") -> None:
        encoded = [[name, base64.b64encode(content).decode()] for name, content in files.items()]
        self.page.evaluate(_DROP, [target, encoded])

    def verdict(self) -> str:
        """The verdict, once the check and the search for passages are finished."""
        expect(self.page.locator("#result")).to_be_visible()
        expect(self.page.locator("#check")).to_have_attribute("aria-disabled", "false")
        return self.page.locator("#verdict").inner_text()

    def check(self, text: str) -> str:
        self.paste(text)
        return self.verdict()

    def serious(self) -> list[str]:
        """Serious and critical violations that axe-core finds, one line each."""
        return serious(self.page)

    def width_used(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def background(self, selector: str) -> str:
        return str(
            self.page.evaluate("(s) => getComputedStyle(document.querySelector(s)).backgroundColor", selector)
        )
