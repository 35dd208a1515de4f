"""A running console, its pages as they are read, and all of them that links lead to."""

import hashlib
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
from pydantic import SecretStr

from nexus.bootstrap import Nexus, open_nexus
from nexus.config import (
    BusSettings,
    ConsoleSettings,
    DatabaseSettings,
    FriendsProfileDefault,
    Settings,
    UserDefaults,
    UserPromptDefaults,
)
from nexus.connections import open_bus
from nexus.core.ports import DeadLetters

ROOT: Final = "/console/"
# What a form or a link may lead to besides pages: nothing else of the port, and no other place.
_LEADS: Final = ("href", "action", "src", "formaction", "data", "background", "poster", "srcset", "ping")
_NO_TEXT: Final = frozenset({"input", "br", "hr", "meta", "link", "img"})
_CONTROLS: Final = frozenset({"input", "select", "textarea"})


@dataclass(frozen=True, slots=True)
class Console:
    """A service whose console is asked at `address`."""

    nexus: Nexus
    letters: DeadLetters
    address: str


@asynccontextmanager
async def open_console(
    redis_url: str, mongo_uri: str, database: str, *, write: bool = True, profile: str = ""
) -> AsyncIterator[Console]:
    """A console on this database, and a prefix of its own on Redis. `profile` is the setting for owners without one."""
    settings = Settings(
        bus=BusSettings(
            url=SecretStr(redis_url),
            channel_prefix=f"t{uuid.uuid4().hex}:",
            dead_letter_bodies=True,
            request_deadline_ms=25_000,
        ),
        database=DatabaseSettings(uri=SecretStr(mongo_uri), name=database, timeout_ms=5_000),
        user_defaults=UserDefaults(prompts=UserPromptDefaults(friends_profile=FriendsProfileDefault(content=profile))),
        console=ConsoleSettings(write=write),
    )
    async with open_nexus(settings) as nexus, open_bus(settings.bus) as transport:
        yield Console(nexus, transport.dead_letters, f"http://127.0.0.1:{nexus.http_port}")


@dataclass(slots=True)
class Page:
    """A page as its HTML says it.

    Attributes:
        name: in the address, `""` for the first one.
        kinds: how often each element with these names of attributes occurs.
        html: `""` of what is none, such as a text to be kept; `type` is what it is.
    text: all that is shown, and `values` what fields and titles hold.
        links: addresses of pages that it leads to.
        faults: what no page may have.
    """

    url: str
    status: int
    html: str
    type: str = "text/html"
    kinds: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter)
    text: str = ""
    values: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The page's name in the address."""
        return name_of(self.url)


def name_of(url: str) -> str:
    """The name of a page in its address."""
    return urlsplit(url).path.removeprefix(ROOT.rstrip("/")).removeprefix("/")


def read(url: str, status: int, html: str) -> Page:
    """The page of this HTML."""
    page = Page(url, status, html)
    reader = _Reader(page)
    reader.feed(html)
    reader.close()
    page.text = "".join(reader.said)
    page.faults += reader.ended()
    return page


def as_shown(text: str) -> str:
    """A text as a page can have it: no NUL, and lines end with LF."""
    return text.replace("\x00", "").replace("\r\n", "\n").replace("\r", "\n")


class _Reader(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__(convert_charrefs=True)
        self._page = page
        self.said: list[str] = []
        self._open: list[str] = []
        self._controls: list[tuple[str, dict[str, str | None], bool]] = []
        self._labelled: set[str | None] = set()
        self._counts: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        page = self._page
        page.kinds[tag, tuple(sorted(given))] += 1
        # A part of a chart has a title, too.
        if "svg" not in self._open:
            self._counts[tag] += 1
        for name, value in given.items():
            if name.startswith("on") or name == "style":
                page.faults.append(f"<{tag}> has {name}")
            if name in _LEADS or name.endswith("href"):
                self._check_address(tag, name, value or "")
            if name in {"value", "title", "content", "placeholder", "aria-label", "alt"}:
                page.values.append(value or "")
        if tag == "a" and (href := given.get("href")):
            page.links.append(urljoin(page.url, href))
        if tag == "label":
            self._labelled.add(given.get("for"))
        if tag in _CONTROLS and given.get("type") != "hidden":
            self._controls.append((tag, given, "label" in self._open))
        if tag not in _NO_TEXT:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    def handle_comment(self, data: str) -> None:
        self._page.faults.append(f"a comment: {data[:60]!r}")

    def handle_pi(self, data: str) -> None:
        self._page.faults.append(f"an instruction: {data[:60]!r}")

    def unknown_decl(self, data: str) -> None:
        self._page.faults.append(f"a declaration: {data[:60]!r}")

    def _check_address(self, tag: str, name: str, value: str) -> None:
        whole = urljoin(self._page.url, value)
        same = urlsplit(whole)[:2] == urlsplit(self._page.url)[:2]
        if not (same and urlsplit(whole).path.startswith(ROOT.rstrip("/"))):
            self._page.faults.append(f"<{tag}> has {name}={value[:80]!r}")

    def ended(self) -> Iterator[str]:
        """What is wrong with the page as a whole."""
        for tag in ("title", "h1", "main"):
            if self._counts[tag] != 1:
                yield f"{self._counts[tag]} <{tag}>"
        for tag, given, inside in self._controls:
            if not (inside or given.get("aria-label") or (given.get("id") and given.get("id") in self._labelled)):
                yield f"<{tag} name={given.get('name')!r}> has no label"


@dataclass(slots=True)
class Crawled:
    """Pages by their addresses, and those that were left out as too many of one name."""

    pages: dict[str, Page] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def by_name(self) -> dict[str, list[Page]]:
        """Pages by their names."""
        found = defaultdict[str, list[Page]](list)
        for page in self.pages.values():
            found[page.name].append(page)
        return found


async def crawl(
    address: str, *starts: str, most: int = 600, follow: Callable[[str], bool] = lambda _url: True
) -> Crawled:
    """Every page that links lead to from the first one and these; of one name at most so many.

    Where `follow` says no, the page is read, but not what it leads to.
    """
    found, waiting = Crawled(), {f"{address}{ROOT}", *(address + start for start in starts)}
    counts = Counter[str]()
    async with httpx2.AsyncClient(timeout=60) as client:
        while waiting:
            led_to = set[str]()
            # In an order that prefers none of the many of one name.
            for url in sorted(waiting, key=lambda url: hashlib.sha256(url.partition(ROOT)[2].encode()).digest()):
                name = name_of(url)
                if counts[name] >= most:
                    found.left_out[name] += 1
                    continue
                counts[name] += 1
                found.pages[url] = page = await _get(client, url)
                if follow(url):
                    led_to |= {link.partition("#")[0] for link in page.links}
            waiting = led_to - found.pages.keys()
    return found


async def _get(client: httpx2.AsyncClient, url: str) -> Page:
    answer = await client.get(url)
    kind = answer.headers.get("content-type", "").partition(";")[0]
    return (
        read(url, answer.status_code, answer.text) if kind == "text/html" else Page(url, answer.status_code, "", kind)
    )


def owner_of(url: str) -> str:
    """The owner that an address names, or `""`."""
    return parse_qs(urlsplit(url).query, keep_blank_values=True).get("owner", [""])[0]
