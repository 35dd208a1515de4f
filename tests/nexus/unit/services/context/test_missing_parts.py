"""Whatever of its sources a build cannot read, there is an answer that says what is missing (contract §1.4)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, cycle
from typing import Any, Final

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from nexus.adapters.in_memory import MemoryBus, MemoryLedger, MemoryOutbox
from nexus.core.errors import BusUnavailableError, RequestError, StoreUnavailableError
from nexus.core.metrics import Part
from nexus.core.person import Constraint
from nexus.core.ports import OutboxRow, Row
from nexus.core.turns import Goal, TurnStart
from nexus.core.working_memory import CompactionJob, CompactionRequest, Snapshot
from nexus.services.context.builder import Built, ContextBuilder
from nexus.services.persistence import PersistenceService
from nexus.services.person.facts import Facts
from nexus.services.session_state.state import SessionState
from nexus.services.tools.registry import ToolRegistry
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.fake_person import FakeFacts
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.unit.services.parts import past, request, within

READ_BY: Final[dict[str, frozenset[str]]] = {
    "dialogue": frozenset({"constraints", "facts", "history", "profile", "tools"}),
    "agent": frozenset({"constraints", "history", "state", "turns", "working_memory", "tools"}),
    "thinking": frozenset({"constraints", "turns", "tools"}),
}
PARTS: Final = ("constraints", "facts", "history", "profile", "state", "turns", "working_memory", "tools")
# Beside the parts: the insertion of the input, what the ledger keeps of a run, and the outbox, which holds history.
LEDGER: Final = ("beginning", "keeping", "origin")
SOURCES: Final = (*PARTS, "insert", *LEDGER, "outbox")
# Each is a build: its layout, whether the run goes on, and whether it is a sub-agent's.
SHAPES: Final = [
    ("dialogue", False, False),
    ("dialogue", True, False),
    ("agent", False, False),
    ("agent", True, False),
    ("agent", False, True),
    ("agent", True, True),
    ("thinking", False, False),
    ("thinking", True, False),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No rendering of tracebacks, which takes far longer than builds."""
    with capture_logs():
        yield


class Kind:
    """How a source fails.

    Attributes:
        after_s: how long it takes, so that others have succeeded before.
        error: what it raises then; None for an error of its port, and for no error at all where it takes for ever.
    """

    def __init__(self, name: str, after_s: float = 0, error: Exception | None = None) -> None:
        self.name = name
        self.after_s = after_s
        self.error = error

    def __repr__(self) -> str:
        """Its name, for the names of tests."""
        return self.name

    async def fail(self, source: str) -> None:
        """Fail so."""
        await anyio.sleep(self.after_s)
        of_port = BusUnavailableError if source in {*LEDGER, "outbox"} else StoreUnavailableError
        raise self.error or of_port("away")


KINDS: Final = [
    Kind("away"),
    Kind("never", 1_000),
    Kind("late", 0.1),
    Kind("unexpected", 0, RuntimeError("boom")),
    Kind("late_and_unexpected", 0.1, LookupError("boom")),
]
Missing = Mapping[str, Kind]


class Faults:
    """Which sources are away, and how."""

    def __init__(self) -> None:
        self.missing: Missing = {}

    async def read(self, source: str) -> None:
        """Fail, if the source is away."""
        if kind := self.missing.get(source):
            await kind.fail(source)


class FaultyFacts(FakeFacts):
    """A store of facts that can fail."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(lambda _name: None)
        self.faults = faults

    async def statements(self, owner_key: str, *, limit: int) -> list[Row]:
        """Statements."""
        await self.faults.read("facts")
        return await super().statements(owner_key, limit=limit)


class FaultyStore(FakeStore):
    """A store of which some reads, or inserts, fail."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults
        self.facts = FaultyFacts(faults)

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
    """Turns, working memory, states and constraints, of which some fail."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def begin_turn(self, start: TurnStart) -> anyio.Event:  # noqa: ARG002  # as the port has it
        """Keep it."""
        return anyio.Event()

    async def goal(self, owner_key: str, session_id: str, run_id: str) -> Goal:  # noqa: ARG002  # as the port has it
        """That of the second turn."""
        await self.faults.read("turns")
        return Goal("Grow beans", "turn_2", 2, 1)

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

    async def constraints(self, owner_key: str, session_id: str, run_id: str) -> list[Constraint]:  # noqa: ARG002  # likewise
        """None."""
        await self.faults.read("constraints")
        return []

    async def pin(self, *_: Any, **__: Any) -> tuple[Constraint, int]:
        """Nothing that a build does."""
        raise NotImplementedError


class FaultyLedger(MemoryLedger):
    """A ledger, and its outbox, of which some operations fail."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(MemoryBus())
        self.faults = faults
        self.outbox = FaultyOutbox(faults)
        self.garbage = b""

    async def kept(self, key: str) -> bytes | None:
        """What is kept, or something else."""
        await self.faults.read("beginning")
        return self.garbage or await super().kept(key)

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep it, unless something is kept. An origin is a list of a session and an agent."""
        await self.faults.read("origin" if value.count(b"[") == 1 else "keeping")
        return self.garbage or await super().keep_first(key, value, keep_ms)


class FaultyOutbox(MemoryOutbox):
    """An outbox that can fail."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults

    async def of_owner(self, owner_key: str) -> list[OutboxRow]:
        """The rows of one owner."""
        await self.faults.read("outbox")
        return await super().of_owner(owner_key)


class Scene:
    """A builder whose sources fail as they are told."""

    def __init__(self, on_history_failure: Any = "degrade") -> None:
        self.faults, self.registry = Faults(), ToolRegistry()
        self.store, self.sources = FaultyStore(self.faults), FaultySources(self.faults)
        self.store.plant("messages", past(2))
        self.ledger = FaultyLedger(self.faults)
        self.builder = ContextBuilder(
            PersistenceService(self.store, NO_TOMBSTONES, ledger=self.ledger, outbox=self.ledger.outbox),
            self.store,
            self.registry,
            self.ledger,
            settings_with(on_history_failure=on_history_failure),
            states=self.sources,
            turns=self.sources,
            memory=self.sources,
            facts=Facts(self.store.facts, NO_TOMBSTONES),
            constraints=self.sources,
            counter=FakeCounter(),
        )
        self._runs = 0

    async def build(self, shape: tuple[str, bool, bool], missing: Missing, *, run_id: str = "") -> Built:
        """Build the next run, or that one, while these sources are away. The outbox is said to have rows."""
        layout, continued, is_sub = shape
        self._runs += 1
        self.faults.missing = missing
        self.registry.complete = "tools" not in missing
        agent = {"kind": "sub", "id": "helper", "role": "Gardener"} if is_sub else {"kind": "main"}
        later = [{"id": f"a{self._runs}", "role": "AI", "content": "on it"}] if continued else []
        asked = request(
            run_id=run_id or f"run_{self._runs}", later=later, run_metadata={"layout": layout, "agent": agent}
        )
        return await self.builder.build(asked, within(5.0), outbox_waiting=True)


def subsets(layout: str) -> Iterator[tuple[str, ...]]:
    """Every combination of what a layout depends on; what is together fails together."""
    # Those two are read beside each other.
    together = {"ledger": LEDGER} | ({"state": ("constraints", "state")} if layout == "agent" else {})
    alone = READ_BY[layout] - {each for names in together.values() for each in names}
    names = [*sorted(alone | together.keys()), "insert", "outbox"]
    for count in range(len(names) + 1):
        for chosen in combinations(names, count):
            yield tuple(each for name in chosen for each in together.get(name, (name,)))


def expected(shape: tuple[str, bool, bool], missing: Missing) -> list[str]:
    """The parts that a context lacks while these sources are away."""
    lacking = {*missing} | ({"history"} if "outbox" in missing else set())
    return sorted(READ_BY[shape[0]] & lacking)


def check(shape: tuple[str, bool, bool], missing: Missing, done: Built) -> None:
    """A context that says what it lacks, without a fault; an input that is not stored is for the outbox."""
    told = shape, missing, done.result
    assert isinstance(done.result, dict), told
    assert done.result["degraded"] == expected(shape, missing), told
    assert not done.failed, told
    if "insert" in missing:
        assert done.outbox is not None, told


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_every_combination_of_sources_is_away(shape: tuple[str, bool, bool]) -> None:
    """The context lacks these parts alone, and says so. How they fail takes turns."""
    scene = Scene()
    for names, kind in zip(subsets(shape[0]), cycle(KINDS), strict=False):
        missing = dict.fromkeys(names, kind)
        check(shape, missing, await scene.build(shape, missing))


@given(
    shape=st.sampled_from(SHAPES), missing=st.dictionaries(st.sampled_from(SOURCES), st.sampled_from(KINDS), min_size=2)
)
async def test_each_is_away_in_its_own_way(shape: tuple[str, bool, bool], missing: Missing) -> None:
    """However they fail together."""
    check(shape, missing, await Scene().build(shape, missing))


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1]], ids=str)
async def test_a_run_that_was_begun_whole(shape: tuple[str, bool, bool], kind: Kind) -> None:
    """Its next context lacks what is away now; in the dialogue layout, the constraints alone."""
    scene = Scene()
    check(shape, {}, await scene.build((shape[0], False, shape[2]), {}, run_id="run"))
    parts = {part: kind for part in PARTS if part != "tools"}
    done = await scene.build(shape, parts, run_id="run")
    check(shape, {"constraints": kind} if shape[0] == "dialogue" else parts, done)


async def test_the_log_says_why() -> None:
    """The reason of its source, or how long that was waited for."""
    with capture_logs() as logs:
        await Scene().build(("dialogue", False, False), {"history": KINDS[1], "profile": KINDS[0]})
    reasons = {line["part"]: line["reason"] for line in logs if line["event"] == "degraded"}
    assert reasons["profile"] == "away"
    assert re.fullmatch(r"no answer within [0-9.]+ s", reasons["history"])


@pytest.mark.parametrize("garbage", [b"{", b"[]", b"null", b'{"a": 1}', b"[1, 2, 3]", b"\xff"], ids=repr)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_what_is_kept_cannot_be_read(shape: tuple[str, bool, bool], garbage: bytes) -> None:
    """It is as if nothing was kept: another release may have kept it."""
    scene = Scene()
    scene.ledger.garbage = garbage
    check(shape, {}, await scene.build(shape, {}))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_the_history_may_be_demanded(shape: tuple[str, bool, bool]) -> None:
    """Then a context without it, or without the constraints, is refused; the input is recorded all the same."""
    scene = Scene(on_history_failure="error")
    for names, kind in zip(subsets(shape[0]), cycle(KINDS), strict=False):
        missing = dict.fromkeys(names, kind)
        done = await scene.build(shape, missing)
        if not {"history", "constraints"} & {*expected(shape, missing)}:
            check(shape, missing, done)
            continue
        assert isinstance(done.result, RequestError), (shape, names)
        assert done.result.code == "HISTORY_UNAVAILABLE", (shape, names)
        assert not done.failed
        assert done.outbox is not None or "insert" not in missing


def test_the_parts_are_those_of_the_metrics() -> None:
    """No part of a context is left out above."""
    # Long-term memory is read behind the others: test_build_recall.py.
    assert {*PARTS, "recall"} == {part.value for part in Part}
