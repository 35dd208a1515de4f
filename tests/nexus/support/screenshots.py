"""Pictures of every page of the console, with a week of a person in it, at both widths, light and dark.

    python -m tests.nexus.support.screenshots FOLDER    # make screenshots
    python -m tests.nexus.support.screenshots --serve   # leaves the console running instead, to be looked at

On the servers that NEXUS_TEST_REDIS_URL and NEXUS_TEST_MONGO_URI name, else on packaged ones. Of the addresses of a
page that one is taken that shows most of the person's longest session.
"""

import os
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
from pymongo import MongoClient

from nexus.client import ContextClient
from nexus.embedded import embedded_servers
from nexus.http.console.pages import PAGES
from nexus.log import configure_logging
from tests.nexus.support.browser import CHROMIUM, MISSING, SCHEMES, WIDTHS, open_browser, open_window
from tests.nexus.support.console_pages import ROOT, Console, Page, crawl, open_console, owner_of
from tests.nexus.support.console_person import KITCHEN, OWNER, live_through

_PERSON: Final = {"owner": OWNER, "session": KITCHEN}
# Pages that only a form leads to, and what is worth looking at.
_ASKED: Final = {"recall": {"question": "When does the electrician come?"}}


@asynccontextmanager
async def open_week() -> AsyncIterator[Console]:
    """A console with the week in it."""
    async with AsyncExitStack() as stack:
        redis_url, mongo_uri = (os.environ.get(f"NEXUS_TEST_{name}", "") for name in ("REDIS_URL", "MONGO_URI"))
        if not (redis_url and mongo_uri):
            servers = await stack.enter_async_context(embedded_servers(None))
            redis_url, mongo_uri = servers.redis_url, servers.mongo_uri
        client = stack.enter_context(MongoClient[dict[str, Any]](mongo_uri))
        name = f"shots_{uuid.uuid4().hex}"
        stack.callback(client.drop_database, name)
        console = await stack.enter_async_context(open_console(redis_url, mongo_uri, name))
        async with ContextClient(console.nexus.bus).listening() as orchestrator:
            await live_through(console.nexus, orchestrator)
        yield console


async def take(folder: Path) -> None:
    """Take the pictures, `<page>-<width>-<scheme>.png`."""
    async with open_week() as console, open_browser() as browser:
        starts = [f"{ROOT}{page}?{urlencode(_PERSON | asked)}" for page, asked in _ASKED.items() if page in PAGES]
        starts.append(f"{ROOT}owner?{urlencode({'owner': OWNER})}")
        found = await crawl(console.address, *starts, most=60, follow=lambda url: owner_of(url) in {"", OWNER})
        chosen = {name: _chosen(pages) for name, pages in found.by_name().items() if pages[0].html}
        for width in WIDTHS:
            for scheme in SCHEMES:
                async with open_window(browser, console.address, width=width, scheme=scheme) as window:
                    for name, url in chosen.items():
                        await window.open(url)
                        path = folder / f"{name or 'first'}-{width}-{scheme}.png"
                        await window.page.screenshot(path=path, full_page=True)
        print(f"{len(chosen)} pages in {folder}, without {', '.join(PAGES.keys() - chosen.keys()) or 'none left out'}")  # noqa: T201


def _chosen(pages: list[Page]) -> str:
    """Of the person's longest session, else of the person, the one that shows most."""
    asked = [(page, parse_qs(urlsplit(page.url).query)) for page in pages]
    of_person = [page for page, given in asked if given.get("owner", [OWNER]) == [OWNER]]
    of_session = [page for page, given in asked if given.get("session") == [KITCHEN]]
    return max(of_session or of_person or pages, key=lambda page: len(page.html)).url


async def serve() -> None:
    """Leave the console running until it is interrupted."""
    async with open_week() as console:
        print(f"{console.address}{ROOT}")  # noqa: T201
        await anyio.sleep_forever()


def main() -> None:
    """Do what is asked for."""
    configure_logging("error", "console")
    if sys.argv[1:] == ["--serve"]:
        anyio.run(serve)
        return
    if CHROMIUM is None:
        raise SystemExit(MISSING)
    anyio.run(take, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
