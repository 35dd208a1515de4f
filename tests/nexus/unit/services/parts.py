"""A builder on a store in memory, and the requests that it is asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.core.errors import BusUnavailableError, RequestError
from nexus.core.metrics import Metrics
from nexus.core.models import Message, Role
from nexus.core.ports import ConstraintSource, RecallSource, Row, TokenCounter, TurnSource
from nexus.services.context.builder import BuilderSettings, ContextBuilder
from nexus.services.context.request import Deadline
from nexus.services.history.tombstones import Tombstones
from nexus.services.persistence import PersistenceService
from nexus.services.requests.envelope import error_content
from nexus.services.tools.registry import ToolRegistry
from tests.nexus.support.builder_settings import BY_DEFAULT
from tests.nexus.support.fakes import FakeStore

MOMENT = "2025-12-10T08:00:00Z"


class HangingStore(FakeStore):
    """A store of which some operations never return."""

    def __init__(self, *hanging: str) -> None:
        super().__init__()
        self.hanging = hanging

    async def insert_message(self, row: Row) -> bool:
        """Record a row, or never return."""
        await self._hang("insert_message")
        return await super().insert_message(row)

    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Rows, or never."""
        await self._hang("newest_messages")
        return await super().newest_messages(owner_key, limit=limit, skip=skip, excerpt_chars=excerpt_chars)

    async def find_identity(self, public_key: str) -> Row | None:
        """The identity, or never."""
        await self._hang("find_identity")
        return await super().find_identity(public_key)

    async def _hang(self, operation: str) -> None:
        if operation in self.hanging:
            await anyio.sleep_forever()


class AwayLedger(MemoryLedger):
    """A ledger that keeps nothing."""

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep it elsewhere, where nobody finds it."""
        await super().keep_first(f"lost {key}", value, keep_ms)
        raise BusUnavailableError("away")

    async def kept(self, key: str) -> bytes | None:
        """Fail."""
        raise BusUnavailableError(f"away: {key}")


@dataclass(frozen=True)
class Parts:
    """A builder and what it stands on."""

    store: FakeStore
    bus: MemoryBus
    ledger: MemoryLedger
    registry: ToolRegistry
    persistence: PersistenceService
    builder: ContextBuilder

    async def build(self, message: Message, budget_s: float = 5.0) -> dict[str, Any]:
        """The content of the answer."""
        built = await self.builder.build(message, within(budget_s))
        if isinstance(built.result, RequestError):
            return {**error_content(built.result)}
        return built.result


@asynccontextmanager
async def opened(
    store: FakeStore | None = None,
    *,
    settings: BuilderSettings = BY_DEFAULT,
    bus: MemoryBus | None = None,
    ledger: MemoryLedger | None = None,
    turns: TurnSource | None = None,
    recall: RecallSource | None = None,
    constraints: ConstraintSource | None = None,
    counter: TokenCounter | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[Parts]:
    """Parts that are at work."""
    store, bus = store or FakeStore(), bus or MemoryBus()
    ledger = ledger or MemoryLedger(bus)
    persistence = PersistenceService(store, Tombstones(store))
    registry = ToolRegistry()
    builder = ContextBuilder(
        persistence,
        store,
        registry,
        ledger,
        settings,
        turns=turns,
        recall=recall,
        constraints=constraints,
        counter=counter,
        metrics=metrics,
    )
    async with persistence.running():
        yield Parts(store, bus, ledger, registry, persistence, builder)


def within(seconds: float) -> Deadline:
    """A deadline so many seconds from now."""
    return Deadline(int(seconds * 1_000), anyio.current_time() + seconds)


def request(  # a test names what it is about
    text: Any = "hello",
    request_id: str = "msg_1",
    run_id: str = "run_1",
    owner: str = "ada",
    *,
    later: list[dict[str, Any]] | None = None,
    run_metadata: dict[str, Any] | None = None,
    **metadata: Any,
) -> Message:
    """A build request; `later` are the run's messages after the input."""
    common = {"run_id": run_id, "owner_key": owner, "timestamp": MOMENT}
    human = {**common, "id": f"human_of_{run_id}", "role": "HUMAN", "content": text}
    history = [human, *({**common, **item} for item in later or [])]
    given = {"client_timestamp_utc": MOMENT} | (run_metadata or {})
    content = {"id": run_id, "owner_key": owner, "history": history, "metadata": given}
    return Message(id=request_id, run_id=run_id, owner_key=owner, role=Role.HUMAN, content=content, metadata=metadata)


def definition(name: str = "web_search") -> dict[str, Any]:
    """A tool's definition."""
    return {"type": "function", "function": {"name": name, "description": "d"}}


def past(runs: int, owner: str = "ada") -> list[Row]:
    """Rows of finished runs, one human input and one answer each."""
    return [
        {
            "id": f"{role}_{number}",
            "run_id": f"past_{number}",
            "owner_key": owner,
            "session_id": "default",
            "role": role,
            "content": f"{role} {number}",
            "timestamp": f"2025-12-01T{number // 60:02d}:{number % 60:02d}:0{second}Z",
            "metadata": {},
        }
        for number in range(runs)
        for second, role in enumerate(("HUMAN", "AI"))
    ]
