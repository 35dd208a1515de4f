"""The console on a store in memory, asked without a network."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
from pydantic import SecretStr
from starlette.applications import Starlette

from nexus.adapters.in_memory import MemoryBus, MemoryDeadLetters, MemoryLedger
from nexus.adapters.prometheus import PrometheusMetrics
from nexus.config import ConsoleSettings, Settings
from nexus.http.console.access import FORM_TOKEN, Access
from nexus.http.console.pages import FORMS, PAGES
from nexus.http.console.shell import ConsoleServices, console_routes
from nexus.services.context.builder import ContextBuilder
from nexus.services.persistence import PersistenceService
from nexus.services.person.facts import Facts
from nexus.services.records.reader import RecordReader
from nexus.services.replicas import Replicas
from nexus.services.requests.envelope import RequestSettings
from nexus.services.requests.letters import LetterSender
from nexus.services.tools.registry import ToolRegistry
from nexus.wiring import builder_settings, create_eraser
from tests.nexus.support.console_browser import Page
from tests.nexus.support.constraints import constraints_on
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.tombstones import NO_TOMBSTONES

TOKEN = "the token of the tests"
MACHINE = ("127.0.0.1", 40_000)


@dataclass(frozen=True)
class Console:
    """The console as a browser on this machine sees it, and what it stands on."""

    client: httpx2.AsyncClient
    services: ConsoleServices
    store: FakeStore
    bus: MemoryBus
    letters: MemoryDeadLetters

    async def text(self, page: str, **asked: Any) -> str:
        """The text of a page that is there: what its tags would show."""
        answer = await self.client.get(f"/console/{page}", params=asked)
        assert answer.status_code == 200, answer.text
        return unescape(answer.text)

    async def see(self, page: str, **asked: Any) -> Page:
        """The page at this address, which may be a link; also one that says why there is none."""
        link = page if page.startswith("/") else f"/console/{page}?{urlencode(asked)}"
        answer = await self.client.get(link)
        return Page(answer.status_code, answer.text)

    async def sent(self, form: str, **fields: str) -> httpx2.Response:
        """The answer to a form with the token that pages have."""
        token = Access(TOKEN, write=True).form_token
        return await self.client.post(f"/console/{form}", data={FORM_TOKEN: token, **fields})


@asynccontextmanager
async def opened_console(
    settings: Settings | None = None,
    *,
    letters: MemoryDeadLetters | None = None,
    settings_file: Path | None = None,
    token: str = TOKEN,
    store: FakeStore | None = None,
) -> AsyncIterator[Console]:
    """A console where changes are allowed, unless `settings` say something else."""
    settings = settings or Settings(console=ConsoleSettings(token=SecretStr(TOKEN), write=True))
    store, bus = store or FakeStore(), MemoryBus()
    ledger = MemoryLedger(bus)
    letters = letters or MemoryDeadLetters(most=1_000, forget=ledger.forget)
    metrics = PrometheusMetrics(version="0")
    services = ConsoleServices(
        settings,
        settings_file,
        store,
        ContextBuilder(
            PersistenceService(store, NO_TOMBSTONES), store, ToolRegistry(), ledger, builder_settings(settings)
        ),
        letters,
        LetterSender(letters, bus, RequestSettings(), counts=True),
        Replicas(store.replicas, metrics, metrics, host="here", version="0"),
        Facts(store.facts, NO_TOMBSTONES),
        constraints_on(store),
        RecordReader(store) if settings.context.record != "off" else None,
        None,
        None,
        create_eraser(settings, store, None),
    )
    app = Starlette(routes=console_routes(services, PAGES, FORMS))
    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx2.ASGITransport(app, client=MACHINE)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield Console(client, services, store, bus, letters)
