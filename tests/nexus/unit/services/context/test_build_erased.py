"""A request whose input was erased is refused before anything of it is stored or kept (contract §13)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.core.erasure import Tombstone, hashed
from nexus.core.metrics import Event
from nexus.core.models import Message
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.waiting import PATIENCE_S
from tests.nexus.unit.services.parts import opened, request, within

CANARY = "the beans are in the cellar"
LATER = [{"id": "ai_1", "role": "AI", "content": "Which cellar?"}, {"id": "more", "role": "HUMAN", "content": CANARY}]
NOW = datetime.now(UTC)


class WatchedLedger(MemoryLedger):
    """A ledger that says what it was given to keep."""

    def __init__(self) -> None:
        super().__init__(MemoryBus())
        self.given: list[bytes] = []

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep it."""
        self.given.append(value)
        return await super().keep_first(key, value, keep_ms)


def asked(layout: str, said_at: datetime, later: list[dict[str, Any]] | None = None, session: str = "s") -> Message:
    """A request whose input was said then, and what came later with it."""
    asked_for = request(CANARY, later=later, run_metadata={"layout": layout, "session_id": session})
    (human, *others) = asked_for.content["history"]
    dated = [{**human, "timestamp": said_at}, *({**each, "timestamp": said_at} for each in others)]
    return asked_for.model_copy(update={"content": {**asked_for.content, "history": dated}})


async def a_store(session: str = "") -> FakeStore:
    """A store from which the owner, or a session, has just been erased."""
    store = FakeStore()
    await store.erasure.put_tombstone(Tombstone(hashed("ada"), session and hashed(session), NOW, NOW))
    return store


@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
@pytest.mark.parametrize("later", [None, LATER], ids=["first", "continuation"])
@pytest.mark.parametrize("session", ["", "s"], ids=["owner", "session"])
async def test_from_before(layout: str, later: list[dict[str, Any]] | None, session: str) -> None:
    """The answer says so and names the time; nothing is recorded, kept, or put into the outbox."""
    store, ledger, metrics = await a_store(session), WatchedLedger(), RecordingMetrics()
    async with opened(store, ledger=ledger, metrics=metrics) as parts:
        with capture_logs() as logs:
            built = await parts.builder.build(asked(layout, NOW - timedelta(minutes=5), later), within(5.0))
            with anyio.fail_after(PATIENCE_S):
                await parts.persistence.flush()
    what = "session" if session else "owner"
    assert str(built.result) == (
        f"INVALID_REQUEST: run.history[0]: the {what} was erased at {NOW:%Y-%m-%dT%H:%M:%S}Z, and this is from before"
    )
    assert (store.messages, built.outbox) == ([], None)
    assert not any(CANARY.encode() in value for value in ledger.given)
    refused = [line for line in logs if line["event"] == "erased_refused"]
    assert {"reason", "request_id", "run_id"} <= refused[0].keys()
    assert len(refused) == (2 if later else 1)
    assert metrics.counted[Event.ERASED_REFUSED] == 1


@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
@pytest.mark.parametrize(("said_at", "session"), [(NOW + timedelta(seconds=1), "s"), (NOW, "t")])
async def test_a_new_life(layout: str, said_at: datetime, session: str) -> None:
    """What is said after the erasure, or in another session than the erased one, is answered and recorded."""
    store = await a_store("s")
    async with opened(store) as parts:
        content = await parts.build(asked(layout, said_at, session=session))
    assert content["status"] == "success"
    assert [row["content"] for row in store.messages] == [CANARY]


async def test_a_clock_that_is_ahead() -> None:
    """Where the bus says when it took the request, that counts."""
    store = await a_store()
    async with opened(store) as parts:
        ahead = asked("dialogue", NOW + timedelta(seconds=30))
        built = await parts.builder.build(ahead, within(5.0), sent_at=NOW - timedelta(seconds=1))
    assert "INVALID_REQUEST" in str(built.result)
    assert store.messages == []


async def test_it_cannot_be_known() -> None:
    """The answer comes all the same, and the input goes into the outbox, whose drainer asks again."""
    store = await a_store()
    store.failing = "tombstones"
    async with opened(store) as parts:
        built = await parts.builder.build(asked("dialogue", NOW - timedelta(minutes=5)), within(2.0))
    assert isinstance(built.result, dict)
    assert built.outbox
    assert store.messages == []


async def test_it_is_asked_once_and_beside_the_reads() -> None:
    """Nothing that a context is made of waits for it."""
    store = FakeStore()
    async with opened(store) as parts:
        store.calls.clear()
        await parts.build(asked("dialogue", NOW))
    assert store.calls.count("tombstones") == 1
    assert store.calls.index("insert_message") > store.calls.index("tombstones")
