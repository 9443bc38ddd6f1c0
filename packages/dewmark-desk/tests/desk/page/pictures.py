"""Take the pictures of the page for ``docs/desk.md``: ``python -m tests.desk.page.pictures``.

A real service runs on the documentation's keys and texts (`tests.docs.outputs`). Fonts differ between
machines, so no test compares the pictures; take them again when the page changes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.desk.page.desk import Desk
from tests.docs.outputs import DOCS, key, rows

from dewmark_audit.negatives import Negatives

PORT = 8953
WIDE, PHONE = {"width": 1280, "height": 1180}, {"width": 390, "height": 844}


def main() -> None:
    """Start the service and take all pictures."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        key("chat").save(folder / "acme.key")
        signer = ["report", "key", "--out", str(folder / "signer.pem")]
        subprocess.run([sys.executable, "-m", "dewmark", *signer], check=True)
        command = ["serve", "--key", f"acme={folder / 'acme.key'}", "--signer", str(folder / "signer.pem")]
        command += ["--port", str(PORT), "--store", f"sqlite:///{folder / 'desk.db'}", "-q"]
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with subprocess.Popen([sys.executable, "-m", "dewmark", *command]) as service:
            try:
                _take(chromium)
                _take_public_page(chromium, folder)
            finally:
                service.terminate()


def _save(page: Page, name: str, *, whole: bool = False) -> None:
    path = DOCS / "images" / f"{name}.png"
    page.screenshot(path=path, full_page=whole)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def _take_public_page(browser: Browser, folder: Path) -> None:
    """The page of `dewmark detector export --public --page`, which needs no service."""
    out = ["--out", str(folder / "public"), "--page", str(folder / "page")]
    command = ["detector", "export", "--key", str(folder / "acme.key"), "--public", *out]
    subprocess.run([sys.executable, "-m", "dewmark", *command], check=True)
    page = browser.new_context(viewport={"width": 900, "height": 900}, locale="en-GB").new_page()
    page.goto((folder / "page" / "index.html").as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.get_by_role("textbox").fill(
        "\n\n".join(row["text"] for name, row in rows().items() if "chat" in name)
    )
    page.get_by_role("button", name="Check").click()
    page.wait_for_selector("#result:not([hidden])")
    _save(page, "public-page")


def _take(browser: Browser) -> None:
    def opened(**options: object) -> Desk:
        expect.set_options(timeout=60_000)
        context = browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **options})
        desk = Desk(context, f"http://127.0.0.1:{PORT}")
        desk.page.set_default_timeout(60_000)
        for _ in range(60):
            try:
                return desk.open()
            except Exception:  # noqa: BLE001 - the service is still starting
                desk.page.wait_for_timeout(1000)
        raise TimeoutError("the service does not answer")

    light = opened()
    light.page.click("#example-marked")
    expect(light.page.locator("#verdict")).to_contain_text("carries the mark")
    _save(light.page, "desk-light")
    dark = opened(color_scheme="dark")
    dark.page.click("#example-marked")
    expect(dark.page.locator("#verdict")).to_contain_text("carries the mark")
    dark.page.get_by_role("button", name="Show word scores").click()
    dark.page.locator("#scored").scroll_into_view_if_needed()
    _save(dark.page, "desk-dark")
    phone = opened(viewport=PHONE, device_scale_factor=2)
    phone.page.click("#example-marked")
    expect(phone.page.locator("#verdict")).to_contain_text("carries the mark")
    phone.page.locator("#verdict-card").scroll_into_view_if_needed()
    _save(phone.page, "desk-phone")
    many = opened()
    many.drop({f"{name}.txt": row["text"].encode() for name, row in rows().items()})
    expect(many.page.locator("#history-expect")).to_contain_text("4 texts")
    many.page.locator("#history").scroll_into_view_if_needed()
    _save(many.page, "desk-many")
    audit = opened()
    audit.page.get_by_role("tab", name="Audit a key").click()
    texts = "".join(json.dumps({"text": text}) + "\n" for text in Negatives.packaged().texts)
    audit.drop({"own.jsonl": texts.encode()}, target="#audit-drop")
    audit.page.get_by_role("button", name="Start audit").click()
    expect(audit.page.get_by_text("Share of unmarked texts called marked")).to_be_visible()
    _save(audit.page, "desk-audit", whole=True)


if __name__ == "__main__":
    main()
