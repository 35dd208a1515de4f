"""The console of a service on a store, and a browser that knows what a page says and which forms it has."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2

from nexus.bootstrap import console_services
from nexus.config import BusSettings, ConsoleSettings, DatabaseSettings, MemorySettings, RecallSettings, Settings
from nexus.connections import open_bus
from nexus.core.ports import Store
from nexus.http.console.access import FORM_TOKEN
from nexus.http.console.pages import create_console
from nexus.http.server import create_app, serving
from nexus.services.replicas import Replicas
from nexus.wiring import Nexus, create_nexus
from tests.nexus.support.waiting import PATIENCE_S

_NO_END = {"input", "br", "hr", "meta", "link"}


@dataclass(slots=True)
class Form:
    """A form with what is in its fields."""

    method: str
    action: str
    fields: dict[str, str] = field(default_factory=dict)


class Page(HTMLParser):
    """A page of the console, whose elements are all ended.

    Attributes:
        text: what a person reads, folded parts too.
        links: where it leads, in order.
    """

    def __init__(self, status: int, source: str) -> None:
        super().__init__()
        self.status, self.source = status, source
        self.text = ""
        self.links: list[str] = []
        self.forms: list[Form] = []
        self._open: list[str] = []
        self._area = self._select = self._option = ""
        self.feed(source)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of links, forms and fields. No element brings a script, a style or an image."""
        given = {name: value or "" for name, value in attrs}
        assert tag not in {"script", "style", "iframe", "object", "img"}, self.get_starttag_text()
        assert not [name for name in given if name.startswith("on") or name == "style"], self.get_starttag_text()
        if tag not in _NO_END:
            self._open.append(tag)
        if tag == "a":
            self.links.append(given["href"])
        elif tag == "form":
            self.forms.append(Form(given["method"], given["action"]))
        elif tag == "input" and (given.get("type") not in {"radio", "checkbox"} or "checked" in given):
            self.forms[-1].fields[given["name"]] = given.get("value", "")
        elif tag == "textarea":
            self._area = given["name"]
            self.forms[-1].fields[self._area] = ""
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option":
            self._option = given.get("value", "")
            if "selected" in given or self._select not in self.forms[-1].fields:
                self.forms[-1].fields[self._select] = self._option

    def handle_endtag(self, tag: str) -> None:
        """Close the element that was opened last."""
        assert self._open.pop() == tag, self.source[-2_000:]
        if tag == "textarea":
            # A browser drops the first end of a line.
            self.forms[-1].fields[self._area] = self.forms[-1].fields[self._area].removeprefix("\n")
            self._area = ""

    def handle_data(self, data: str) -> None:
        """Text, or what is in a field of several lines."""
        if self._area:
            self.forms[-1].fields[self._area] += data
        self.text += data

    def links_to(self, page: str, **asked: str) -> list[dict[str, str]]:
        """The parameters of the links to a page that have these among them."""
        found = [(each.path, dict(parse_qsl(each.query))) for each in map(urlsplit, self.links)]
        return [given for path, given in found if path == f"/console/{page}" and given.items() >= asked.items()]

    def link_to(self, page: str, **asked: str) -> str:
        """The first link to a page with these parameters."""
        for link in self.links:
            parts = urlsplit(link)
            given = dict(parse_qsl(parts.query, keep_blank_values=True))
            if parts.path == f"/console/{page}" and given.items() >= asked.items():
                return link
        raise AssertionError((page, asked, self.links))

    def form_to(self, page: str, **having: str) -> Form:
        """The first form that is sent to a page and has these fields."""
        for form in self.forms:
            if urlsplit(form.action).path == f"/console/{page}" and form.fields.items() >= having.items():
                return form
        raise AssertionError((page, having, [(each.action, each.fields) for each in self.forms]))


@dataclass(frozen=True, slots=True)
class Browser:
    """Asks the console; `nexus` is the service that has it."""

    client: httpx2.AsyncClient
    nexus: Nexus

    async def see(self, page: str, **asked: Any) -> Page:
        """The page at this address, which may be a link."""
        link = page if page.startswith("/") else f"/console/{page}"
        return self._read(await self.client.get(f"{link}?{urlencode(asked)}" if asked else link))

    async def send(self, form: Form, **changes: str) -> Page:
        """Fill in a form and send it; the page that follows."""
        response = await self.post(form, **changes)
        if response.status_code == 303:
            return await self.see(response.headers["location"])
        return self._read(response)

    async def post(self, form: Form, **changes: str) -> httpx2.Response:
        """What a form is answered with. Browsers end lines with CR LF."""
        fields = {name: value.replace("\n", "\r\n") for name, value in {**form.fields, **changes}.items()}
        return await self.client.post(form.action, data=fields)

    @staticmethod
    def _read(response: httpx2.Response) -> Page:
        assert "script-src" not in response.headers["content-security-policy"]
        found = Page(response.status_code, response.text)
        for form in found.forms:
            assert form.method == "get" or form.fields[FORM_TOKEN], form.action
        return found


@asynccontextmanager
async def browsing(
    store: Store,
    *,
    write: bool = True,
    working_memory: bool = True,
    recall: bool = True,
    settle_ms: int = 2_000,
) -> AsyncIterator[Browser]:
    """A service on this store, not running but for its console, with these settings.

    `settle_ms`: the time limit of the store, for which an erasure waits between two passes.
    """
    settings = Settings(
        bus=BusSettings(mode="memory"),
        console=ConsoleSettings(write=write),
        memory=MemorySettings(working_memory=working_memory),
        database=DatabaseSettings(timeout_ms=settle_ms),
        recall=RecallSettings(enabled=recall),
    )
    async with open_bus(settings.bus) as transport:
        nexus = create_nexus(settings, transport, store, None)
        replicas = Replicas(store.replicas, nexus.metrics, nexus.metrics, host="here", version="0")
        console = create_console(console_services(nexus, transport, None, replicas))
        async with (
            nexus.catalog.running(),
            serving(create_app({}, lambda _checks: b"", console=console), "127.0.0.1", 0) as port,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client,
        ):
            yield Browser(client, nexus)
