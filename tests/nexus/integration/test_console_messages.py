"""The console's pages of owners and contexts on a real database: odd documents, and another owner's (contract §16)."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx2
import pytest
from bson.raw_bson import RawBSONDocument
from pydantic import SecretStr
from pymongo import MongoClient
from pymongo.errors import BulkWriteError, OperationFailure

from nexus.bootstrap import Nexus, open_nexus
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.core.models import to_milliseconds, utc_now
from nexus.core.records import BuildRecord
from tests.nexus.support.console_browser import Page
from tests.nexus.support.odd_values import ODD_VALUES, VARIANTS, with_value
from tests.nexus.support.rows import row
from tests.nexus.support.waiting import PATIENCE_S
from tests.nexus.unit.services.parts import request, within
from tests.nexus.unit.services.records.test_explain import sent

Janitor = MongoClient[dict[str, Any]]
FIELDS: Final = (
    *("id", "run_id", "session_id", "role", "content", "timestamp", "metadata"),
    *("metadata.tool_calls", "metadata.tool_calls.0", "metadata.tool_calls.0.function"),
    *("metadata.tool_calls.0.function.arguments", "metadata.tool_name"),
    *("metadata.sub_agent_internal", "metadata.agent_id", "metadata.condensed"),
)
CALL: Final = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"q": 1}'}}


@pytest.fixture
def settings(mongo_uri: str, database_name: str) -> Settings:
    """Of a service on the test's own database."""
    database = DatabaseSettings(uri=SecretStr(mongo_uri), name=database_name, timeout_ms=10_000)
    return Settings(bus=BusSettings(mode="memory"), database=database)


@asynccontextmanager
async def at_console(settings: Settings) -> AsyncIterator[tuple[Nexus, httpx2.AsyncClient]]:
    """A running service, and a browser on this machine."""
    async with open_nexus(settings) as nexus:
        address = f"http://127.0.0.1:{nexus.http_port}"
        async with httpx2.AsyncClient(base_url=address, timeout=2 * PATIENCE_S) as client:
            yield nexus, client


async def answered(nexus: Nexus, owner: str, layout: str) -> BuildRecord:
    """The record of a context that was built for an owner."""
    metadata = {"layout": layout, "session_id": "s"}
    asked, begun_at = request("And now?", f"q-{layout}", f"run-{layout}", owner, run_metadata=metadata), utc_now()
    built = await nexus.builder.build(asked, within(2 * PATIENCE_S))
    assert isinstance(built.result, dict), built.result
    answer = sent(built.result)
    record = BuildRecord(
        owner_key=owner,
        request_id=asked.id,
        run_id=asked.run_id,
        session_id="s",
        outcome="success",
        reason="",
        layout=layout,
        form="openai",
        answered_at=to_milliseconds(utc_now()),
        size=len(answer),
        settings="",
        version="1",
        mode="full",
    )
    assert nexus.records
    nexus.records.offer(record, answer, {}, begun_at=begun_at)
    await nexus.records.pending.none()
    return record


def odd_rows() -> Iterator[RawBSONDocument]:
    """Messages with any type of BSON in any field that pages show."""
    values = {name: value for name, value in ODD_VALUES.items() if name not in VARIANTS}
    of_tool = {"tool_name": "f", "status": "ok", "condensed": "c", "tool_calls": [CALL]}
    metadata = {**of_tool, "sub_agent_internal": False, "agent_id": "a"}
    for number, (path, name) in enumerate((path, name) for path in FIELDS for name in values):
        written = row(number, owner_key="ada", metadata=metadata, run_id=f"r{number % 40}")
        yield with_value({"_id": f"row {number}", **written}, path, values[name])


@pytest.mark.heavy
async def test_messages_of_other_programs(settings: Settings, mongo_janitor: Janitor, database_name: str) -> None:
    """Whatever type any of their fields has, every page is made, and each message has one."""
    rows = [*odd_rows()]
    messages = mongo_janitor[database_name]["messages"]
    async with at_console(settings) as (nexus, client):
        try:
            messages.insert_many(rows, ordered=False)
        except BulkWriteError as error:
            # Some have the same `id` as others.
            assert {fault["code"] for fault in error.details["writeErrors"]} == {11000}  # noqa: PT017  # the rest is stored
        except OperationFailure:
            pytest.skip("secantusdb refuses text that is not UTF-8, and dates that Python does not have")
        stored = [each["_id"] for each in messages.find({"owner_key": "ada"}, {"_id": 1})]
        assert len(stored) > len(rows) / 2
        for layout in ("agent", "dialogue"):
            await answered(nexus, "ada", layout)
        seen: dict[str, Page] = {}

        async def see(link: str) -> None:
            response = await client.get(link)
            assert response.status_code == 200, (link, response.text[-500:])
            seen[link] = Page(response.status_code, response.text)
            assert len(response.text) < 2_000_000, link

        await see("/console/owner?owner=ada")
        waiting = [
            link for link in seen["/console/owner?owner=ada"].links if "/session?" in link or "/context?" in link
        ]
        assert len(waiting) > 2
        while waiting:
            link = waiting.pop()
            if link not in seen:
                await see(link)
                more = ("/session?", "/run?", "earlier=", "/context?", "/contexts?")
                waiting += [each for each in seen[link].links if any(part in each for part in more)]
        limit = anyio.CapacityLimiter(8)

        async def see_row(row_id: str) -> None:
            async with limit:
                await see(str(httpx2.URL("/console/row", params={"owner": "ada", "row": row_id})))

        async with anyio.create_task_group() as tasks:
            for row_id in stored:
                tasks.start_soon(see_row, row_id)
        assert len([link for link in seen if "/row?" in link]) == len(stored)


async def test_what_is_anothers_stays_so(settings: Settings, mongo_janitor: Janitor, database_name: str) -> None:
    """No page of bob's, whatever else its address names, says what ada's say; an operator as a name is a name."""
    messages = mongo_janitor[database_name]["messages"]
    messages.insert_many([row(1, owner_key="ada", content="canary"), row(2, owner_key="bob", content="other")])
    async with at_console(settings) as (nexus, client):
        ada, bob = [await answered(nexus, owner, "agent") for owner in ("ada", "bob")]
        stored = messages.find_one({"owner_key": "ada", "id": "m1"})
        assert stored
        mine = {"request": ada.request_id, "row": str(stored["_id"]), "run": "r1", "session": "s", "message": "m1"}
        for owner in ("bob", '{"$ne": "bob"}', "$ne"):
            for page in ("owner", "session", "run", "row", "row.txt", "row.json", "contexts", "now", "context"):
                response = await client.get(f"/console/{page}", params={**mine, "owner": owner})
                assert "canary" not in response.text, (owner, page)
        assert bob.request_id == ada.request_id
        assert "canary" in (await client.get("/console/context", params={**mine, "owner": "ada"})).text
        assert (
            "canary"
            in (await client.get("/console/now", params={"owner": "ada", "session": "s", "layout": "agent"})).text
        )
        before = [*messages.find()], [*mongo_janitor[database_name]["context_records"].find()]
        await client.get("/console/now", params={"owner": "ada", "session": "s", "input": "never recorded"})
        assert ([*messages.find()], [*mongo_janitor[database_name]["context_records"].find()]) == before
