"""From a call of a memory tool to its one result (contract §7)."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.core.metrics import DeadLetterCause, Event
from nexus.core.models import Message, Role, Topics, utc_now
from nexus.core.ports import Acquired, Delivery, RunOrigin, Subscription
from nexus.core.signing import Signing
from nexus.core.wire import EnvelopeError, decode, encode
from nexus.core.working_memory import Compaction, CompactionRequest
from nexus.services.history.recorder import RunOrigins
from nexus.services.memory.documents import Caller
from nexus.services.memory.service import Outcome, WorkingMemory
from nexus.services.persistence import PersistenceService
from nexus.services.person.facts import Facts
from nexus.services.requests.claims import DeadLetterWriter
from nexus.services.requests.envelope import RequestSettings, read_tool_call
from nexus.services.requests.tool_calls import ToolCallService
from tests.nexus.support.constraints import constraints_on
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import PATIENCE_S, take, until
from tests.nexus.unit.services.serving import Letters, SettlingBus, SettlingLedger

LONG_MS: Final = 60_000
SAID_AT: Final = utc_now()
# For calls that are carried out and calls that wait.
ROOM: Final = 64 + 1_024
SIGNING: Final = Signing({"k1": b"the first secret"}, required=True)


async def no_compaction(_request: CompactionRequest) -> Compaction | None:
    """There is never anything to compact."""
    return None


class StrangeMemory(WorkingMemory):
    """A working memory that waits at a gate, fails, or stops the one who asks.

    Attributes:
        ran: the callers, in order.
        failures: what the next calls raise.
    """

    def __init__(self, store: FakeStore) -> None:
        super().__init__(
            store.memory,
            store,
            no_compaction,
            constraints=constraints_on(store),
            facts=Facts(store.facts, NO_TOMBSTONES),
        )
        self.gate = anyio.Event()
        self.gate.set()
        self.ran: list[Caller] = []
        self.failures: list[Exception] = []

    async def run(self, name: str, args: Any, caller: Caller) -> Outcome:
        """Do it when the gate is open, and then fail if something is to fail."""
        self.ran.append(caller)
        await self.gate.wait()
        outcome = await super().run(name, args, caller)
        if self.failures:
            raise self.failures.pop(0)
        return outcome


@dataclass(frozen=True)
class Replica:
    """A service that does calls, and what it stands on."""

    store: FakeStore
    bus: SettlingBus
    ledger: SettlingLedger
    letters: Letters
    memory: StrangeMemory
    persistence: PersistenceService
    service: ToolCallService
    heard: Subscription
    metrics: RecordingMetrics
    settings: RequestSettings
    announced: set[str]

    async def results(self, count: int = 1) -> list[Message]:
        """The next `count` results."""
        return [decode(delivery.payload) for delivery in await take(self.heard, count)]

    def offer(self, delivery: Delivery) -> bool:
        """Have a call read and offered, as the dispatcher does."""
        call = read_tool_call(delivery, time.monotonic(), self.settings)
        assert call
        return self.service.offer(call)

    async def call(self, payload: Message | bytes, **about: Any) -> dict[str, Any]:
        """The content of the result of a call."""
        assert self.offer(calling(payload, **about))
        (result,) = await self.results()
        await self.drained()
        assert isinstance(result.content, dict)
        return result.content

    async def drained(self) -> None:
        """Wait until everything that was accepted is finished and recorded."""
        with anyio.fail_after(PATIENCE_S):
            await self.service.pending.none()
            await self.persistence.flush()

    async def rest(self) -> list[Message]:
        """Every result until all that was accepted is finished."""
        await self.drained()
        await self.heard.stop()
        return [decode(delivery.payload) async for delivery in self.heard]

    def revisions(self) -> list[str]:
        """The overviews that are kept."""
        return [row["content"] for row in self.store.memory.rows["working_memory"]]


@asynccontextmanager
async def serving(beside: Replica | None = None, **settings: Any) -> AsyncIterator[Replica]:
    """A replica at work, on a bus and a store of its own or on those of another."""
    store, bus = (beside.store, beside.bus) if beside else (FakeStore(), SettlingBus())
    ledger = beside.ledger if beside else SettlingLedger(bus)
    letters, metrics, memory = Letters(), RecordingMetrics(), StrangeMemory(store)
    persistence, limits = PersistenceService(store, NO_TOMBSTONES, ledger=ledger), RequestSettings(**settings)
    announced = set[str]()
    service = ToolCallService(
        memory,
        bus,
        ledger,
        DeadLetterWriter(letters, metrics, None),
        persistence,
        store.ping,
        limits,
        metrics,
        is_announced=announced.__contains__,
    )
    async with bus.subscribe(Topics.TOOLS_RESULTS) as heard, persistence.running(), service.running():
        yield Replica(store, bus, ledger, letters, memory, persistence, service, heard, metrics, limits, announced)


def update(content: str = "# One", message_id: str = "msg_1", *, owner: str = "ada", **metadata: Any) -> Message:
    """A call that writes the overview."""
    called = {"name": "update_working_memory", "args": {"content": content}, "call_id": "call_1"}
    return Message(
        id=message_id,
        run_id="run_1",
        owner_key=owner,
        role=Role.AI,
        content=called,
        timestamp=SAID_AT,
        metadata={"session_id": "s"} | metadata,
    )


def calling(payload: Message | bytes, **about: Any) -> Delivery:
    """A call as the bus delivers it."""
    return Delivery(Topics.TOOLS_REQUESTS, encode(payload) if isinstance(payload, Message) else payload, **about)


def shared(payload: Message | bytes, entry: str = "1-0", **about: Any) -> Delivery:
    """A call of which this replica has charge."""
    return calling(payload, entry=entry, shared=True, **about)


async def claimed(replica: Replica, message: Message, lease_ms: int = LONG_MS) -> Acquired:
    """The call, in the hands of another replica."""
    ask = read_tool_call(calling(message), 0.0, RequestSettings())
    assert ask is not None
    claim = await replica.ledger.claim(ask.key, ask.fingerprint, lease_ms)
    assert isinstance(claim, Acquired)
    return claim


async def letter_of(replica: Replica) -> tuple[str, str]:
    """Reason and id of the only dead letter; waits for it."""

    async def kept() -> bool:
        return await replica.letters.count() > 0

    await until(kept)
    (letter,) = await replica.letters.newest(9)
    return letter.reason, letter.message_id


class TestResults:
    """Every call of our tools has one result."""

    async def test_a_call(self) -> None:
        """It is done, its result is published and recorded in its session, and the delivery is done."""
        async with serving() as replica:
            delivery = shared(update())
            replica.offer(delivery)
            (result,) = await replica.results()
            await replica.drained()
        assert result.content == {
            "result": "The overview is revision 1 now, 5 of 5120 bytes. The next exchange begins with it.",
            "tool_name": "update_working_memory",
            "status": "success",
            "execution_success": True,
            "call_id": "call_1",
        }
        assert (result.run_id, result.owner_key, result.role) == ("run_1", "ada", Role.TOOL)
        assert replica.revisions() == ["# One"]
        assert replica.bus.settled == [delivery]
        (row,) = replica.store.messages
        assert (row["id"], row["session_id"], row["metadata"]["call_id"]) == (result.id, "s", "call_1")

    async def test_a_run_that_nobody_knows(self) -> None:
        """Without a session of its own a call of it is refused: whose memory would it be?"""
        async with serving() as replica:
            told = await replica.call(update(session_id=None))
        assert (told["status"], replica.memory.ran) == ("error", [])
        assert told["result"] == (
            "run_id: of the run 'run_1' it is not known to which session it belongs; ask for its context first, or "
            "name the session in metadata.session_id"
        )

    async def test_another_session_than_the_runs(self) -> None:
        """A run that is known writes into its own session and no other; the error names both."""
        async with serving() as replica:
            await RunOrigins(replica.store, replica.ledger).begin("ada", "run_1", RunOrigin("theirs"), LONG_MS)
            told = await replica.call(update(session_id="other"))
            assert told["result"] == (
                "metadata.session_id: is 'other', and the run 'run_1' belongs to the session 'theirs'; leave it out"
            )
            assert replica.revisions() == []
            assert (await replica.call(update(message_id="msg_2", session_id="theirs")))["status"] == "success"


def calling_other(name: str = "weather", call_id: str = "call_1") -> Message:
    """A call of a tool that is none of ours."""
    return update().model_copy(update={"content": {"name": name, "args": {}, "call_id": call_id}})


class TestOtherTools:
    """Where all calls are to be answered, those of tools that nobody has announced are."""

    async def test_a_tool_that_nobody_knows(self) -> None:
        """Its call gets an error, which is recorded as every result."""
        async with serving(unknown_tools_after_ms=1) as replica:
            delivery = shared(calling_other())
            assert replica.offer(delivery)
            (result,) = await replica.results()
            await replica.drained()
        assert (result.content["status"], result.content["call_id"]) == ("error", "call_1")
        reason = "weather: nobody has announced such a tool, and no result came within 1 ms"
        assert (result.content["tool_name"], result.content["result"]) == ("weather", reason)
        assert [row["content"] for row in replica.store.messages] == [reason]
        assert replica.bus.settled == [delivery]

    async def test_no_call_at_all(self) -> None:
        """It is answered at once."""
        async with serving(unknown_tools_after_ms=LONG_MS) as replica:
            told = await replica.call(update().model_copy(update={"content": {"tool": "weather"}}))
        assert told["error"]["message"].startswith("content: holds no call that is understood")

    async def test_a_tool_that_is_announced(self) -> None:
        """Before the call or after it: somebody runs it, so nothing is said. Before it, of an unusable call neither."""
        async with serving(unknown_tools_after_ms=1) as replica:
            replica.announced.add("weather")
            unusable = calling_other(call_id="c" * 257).model_copy(update={"id": "msg_3"})
            deliveries = [shared(calling_other()), shared(calling_other("late"), "2-0"), shared(unusable, "3-0")]
            for delivery in deliveries:
                replica.offer(delivery)
            replica.announced.add("late")

            async def both_done() -> bool:
                return len(replica.bus.settled) == len(deliveries)

            await until(both_done)
            assert await replica.rest() == []

    async def test_a_call_that_another_has_answered(self) -> None:
        """One that nobody has announced, but somebody runs: its result is there."""
        async with serving(unknown_tools_after_ms=1) as replica:
            answered = {"run_id": "run_1", "owner_key": "ada", "id": "m", "session_id": "s", "role": "TOOL"}
            replica.store.plant("messages", [{**answered, "content": "7", "metadata": {"call_id": "call_1"}}])
            delivery = shared(calling_other())
            replica.offer(delivery)
            replica.offer(shared(calling_other(call_id="call_2").model_copy(update={"id": "msg_2"}), "2-0"))
            (result,) = await replica.results()
            await replica.drained()
        assert result.content["call_id"] == "call_2"
        assert delivery in replica.bus.settled

    async def test_a_service_that_stops(self) -> None:
        """It does not wait for calls that are not its own: the bus gives them to another."""
        async with serving(unknown_tools_after_ms=LONG_MS) as replica:
            replica.offer(shared(calling_other()))
            await replica.drained()
        assert replica.bus.settled == []


class TestOnce:
    """A call is done once, whoever hears it and however often."""

    async def test_the_same_call_twice(self) -> None:
        """At once and later: one effect, one recorded result, and whoever asks again hears it again."""
        async with serving() as replica:
            replica.memory.gate = anyio.Event()
            for _ in range(3):
                assert replica.offer(calling(update()))
            replica.memory.gate.set()
            (first,) = await replica.results()
            await replica.drained()
            replica.ledger.clock.now += 5
            replica.offer(calling(update()))
            (again,) = await replica.results()
            await replica.drained()
        assert again == first
        assert len(replica.memory.ran) == 1
        assert replica.revisions() == ["# One"]
        assert len(replica.store.messages) == 1

    @pytest.mark.parametrize("is_shared", [True, False])
    async def test_a_replica_that_dies(self, is_shared: bool) -> None:
        """Nobody sends a call again, so who heard it too waits until it is free and does it."""
        async with serving() as replica:
            await claimed(replica, update())
            replica.offer(shared(update()) if is_shared else calling(update()))
            await replica.ledger.times_asked("claim", 3)
            assert replica.memory.ran == []
            replica.ledger.clock.now += LONG_MS
            assert len(await replica.results()) == 1
            await replica.drained()
        assert replica.revisions() == ["# One"]

    async def test_a_replica_that_dies_before_it_answers(self) -> None:
        """What it has written is not written again, and the call gets its result."""
        async with serving() as replica:
            claim = await claimed(replica, update())
            caller = Caller("ada", "s", "run_1", claim.key.removeprefix("tool:"))
            await replica.memory.run("update_working_memory", {"content": "# One"}, caller)
            replica.ledger.clock.now += LONG_MS
            told = await replica.call(update())
        assert told["result"].startswith("The overview is revision 1 now")
        assert replica.revisions() == ["# One"]

    async def test_an_id_used_twice(self) -> None:
        """The second call is told so; the first keeps its result."""
        async with serving() as replica:
            await replica.call(update())
            told = await replica.call(update("# Two"))
            replica.ledger.clock.now += 5
            assert (await replica.call(update()))["status"] == "success"
        assert told["result"] == "id: belongs to another call; every call needs its own"
        assert replica.revisions() == ["# One"]


async def test_signed() -> None:
    """A signed call has a signed result; one that is not signed is not even read."""
    async with serving(signing=SIGNING) as replica:
        signed = update().model_copy(update={"timestamp": utc_now()})
        with pytest.raises(EnvelopeError, match="signature: missing"):
            replica.offer(calling(update("# Forged", "msg_2")))
        replica.offer(calling(encode(signed, topic=Topics.TOOLS_REQUESTS, signing=SIGNING)))
        (delivery,) = await take(replica.heard, 1)
        assert await replica.rest() == []
    assert decode(delivery.payload, topic=Topics.TOOLS_RESULTS, signing=SIGNING).content["status"] == "success"
    assert replica.revisions() == ["# One"]
    assert replica.metrics.counted == {Event.CALL_DONE: 1}


class TestTooMany:
    """No call is left without a result, and no owner waits for the calls of another."""

    async def test_a_flood_of_one_owner(self) -> None:
        """Those that cannot wait are told so at once, and the call of another owner is done in its turn."""
        async with serving() as replica:
            replica.memory.gate = anyio.Event()
            for number in range(700):
                assert replica.offer(calling(update(message_id=f"msg_{number}")))
            assert replica.offer(calling(update(message_id="msg_of_bob", owner="bob")))

            async def turned_to_bob() -> bool:
                return any(caller.owner_key == "bob" for caller in replica.memory.ran)

            await until(turned_to_bob)
            assert len(replica.memory.ran) <= 9
            replica.memory.gate.set()
            await replica.drained()
        # Of one owner at most eight are carried out at once, and half of the room is for those that wait.
        done = 8 + 512 + 1
        assert replica.metrics.counted == {Event.CALL_DONE: done, Event.CALL_FAILED: 701 - done}


class TestSurplus:
    """Calls beyond those that may wait, which on a bus that keeps nothing come all at once."""

    async def test_each_has_a_result(self) -> None:
        """Those for which there is room are carried out, all others are told to come again."""
        async with serving() as replica:
            replica.memory.gate = anyio.Event()
            for number in range(1_200):
                assert replica.offer(calling(update(message_id=f"msg_{number}", owner=f"o{number}")))
            refused = await replica.results(1_200 - ROOM)
            replica.memory.gate.set()
            done = await replica.results(ROOM)
            await replica.drained()
        contents = [result.content for result in refused]
        assert all(content["result"].startswith("Too many calls are waiting") for content in contents)
        assert all(content["error"]["retryable"] for content in contents)
        assert {result.content["status"] for result in done} == {"success"}
        assert len(replica.store.messages) == ROOM
        assert await replica.letters.count() == 0
        assert replica.metrics.counted == {Event.CALL_DONE: ROOM, Event.CALL_FAILED: 1_200 - ROOM}

    async def test_another_replica_has_room(self) -> None:
        """It is carried out there, and this replica says nothing."""
        async with serving() as full, serving(full) as other:
            await _fill(full)
            delivery = calling(update("# Two", message_id="surplus"))
            assert other.offer(delivery)
            await full.ledger.times_asked("conclude")
            assert full.offer(delivery)
            full.memory.gate.set()
            await full.drained()
        assert "# Two" in full.revisions()
        assert {row["metadata"]["status"] for row in full.store.messages} == {"success"}

    async def test_redis_away(self) -> None:
        """No result can be sent, so it is a dead letter."""
        async with serving() as replica:
            await _fill(replica)
            replica.ledger.failures["claim"] = 1
            assert replica.offer(calling(update(message_id="surplus")))
            assert await letter_of(replica) == ("away", "surplus")
            replica.memory.gate.set()
            await replica.drained()


async def _fill(replica: Replica) -> None:
    """Have as many calls run, and wait, as may, each of another owner."""
    replica.memory.gate = anyio.Event()
    for number in range(ROOM):
        assert replica.offer(calling(update(message_id=f"msg_{number}", owner=f"o{number}")))
    await replica.ledger.times_asked("claim", 64)


class TestFaults:
    """Whatever goes wrong, there is a result that says so."""

    async def test_a_store_that_stays_away(self) -> None:
        """The result says that it may be tried again. A call that waited long is not made to wait on."""
        async with serving() as replica:
            replica.store.down = True
            arrived = calling(update())
            content = await _late(replica, arrived)
            replica.store.down = False
            await replica.drained()
        assert content["result"].startswith("The memory cannot be reached now")
        assert content["error"]["retryable"] is True
        assert replica.metrics.counted == {Event.CALL_FAILED: 1}
        assert replica.revisions() == []

    async def test_replicas_that_die_while_the_store_is_away(self) -> None:
        """A call that waits for it is not claimed, so their deaths are no attempts."""
        async with serving() as replica:
            replica.store.down = True
            replica.offer(calling(update()))
            await until(_asked_for(replica, "ping", 2))
            assert replica.ledger.asked["claim"] == 0
            replica.store.down = False
            assert len(await replica.results()) == 1
            await replica.drained()
        assert replica.revisions() == ["# One"]

    async def test_a_fault_of_ours(self) -> None:
        """It is told without its text, and a dead letter names the call."""
        async with serving() as replica:
            replica.memory.failures = [RuntimeError("secret")]
            with capture_logs() as logs:
                told = await replica.call(update())
            assert await letter_of(replica) == ("doing it failed", "msg_1")
        assert told["status"] == "error"
        assert "secret" not in str(told)
        assert "tool_call_failed" in [log["event"] for log in logs]
        assert replica.metrics.counted == {Event.CALL_FAILED: 1, DeadLetterCause.POISON: 1}

    async def test_who_kills_its_replicas(self) -> None:
        """A call that was taken up five times without a result is a dead letter, and is told that it failed."""
        async with serving() as replica:
            for _ in range(5):
                await claimed(replica, update(), lease_ms=1)
                replica.ledger.clock.now += 1
            told = await replica.call(update())
            assert (await letter_of(replica))[0] == "taken up 5 times, and never answered"
        assert told["status"] == "error"
        assert replica.memory.ran == []

    @pytest.mark.parametrize("operation", ["claim", "conclude"])
    async def test_redis_away(self, operation: str) -> None:
        """Calls are not resent, so it is tried until Redis is back."""
        async with serving() as replica:
            replica.ledger.failures[operation] = 1
            replica.offer(calling(update()))
            assert len(await replica.results()) == 1
            await replica.drained()
        assert replica.revisions() == ["# One"]


def _asked_for(replica: Replica, operation: str, times: int) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        return replica.store.calls.count(operation) >= times

    return probe


async def _late(replica: Replica, delivery: Delivery) -> dict[str, Any]:
    """The result of a call that arrived long ago."""
    call = read_tool_call(delivery, time.monotonic() - 11, replica.settings)
    assert call
    assert replica.service.offer(call)
    (result,) = await replica.results()
    assert isinstance(result.content, dict)
    return result.content
