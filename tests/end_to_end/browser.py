"""The operator's browser: Debian's Chromium, which notes everything that a page should not have done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.support.optional import require_program
from tests.support.processes import ROOT

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = (390, 1280, 1920)
SCHEMES = ("light", "dark")
SHOTS = ROOT / "var" / "screenshots"
# What axe calls these keeps somebody from using the page.
SERIOUS = ("serious", "critical")
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}


# What a page waits for here happens within seconds, of which a busy machine may have few.
expect.set_options(timeout=20_000)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser; skipped, or failed in CI, where there is none."""
    program = require_program("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Operator:
    """Somebody at a browser, on the gateway at `url`. Call `assert_clean` at the end."""

    def __init__(self, browser: Browser, url: str, scheme: str = "light") -> None:
        self.url = url
        self.context: BrowserContext = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
        self.context.set_default_timeout(20_000)
        self.complaints: list[str] = []
        self.page: Page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        asked = urlsplit(request.url)
        if asked.scheme != "data" and asked.netloc != urlsplit(self.url).netloc:
            self.complaints.append(f"asked another host: {request.url}")

    def sign_in(self, password: str) -> None:
        self.open("login/")
        self.page.fill("#id_username", "admin")
        self.page.fill("#id_password", password)
        self.page.click("input[type=submit]")
        self.page.wait_for_url("**/admin/")

    def open(self, path: str = "") -> None:
        answer = self.page.goto(f"{self.url}/admin/{path}")
        assert answer is not None
        assert answer.ok, f"{path} answered {answer.status}"

    def act(self, action: str, *rows: str) -> None:
        """Run an action of a list on the rows that have these texts; the label of the action begins with `action`."""
        for row in rows:
            self.page.locator("#result_list tbody tr", has_text=row).locator(".action-select").check()
        select = self.page.locator("select[name=action]")
        label = select.locator("option", has_text=re.compile(f"^{action}")).first.inner_text()
        select.select_option(label=label)
        self.page.click("button[name=index]")

    def said(self) -> str:
        """What the page says came of what was done."""
        return self.page.locator("ul.messagelist").inner_text()

    def shoot(self, name: str) -> None:
        """Keep a picture of the page in every width."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        scheme = self.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            self.page.screenshot(path=str(Path(SHOTS) / f"{name}-{width}-{scheme}.png"), full_page=True)
        self.page.set_viewport_size({"width": 1280, "height": 900})

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return width

    def assert_accessible(self) -> None:
        """Fail with what axe finds serious on this page."""
        # What axe itself does to the page is none of the page's faults.
        before = list(self.complaints)
        found = Axe().run(self.page, options=RULES).response["violations"]
        self.complaints[:] = before
        serious = [
            f"{violation['id']}: {violation['help']} ({node['html'][:200]})"
            for violation in found
            if violation["impact"] in SERIOUS
            for node in violation["nodes"]
        ]
        assert not serious, f"{self.page.url}\n" + "\n".join(serious)

    def assert_clean(self) -> None:
        """Fail with everything that the pages complained about."""
        assert not self.complaints, "\n".join(self.complaints)
