"""The console on a running service, read as HTML and in a browser: with data, without, and with hostile data.

A page that is new is found by its name in `nexus.http.console.pages`, and by links from the first page. What only a
form leads to has an address in `_ASKED`.
"""

import json
import os
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import islice, product
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.async_api import Browser
from pymongo import MongoClient

from nexus.core.models import new_row_id, utc_now
from nexus.http.console.pages import PAGES
from tests.nexus.support.browser import (
    CHROMIUM,
    MISSING,
    SCHEMES,
    WIDTHS,
    Seen,
    Window,
    open_browser,
    open_window,
)
from tests.nexus.support.console_data import Filled, fill
from tests.nexus.support.console_pages import ROOT, Crawled, Page, as_shown, crawl, open_console, owner_of, read
from tests.nexus.support.hostile import corpus

pytestmark = [pytest.mark.once, pytest.mark.heavy, pytest.mark.timeout(600)]

# Pages without an owner.
_OF_ALL: Final = ("", "live", "owners", "failures", "letters", "settings")
# Pages that only a form leads to: what it asks for or comes to, besides owner and session.
_ASKED: Final[Mapping[str, Mapping[str, str]]] = {"recall": {"question": "text"}, "erased": {"messages": "3"}}
# Of one page, how many of its addresses are read, and how many of those are opened in the browser.
_READ: Final = 30
_OPENED: Final = 3
_TEXTS: Final = int(os.environ.get("NEXUS_TEST_TEXTS") or 100)
# Of the texts of each field, at least so many are to be seen: those on the pages that are read, of which there are as
# many with few texts, but with fewer of them.
_LEAST: Final = min(20, _TEXTS // 20)
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


@pytest.fixture
def opened(
    redis_url: str, mongo_janitor: MongoClient[dict[str, Any]], mongo_uri: str
) -> Callable[..., AbstractContextManager[Shown]]:
    """Opens a console with these texts, the large ones also of so many bytes; `[]` for nothing at all."""
    return partial(_shown, redis_url, mongo_uri, mongo_janitor)


async def test_with_data(opened: Callable[..., AbstractContextManager[Shown]]) -> None:
    """Links from the first page lead to every page; each is as wide as its window, and shows where the keyboard is."""
    with opened([f"Text {number}" for number in range(60)]) as usual:
        unreached = [name for name in PAGES if not usual.of(name)]
        assert unreached == [], "no link leads there, and _ASKED has nothing for it"
        assert _refused(usual) == {}
        _nothing_breaks_out(usual)
        async with _browser() as browser:
            for width, scheme in product(WIDTHS, SCHEMES):
                async with open_window(browser, usual.address, width=width, scheme=scheme) as window:
                    for page in usual.seen(_OPENED):
                        await _look(window, page)
            async with open_window(browser, usual.address) as window:
                for page in usual.seen(1):
                    await window.open(page.url)
                    assert await window.unfocused(40) == [], page.url


async def test_without_data(opened: Callable[..., AbstractContextManager[Shown]]) -> None:
    """Each page says so, be it that it is not there, and none fails."""
    with opened([]) as empty:
        for name in PAGES:
            (page, *_) = empty.of(name)
            allowed = {200} if name in _OF_ALL else {200, 400, 404}
            assert page.status in allowed, (name, page.status, page.text)
        _nothing_breaks_out(empty)
        async with _browser() as browser:
            for width in WIDTHS:
                async with open_window(browser, empty.address, width=width) as window:
                    for page in empty.seen(1):
                        await _look(window, page)


async def test_hostile(opened: Callable[..., AbstractContextManager[Shown]]) -> None:
    """No page has what no template has, no script runs and nothing is loaded; every text is there, as text.

    In the browser the document is that of a reader of the same HTML, with and without JavaScript.
    """
    with opened(corpus(_TEXTS), large=_LARGE) as hostile:
        assert _refused(hostile) == {}
        _nothing_breaks_out(hostile)
        _every_text_is_shown(hostile)
        async with _browser() as browser:
            for width, scripts in ((1280, True), (400, False)):
                async with open_window(browser, hostile.address, width=width, scripts=scripts) as window:
                    for page in hostile.seen(_OPENED):
                        seen = await _look(window, page)
                        html = read(page.url, seen.status, seen.html)
                        assert _of_browser(seen.kinds) == _of_html(html), page.url
                        assert _said(seen.text) == _said(html.text), page.url


@asynccontextmanager
async def _browser() -> AsyncIterator[Browser]:
    """A browser; where there is none, the test ends here and says so."""
    if CHROMIUM is None:
        pytest.skip(f"the HTML holds; {MISSING}")
    async with open_browser() as browser:
        yield browser


async def _look(window: Window, page: Page) -> Seen:
    """The page in the browser, which is there and as wide as the window."""
    seen = await window.open(page.url)
    assert (seen.status, seen.faults) == (page.status, []), page.url
    assert seen.wide <= 0, (page.url, seen.wider)
    return seen


def _nothing_breaks_out(shown: Shown) -> None:
    """No page has an element or attribute that no template has; nothing leads away or runs."""
    pages = shown.crawled.pages.values()
    assert {page.url: page.faults for page in pages if page.faults} == {}
    assert {page.type for page in pages} <= {"text/html", "text/plain", "application/json", "text/css"}
    tags, attributes = _of_templates()
    assert not tags & {"script", "iframe", "object", "embed", "base", "style", "img"}
    for page in pages:
        assert {tag for tag, _ in page.kinds} <= tags, page.url
        assert {name for _, names in page.kinds for name in names} <= attributes, page.url


def _every_text_is_shown(shown: Shown) -> None:
    """Whatever was put into a field, some page shows it whole, as text: as far as that many pages were read."""
    assert shown.filled
    text = "\n".join(as_shown("\n".join([page.text, *page.values])) for page in shown.crawled.pages.values())
    missing = {}
    for field, texts in shown.filled.fields.items():
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
