"""Retention in whole services: one replica at a time, also after one that ended in the middle (contract §7)."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from pydantic import SecretStr
from pymongo import MongoClient
from structlog.testing import capture_logs

from nexus.bootstrap import open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, RetentionDays, Settings, SystemSettings
from nexus.core.models import Message, Role, Run, utc_now
from tests.nexus.support.old_session import OWNER, SESSION, planted, run_of, turn_of
from tests.nexus.support.waiting import PATIENCE_S, until

Janitor = MongoClient[dict[str, Any]]
_RUNS = 60


def settings(uri: str, name: str, **days: int) -> Settings:
    """On a bus in memory."""
    return Settings(
        bus=BusSettings(mode="memory"),
        database=DatabaseSettings(uri=SecretStr(uri), name=name, timeout_ms=10_000),
        retention=RetentionDays(**days),
        system=SystemSettings(drain_seconds=0),
    )


def store_runs(janitor: Janitor, name: str) -> None:
    """Store a session of years ago."""
    janitor[name]["messages"].insert_many(planted(row for day in range(1, _RUNS + 1) for row in run_of(day)))
    janitor[name]["turns"].insert_many([turn_of(day) for day in range(1, _RUNS + 1)])


def fewer_rows(janitor: Janitor, name: str, most: int) -> Callable[[], Awaitable[bool]]:
    """Whether no more rows than this are left of the session."""

    async def probe() -> bool:
        return janitor[name]["messages"].count_documents({"owner_key": OWNER, "run_id": {"$ne": "new"}}) <= most

    return probe


@pytest.mark.once
async def test_two_replicas_after_one_that_ended(mongo_janitor: Janitor, mongo_uri: str, database_name: str) -> None:
    """All that is old goes once, while requests are answered; the next pass is due hours later."""
    store_runs(mongo_janitor, database_name)
    one_pass = settings(mongo_uri, database_name, messages_days=30, turns_days=60)
    with capture_logs() as logs:
        async with open_nexus(one_pass):
            await until(fewer_rows(mongo_janitor, database_name, 4 * _RUNS - 1))
        # The first one may have come to the end of its pass.
        before = len(logs)
        mongo_janitor[database_name]["retention"].update_one({}, {"$set": {"due_at": utc_now()}})
        async with AsyncExitStack() as stack:
            first, _ = [await stack.enter_async_context(open_nexus(one_pass)) for _ in range(2)]
            client = await stack.enter_async_context(ContextClient(first.bus).listening())
            human = Message(run_id="new", owner_key=OWNER, role=Role.HUMAN, content="And now?")
            run = Run(id="new", owner_key=OWNER, history=[human], metadata={"layout": "agent", "session_id": SESSION})
            assert (await client.build(run, timeout=PATIENCE_S))["degraded"] == []
            await until(fewer_rows(mongo_janitor, database_name, 0))

            async def ended() -> bool:
                return any(line["event"] == "retention_done" for line in logs[before:])

            await until(ended)
    (done,) = [line for line in logs[before:] if line["event"] == "retention_done"]
    assert done["rows"] <= 4 * _RUNS
    # The newest stays, and the one that was newest when the pass began.
    assert {turn["turn_number"] for turn in mongo_janitor[database_name]["turns"].find()} <= {_RUNS, _RUNS + 1}
    (kept,) = mongo_janitor[database_name]["retention"].find()
    assert (kept["due_at"].replace(tzinfo=utc_now().tzinfo) - utc_now()).total_seconds() > 3_600
    assert not [line for line in logs if line["event"] in {"background_fault", "retention_delayed"}]


async def test_idle_where_nothing_is_set(mongo_janitor: Janitor, mongo_uri: str, database_name: str) -> None:
    """Nothing is claimed and nothing goes."""
    store_runs(mongo_janitor, database_name)
    async with open_nexus(settings(mongo_uri, database_name)):
        await anyio.sleep(0.05)
    assert "retention" not in mongo_janitor[database_name].list_collection_names()
    assert mongo_janitor[database_name]["messages"].count_documents({}) == 4 * _RUNS
