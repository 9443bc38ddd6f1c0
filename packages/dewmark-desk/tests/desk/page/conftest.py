"""One service and one Chromium for all tests of the page, and a fresh browser context for each."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from tests.desk.live import live_service, marked_text, plain_text

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tests.desk.page.desk import Desk

# Without Playwright there is nothing to collect; make test-serve installs it.
collect_ignore_glob = [] if importlib.util.find_spec("playwright") else ["test_*.py"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Debian's chromium: make test-serve")
    expect.set_options(timeout=20_000)  # the machine may be busy
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def service_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service without tokens, on the tiny host, behind a real uvicorn."""
    folder = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEWMARK_CACHE", str(folder / "cache"))
        with live_service(folder) as url:
            yield url


@pytest.fixture
def desk(browser: Browser, service_url: str) -> Iterator[Callable[..., Desk]]:
    """Open the page with options of a browser context (viewport, color_scheme, …); it must log no errors."""
    from tests.desk.page.desk import Desk

    opened = []

    def open_desk(fragment: str = "", *, url: str = service_url, **options: object) -> Desk:
        context = browser.new_context(**{"reduced_motion": "reduce", **options})
        opened.append((context, Desk(context, url)))
        return opened[-1][1].open(fragment)

    yield open_desk
    for context, page in opened:
        context.close()
        assert page.errors == []


@pytest.fixture(scope="session")
def marked() -> str:
    return marked_text()


@pytest.fixture(scope="session")
def unmarked() -> str:
    return plain_text()
