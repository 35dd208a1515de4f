"""Whatever of its sources a build cannot read, there is an answer that says what is missing (contract §1.4)."""

from collections.abc import Sequence
from typing import Any, Final

import anyio
import pytest

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.core.errors import BusUnavailableError, NexusError, RequestError, StoreUnavailableError
from nexus.core.metrics import Part
from nexus.core.ports import Row
from nexus.core.turns import Goal, TurnStart
from nexus.core.working_memory import CompactionJob, CompactionRequest, Snapshot
from nexus.services.context.builder import BuilderSettings, Built, ContextBuilder
from nexus.services.persistence import PersistenceService
from nexus.services.session_state.state import SessionState
from nexus.services.tools.registry import ToolRegistry
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.fakes import FakeStore
from tests.nexus.unit.services.parts import past, request, within

LAYOUTS: Final = ("dialogue", "agent", "thinking")
READ_BY: Final[dict[str, frozenset[str]]] = {
    "dialogue": frozenset({"history", "profile", "tools"}),
    "agent": frozenset({"history", "state", "turns", "working_memory", "tools"}),
    "thinking": frozenset({"turns", "tools"}),
}
SOURCES: Final = ("history", "profile", "state", "turns", "working_memory", "tools", "insert")


class Faults:
    """Which sources are away, and how.

    Attributes:
        error: what a read raises; None for one that never returns.
    """

    def __init__(self, missing: Sequence[str], error: NexusError | None) -> None:
        self.missing = missing
        self.error = error

    async def read(self, source: str) -> None:
        """Fail, if the source is away."""
        if source not in self.missing:
            return
        if self.error is None:
            await anyio.sleep_forever()
        else:
            raise self.error


class FaultyStore(FakeStore):
    """A store of which some reads, or inserts, fail."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults

    async def newest_messages(self, owner_key: str, **given: Any) -> list[Row]:
        """Rows."""
        await self.faults.read("history")
        return await super().newest_messages(owner_key, **given)

    async def session_messages(self, owner_key: str, session_id: str, **given: Any) -> list[Row]:
        """Rows."""
        await self.faults.read("history")
        return await super().session_messages(owner_key, session_id, **given)

    async def tail_messages(self, owner_key: str, session_id: str, tail: Any, **given: Any) -> list[Row]:
        """Rows."""
        await self.faults.read("history")
        return await super().tail_messages(owner_key, session_id, tail, **given)

    async def find_identity(self, public_key: str) -> Row | None:
        """A profile."""
        await self.faults.read("profile")
        return await super().find_identity(public_key)

    async def insert_messages(self, rows: Sequence[Row]) -> Any:
        """Record rows."""
        await self.faults.read("insert")
        return await super().insert_messages(rows)

    async def insert_message(self, row: Row) -> bool:
        """Record a row."""
        await self.faults.read("insert")
        return await super().insert_message(row)


class FaultySources:
    """Turns, working memory and states, of which some fail."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def begin_turn(self, start: TurnStart) -> anyio.Event:  # noqa: ARG002  # as the port has it
        """Keep it."""
        return anyio.Event()

    async def goal(self, owner_key: str, session_id: str, run_id: str) -> Goal:  # noqa: ARG002  # as the port has it
        """None."""
        await self.faults.read("turns")
        return Goal()

    async def past_turns(self, owner_key: str, session_id: str, **_: Any) -> list[Row]:  # noqa: ARG002  # likewise
        """None."""
        await self.faults.read("turns")
        return []

    async def snapshot(self, owner_key: str, session_id: str) -> Snapshot:  # noqa: ARG002  # as the port has it
        """Nothing but the template."""
        await self.faults.read("working_memory")
        return Snapshot()

    def compact_soon(self, wish: CompactionRequest, *, long: bool = False) -> CompactionJob | None:  # noqa: ARG002  # likewise
        """Nothing to be done."""
        return None

    async def get(self, owner_key: str, session_id: str) -> SessionState:  # noqa: ARG002  # as the port has it
        """An empty state."""
        await self.faults.read("state")
        return SessionState()


async def built(
    layout: str, missing: Sequence[str], error: NexusError | None, on_history_failure: Any = "degrade"
) -> Built:
    """What comes of a first build with these sources away."""
    faults = Faults(missing, error)
    store, sources, registry = FaultyStore(faults), FaultySources(faults), ToolRegistry()
    store.plant("messages", past(2))
    registry.complete = "tools" not in missing
    builder = ContextBuilder(
        PersistenceService(store),
        store,
        registry,
        MemoryLedger(MemoryBus()),
        BuilderSettings(on_history_failure=on_history_failure),
        states=sources,
        turns=sources,
        memory=sources,
        counter=FakeCounter(),
    )
    return await builder.build(request(run_metadata={"layout": layout}), within(1.0 if error is None else 20.0))


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), BusUnavailableError("away"), None], ids=repr)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_one_source_is_away(layout: str, source: str, error: NexusError | None) -> None:
    """The context lacks that part alone, says so, and an input that is not stored goes into the outbox."""
    if source == "insert" and isinstance(error, BusUnavailableError):
        pytest.skip("a store does not fail with an error of the bus")
    done = await built(layout, [source], error)
    assert isinstance(done.result, dict)
    assert done.result["degraded"] == ([source] if source in READ_BY[layout] else [])
    assert not done.failed
    if source == "insert":
        assert done.outbox is not None
        assert b"human_of_run_1" in done.outbox.content
    elif source not in {"history", "turns"}:
        assert done.outbox is None


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_everything_is_away(layout: str) -> None:
    """All parts are named, in the order of the alphabet, whichever failed first."""
    done = await built(layout, SOURCES, StoreUnavailableError("away"))
    assert isinstance(done.result, dict)
    assert done.result["degraded"] == sorted(READ_BY[layout])
    assert done.outbox is not None


@pytest.mark.parametrize("missing", [["history"], SOURCES])
@pytest.mark.parametrize("layout", ["dialogue", "agent"])
async def test_the_history_may_be_demanded(layout: str, missing: Sequence[str]) -> None:
    """Then a context without it is refused, but the input is recorded all the same."""
    done = await built(layout, missing, StoreUnavailableError("away"), on_history_failure="error")
    assert isinstance(done.result, RequestError)
    assert done.result.code == "HISTORY_UNAVAILABLE"
    assert (done.outbox is not None) == ("insert" in missing)


def test_the_parts_are_those_of_the_metrics() -> None:
    """No part of a context is left out above."""
    assert {*SOURCES} - {"insert"} == {part.value for part in Part}
