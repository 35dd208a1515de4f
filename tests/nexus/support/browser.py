"""Debian's Chromium, driven by playwright, and what is asked of a page in it."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Request, async_playwright

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM: Final = next((path for path in map(shutil.which, _NAMES) if path), None)
MISSING: Final = f"no browser: none of {', '.join(_NAMES)} is installed (CONTRIBUTING.md); the HTML is tested alone"
WIDTHS: Final = (1280, 400)
Scheme = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")

# What is in a page besides what its templates have: elements that do or load something, attributes that run or style.
_ASKED: Final = """() => {
  const all = [...document.querySelectorAll('*')];
  const kinds = {};
  for (const each of all) {
    const kind = [each.localName, ...[...each.attributes].map(one => one.name.toLowerCase()).sort()].join(' ');
    kinds[kind] = (kinds[kind] || 0) + 1;
  }
  return {
    kinds,
    text: document.documentElement.textContent,
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    wider: all.filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1
      && !each.closest('.scroll, pre, svg, textarea')).slice(0, 5).map(each => each.outerHTML.slice(0, 120)),
    pwned: window.pwned === undefined ? null : String(window.pwned),
  };
}"""
# How the element that has the focus shows it.
_FOCUSED: Final = """() => {
  const each = document.activeElement;
  if (!each || each === document.body) return null;
  const style = getComputedStyle(each);
  const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
  return [each.outerHTML.slice(0, 120), shown];
}"""


@dataclass(slots=True)
class Seen:
    """A page as the browser has it.

    Attributes:
        kinds: how often each element with these names of attributes is there, as `tag attribute attribute`.
        text: the text content.
        wide: by how many pixels the page is wider than the window, and `wider` some of the elements that are.
        faults: what the browser said, ran, asked elsewhere or showed as a dialog.
    """

    status: int
    html: str
    kinds: dict[str, int]
    text: str
    wide: int
    wider: list[str]
    faults: list[str] = field(default_factory=list)


class Window:
    """A window of the browser. It notes whatever a page does that none may."""

    def __init__(self, context: BrowserContext, page: Any, address: str) -> None:
        self.page = page
        self._faults: list[str] = []
        self._address = address
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._faults.append(f"an error: {error}"))
        page.on("dialog", self._on_dialog)
        page.on("popup", lambda _page: self._faults.append("another window"))
        context.on("request", self._on_request)

    async def open(self, url: str) -> Seen:
        """Go to a page."""
        self._faults.clear()
        answer = await self.page.goto(url, wait_until="load")
        asked = await self.page.evaluate(_ASKED)
        faults = [*self._faults]
        if asked["pwned"] is not None:
            faults.append(f"a script ran: {asked['pwned']}")
        if self.page.url != url:
            faults.append(f"went on to {self.page.url}")
        html = await answer.text()
        return Seen(answer.status, html, asked["kinds"], asked["text"], asked["wide"], asked["wider"], faults)

    async def unfocused(self, most: int) -> list[str]:
        """Of the first elements that the tabulator reaches, those that do not show that they have the focus."""
        found = []
        for _ in range(most):
            await self.page.keyboard.press("Tab")
            focused = await self.page.evaluate(_FOCUSED)
            if focused is None:
                break
            if not focused[1]:
                found.append(focused[0])
        return found

    def _on_console(self, message: ConsoleMessage) -> None:
        # Where a page answers with an error the browser says so itself.
        if "Failed to load resource: the server responded with a status of" not in message.text:
            self._faults.append(f"on the console: {message.text}")

    async def _on_dialog(self, dialog: Dialog) -> None:
        self._faults.append(f"a dialog: {dialog.message}")
        await dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(f"{self._address}/console"):
            self._faults.append(f"asked for {request.url}")


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """A browser without a window. Only where `CHROMIUM` is there."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_window(
    browser: Browser, address: str, *, width: int = WIDTHS[0], scheme: Scheme = "light", scripts: bool = True
) -> AsyncIterator[Window]:
    """A window of this width on the console at `address`."""
    context = await browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=scripts
    )
    try:
        yield Window(context, await context.new_page(), address)
    finally:
        await context.close()
