"""The console on a running service, read as HTML and in a browser: with data, without, and with hostile data.

A page that is new is found by its name in `nexus.http.console.pages`, and by links from the first page. What only a
form leads to has an address in `_ASKED`.
"""

import json
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from anyio.from_thread import start_blocking_portal
from playwright.async_api import Browser
from pymongo import MongoClient

from nexus.core.models import new_row_id, utc_now
from nexus.http.console.pages import PAGES
from tests.nexus.support.browser import CHROMIUM, MISSING, SCHEMES, WIDTHS, Scheme, open_browser, open_window
from tests.nexus.support.console_data import Filled, fill
from tests.nexus.support.console_pages import ROOT, Crawled, Page, as_shown, crawl, open_console, owner_of, read
from tests.nexus.support.hostile import corpus

pytestmark = [pytest.mark.once, pytest.mark.heavy, pytest.mark.timeout(600)]
in_browser = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
in_loop = pytest.mark.asyncio(loop_scope="module")

# Pages without an owner.
_OF_ALL: Final = ("", "live", "owners", "failures", "letters", "settings")
# Pages that only a form leads to: what it asks for or comes to, besides owner and session.
_ASKED: Final[Mapping[str, Mapping[str, str]]] = {"recall": {"query": "text"}, "erased": {"rows": "3"}}
# Of one page, how many of its addresses are read, and how many of those are opened in the browser.
_READ: Final = 60
_OPENED: Final = 4
_TEXTS: Final = 500
# Of the texts of each field, at least so many are to be seen: those on the pages that are read.
_LEAST: Final = 40
# No text is longer, within JSON either.
_NEAR: Final = 2_000
_LARGE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Shown:
    """A console with data, and its pages as a program reads them."""

    address: str
    filled: Filled | None
    crawled: Crawled

    def of(self, name: str) -> list[Page]:
        """The pages of this name."""
        return self.crawled.by_name().get(name, [])

    def seen(self, most: int) -> list[Page]:
        """Of each page with some HTML so many, from the first to the last."""
        return [
            page
            for pages in self.crawled.by_name().values()
            for page in pages[:: max(1, len(pages) // most)]
            if page.html
        ]


@pytest.fixture(scope="module")
def empty(redis_url: str, mongo_janitor: MongoClient[dict[str, Any]], mongo_uri: str) -> Iterator[Shown]:
    """A console of which nobody has said anything."""
    with _shown(redis_url, mongo_uri, mongo_janitor, []) as shown:
        yield shown


@pytest.fixture(scope="module")
def usual(redis_url: str, mongo_janitor: MongoClient[dict[str, Any]], mongo_uri: str) -> Iterator[Shown]:
    """A console with texts without any markup."""
    with _shown(redis_url, mongo_uri, mongo_janitor, [f"Text {number}" for number in range(60)]) as shown:
        yield shown


@pytest.fixture(scope="module")
def hostile(redis_url: str, mongo_janitor: MongoClient[dict[str, Any]], mongo_uri: str) -> Iterator[Shown]:
    """A console with hostile texts, also such of 1 MiB, in every field."""
    with _shown(redis_url, mongo_uri, mongo_janitor, corpus(_TEXTS), large=_LARGE) as shown:
        yield shown


@contextmanager
def _shown(
    redis_url: str, mongo_uri: str, janitor: MongoClient[dict[str, Any]], texts: list[str], *, large: int = 0
) -> Iterator[Shown]:
    name = f"test_{uuid.uuid4().hex}"
    db = janitor[name]
    console = open_console(redis_url, mongo_uri, name, profile=texts[0] if texts else "")
    try:
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(console) as opened:

            async def prepare() -> tuple[Filled | None, Crawled]:
                filled = await fill(opened.nexus, opened.letters, db, texts, large=large) if texts else None
                owner = filled.owner if filled else "nobody"
                await opened.nexus.store.insert_messages([_greeting(other) for other in texts[1:]])
                session = filled.session if filled else "none"
                starts = [
                    f"{ROOT}{page}?{urlencode({'owner': owner, 'session': session, **asked})}"
                    for page, asked in _ASKED.items()
                    if page in PAGES
                ]
                requests = filled.answered if filled else []
                starts += [f"{ROOT}context?{urlencode({'owner': owner, 'request': each})}" for each in requests]
                if not filled:
                    # Nothing leads to them.
                    starts += [f"{ROOT}{page}?owner={owner}" for page in PAGES if page not in _OF_ALL]
                return filled, await crawl(
                    opened.address, *starts, most=_READ, follow=lambda url: owner_of(url) in {"", owner}
                )

            filled, crawled = portal.call(prepare)
            yield Shown(opened.address, filled, crawled)
    finally:
        janitor.drop_database(name)


def _greeting(owner: str) -> dict[str, Any]:
    """A row of another owner."""
    said: dict[str, Any] = {"role": "HUMAN", "content": "Good morning", "timestamp": utc_now(), "metadata": {}}
    return {"_id": new_row_id(), "id": "m", "run_id": "r", "owner_key": owner, "session_id": "default", **said}


class TestHtml:
    """What needs no browser."""

    @pytest.mark.parametrize("name", PAGES)
    def test_every_page_can_be_reached(self, usual: Shown, name: str) -> None:
        """From the first page by links alone, or by what a form asks for."""
        assert usual.of(name), f"no link leads to {name!r}, and _ASKED has nothing for it"

    def test_links_lead_to_pages(self, usual: Shown, hostile: Shown) -> None:
        """No address that a page has is refused or not there, whatever the names in it."""
        for shown in (usual, hostile):
            assert _refused(shown) == {}

    def test_without_data(self, empty: Shown) -> None:
        """Each page says so, be it that it is not there, and none fails."""
        for name in PAGES:
            (page, *_) = empty.of(name)
            allowed = {200} if name in _OF_ALL else {200, 400, 404}
            assert page.status in allowed, (name, page.status, page.text)

    def test_nothing_breaks_out(self, usual: Shown, hostile: Shown, empty: Shown) -> None:
        """No page has an element or attribute that no template has; nothing leads away or runs."""
        for shown in (usual, hostile, empty):
            assert {page.url: page.faults for page in shown.crawled.pages.values() if page.faults} == {}
        kinds = {page.type for shown in (usual, hostile) for page in shown.crawled.pages.values()}
        assert kinds <= {"text/html", "text/plain", "application/json", "text/css"}
        tags, attributes = _of_templates()
        assert not tags & {"script", "iframe", "object", "embed", "base", "style", "img"}
        for page in hostile.crawled.pages.values():
            assert {tag for tag, _ in page.kinds} <= tags, page.url
            assert {name for _, names in page.kinds for name in names} <= attributes, page.url

    def test_every_text_is_shown(self, hostile: Shown) -> None:
        """Whatever was put into a field, some page shows it whole, as text: as far as that many pages were read."""
        assert hostile.filled
        text = "\n".join(as_shown("\n".join([page.text, *page.values])) for page in hostile.crawled.pages.values())
        missing = {}
        for field, texts in hostile.filled.fields.items():
            near = "\n".join(text[max(at - _NEAR, 0) : at + _NEAR] for at in _places(text, f"~{field}"))
            seen = (each for each in {*texts} if any(form in near for form in _forms(each)))
            least = min(_LEAST, len({*texts}))
            if (found := len([*islice(seen, least)])) < least:
                missing[field] = found
        assert missing == {}


def _places(text: str, end: str) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(end), text)]


def _of_templates() -> tuple[set[str], set[str]]:
    """The names of elements that the console's templates have, and of attributes."""
    sources = (file.read_text("utf-8") for file in files("nexus.http.console").joinpath("templates").iterdir())
    text = "\n".join(sources).lower()
    return {*re.findall(r"<([a-z0-9]+)", text)}, {
        *re.findall(r"\s([a-z][a-z0-9-]*)=\"", text),
        "open",
        "checked",
        "selected",
        "required",
    }


def _forms(text: str) -> tuple[str, ...]:
    """The text as it is shown, by itself or within JSON."""
    return as_shown(text), json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]


def _refused(shown: Shown) -> dict[str, int]:
    return {page.url: page.status for page in shown.crawled.pages.values() if page.status >= 400}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all of this module."""
    async with open_browser() as opened:
        yield opened


@in_browser
@in_loop
class TestBrowser:
    """What a person sees."""

    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("width", WIDTHS)
    async def test_with_data(self, browser: Browser, usual: Shown, width: int, scheme: Scheme) -> None:
        """Each page is there, and as wide as the window."""
        async with open_window(browser, usual.address, width=width, scheme=scheme) as window:
            for page in usual.seen(_OPENED):
                seen = await window.open(page.url)
                assert (seen.status, seen.faults) == (page.status, []), page.url
                assert seen.wide <= 0, (page.url, seen.wider)

    @pytest.mark.parametrize("width", WIDTHS)
    async def test_without_data(self, browser: Browser, empty: Shown, width: int) -> None:
        """The same where there is nothing."""
        async with open_window(browser, empty.address, width=width) as window:
            for page in empty.seen(1):
                seen = await window.open(page.url)
                assert (seen.status, seen.faults) == (page.status, []), page.url
                assert seen.wide <= 0, (page.url, seen.wider)

    @pytest.mark.parametrize(("width", "scripts"), [(1280, True), (400, False)])
    async def test_hostile(self, browser: Browser, hostile: Shown, width: int, *, scripts: bool) -> None:
        """No script runs and nothing is loaded; the DOM is that of a harmless page; texts are there as text."""
        async with open_window(browser, hostile.address, width=width, scripts=scripts) as window:
            for page in hostile.seen(3 * _OPENED):
                seen = await window.open(page.url)
                assert (seen.status, seen.faults) == (page.status, []), page.url
                assert seen.wide <= 0, (page.url, seen.wider)
                # Those that the browser has and a reader of the same HTML has not.
                html = read(page.url, seen.status, seen.html)
                assert _of_browser(seen.kinds) == _of_html(html), page.url
                assert _said(seen.text) == _said(html.text), page.url

    async def test_keyboard(self, browser: Browser, usual: Shown) -> None:
        """Whatever the tabulator reaches shows that it has the focus."""
        async with open_window(browser, usual.address) as window:
            for page in usual.seen(1):
                await window.open(page.url)
                assert await window.unfocused(40) == [], page.url


def _said(text: str) -> str:
    """A text without white space, of which a browser drops some where an element begins."""
    return "".join(as_shown(text).split())


def _of_browser(kinds: Mapping[str, int]) -> Counter[str]:
    return Counter({kind: number for kind, number in kinds.items() if kind not in _IMPLIED})


def _of_html(page: Page) -> Counter[str]:
    return Counter(
        {
            kind: number
            for (tag, names), number in page.kinds.items()
            if (kind := " ".join([tag, *names])) not in _IMPLIED
        }
    )


# What a browser adds where HTML leaves it out.
_IMPLIED: Final = frozenset({"html", "head", "body", "tbody"})
