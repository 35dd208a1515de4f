"""From the bus to the service that takes a message (contract §1.1): nothing waits, and what is done is done once."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.core.errors import StoreRejectedError
from nexus.core.metrics import DeadLetterCause, Event
from nexus.core.models import ANSWER_TOPICS, Message, Role, Topics, utc_now
from nexus.core.ports import DeadLetter, Delivery, Row
from nexus.core.ports.store import Settled
from nexus.core.signing import Signing
from nexus.core.wire import decode, encode, find_sender
from nexus.core.working_memory import Compaction, CompactionRequest
from nexus.services.context.builder import ContextBuilder
from nexus.services.memory.service import WorkingMemory
from nexus.services.persistence import PersistenceService
from nexus.services.person.facts import Facts
from nexus.services.requests.answerer import RequestService
from nexus.services.requests.claims import DeadLetterWriter, SuspectReader
from nexus.services.requests.dispatcher import NEWS, Dispatcher, work
from nexus.services.requests.envelope import RequestSettings, ToolCallRequest
from nexus.services.requests.tool_calls import ToolCallService
from nexus.services.session_queue import MessageQueue
from nexus.services.session_state.merge import state_in
from nexus.services.session_state.service import SessionStates
from nexus.services.tools.registry import ToolCatalog, ToolRegistry
from tests.nexus.support.builder_settings import BY_DEFAULT
from tests.nexus.support.constraints import constraints_on
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import PATIENCE_S, take, until
from tests.nexus.unit.services.parts import definition, request
from tests.nexus.unit.services.serving import Letters, SettlingBus, SettlingLedger, passed

SIGNING = Signing({"k1": b"the first secret"}, required=True)


class FullPersistence(PersistenceService):
    """A persistence service that does not take the first `full` results."""

    full = 0

    def offer(self, row: Row | None, size: int, settled: Settled = lambda _: None) -> bool:
        """Accept a result, unless it is full."""
        if self.full:
            self.full -= 1
            return False
        return super().offer(row, size, settled)


class FullCalls(ToolCallService):
    """A service for calls of tools that takes none while it is full."""

    full = False

    def offer(self, call: ToolCallRequest) -> bool:
        """Accept a call, unless it is full."""
        return not self.full and super().offer(call)


async def no_compaction(_request: CompactionRequest) -> Compaction | None:
    """There is never anything to compact."""
    return None


class PickyStore(FakeStore):
    """A store that refuses to keep anything, when it is told to."""

    rejecting = False

    def _ask(self, operation: str) -> None:
        if self.rejecting and operation.startswith(("insert", "put", "add")):
            raise StoreRejectedError("never")
        super()._ask(operation)


@dataclass(frozen=True)
class Trial:
    """A dispatcher and whom it hands deliveries to."""

    bus: SettlingBus
    ledger: SettlingLedger
    store: PickyStore
    persistence: FullPersistence
    registry: ToolRegistry
    letters: Letters
    service: RequestService
    calls: FullCalls
    dispatcher: Dispatcher
    metrics: RecordingMetrics
    reloads: list[None]

    async def dispatch(self, *deliveries: Delivery) -> None:
        """Hand these on, one after the other, to the end."""
        ended = anyio.Event()
        with anyio.fail_after(PATIENCE_S):
            await self.dispatcher.dispatch_all(_each(*deliveries), ended)
            await ended.wait()

    async def settled(self, *deliveries: Delivery) -> None:
        """Wait until these are done, and see that nothing is done twice."""

        async def all_settled() -> bool:
            return len(self.bus.settled) >= len(deliveries)

        await until(all_settled)
        await passed()
        assert sorted(self.bus.settled, key=deliveries.index) == [*deliveries]

    async def letter(self) -> DeadLetter:
        """The only dead letter; waits for it."""

        async def kept() -> bool:
            return await self.letters.count() > 0

        await until(kept)
        (letter,) = await self.letters.newest(9)
        return letter


async def _each(*deliveries: Delivery) -> AsyncIterator[Delivery]:
    for delivery in deliveries:
        yield delivery


@asynccontextmanager
async def dispatching(bodies_up_to: int | None = None, **settings: Any) -> AsyncIterator[Trial]:
    """Everything at work, on a store in memory."""
    bus, store, letters, metrics, registry = SettlingBus(), PickyStore(), Letters(), RecordingMetrics(), ToolRegistry()
    persistence, catalog = FullPersistence(store, NO_TOMBSTONES, metrics), ToolCatalog(registry, store)
    states, facts = SessionStates(store, NO_TOMBSTONES, metrics), Facts(store.facts, NO_TOMBSTONES, metrics)
    constraints = constraints_on(store, metrics=metrics)
    ledger = SettlingLedger(bus)
    reloads: list[None] = []

    async def reload() -> None:
        reloads.append(None)

    limits = RequestSettings(**settings)
    async with persistence.running(), catalog.running(), states.running(), facts.running(), constraints.running():
        builder = ContextBuilder(persistence, store, registry, ledger, BY_DEFAULT)
        writer = DeadLetterWriter(letters, metrics, bodies_up_to)
        service = RequestService(builder, bus, ledger, writer, limits, metrics)
        memory = WorkingMemory(store.memory, store, no_compaction, constraints=constraints, facts=facts)
        calls = FullCalls(memory, bus, ledger, writer, persistence, store.ping, limits)
        suspects = SuspectReader(ledger, limits)
        queues: dict[str, MessageQueue[Any]] = {
            Topics.SESSION_STATE: states,
            Topics.MEMORY_FACTS: facts,
            Topics.SESSION_CONSTRAINTS: constraints,
        }
        parts = bus, service, persistence, catalog, queues
        dispatcher = Dispatcher(*parts, suspects, writer, reload, limits, calls)
        async with service.running(), calls.running(), dispatcher.running():
            yield Trial(
                bus, ledger, store, persistence, registry, letters, service, calls, dispatcher, metrics, reloads
            )


def message(role: Role = Role.AI, content: Any = "an answer", **metadata: Any) -> Message:
    """Something of a run."""
    return Message(
        id="msg_1", run_id="run_1", owner_key="ada", role=role, content=content, metadata={"session_id": "s"} | metadata
    )


def of(topic: str, payload: Message | bytes, entry: str = "1-0", *, shared: bool = True, **about: Any) -> Delivery:
    """A delivery of which this replica has charge."""
    content = encode(payload) if isinstance(payload, Message) else payload
    return Delivery(topic, content, entry, shared=shared, **about)


def changed() -> Message:
    """A message about changed settings."""
    return message(Role.SYSTEM, None)


def _has_reloaded(trial: Trial) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        return len(trial.reloads) == 1

    return probe


def on_its_own(topic: str, payload: Message | bytes) -> Delivery:
    """A delivery of a bus that keeps nothing."""
    return of(topic, payload, "", shared=False)


CHANGES: list[tuple[str, Callable[[], Message]]] = [
    (Topics.LLM_RESULTS, message),
    (Topics.TOOLS_RESULTS, lambda: message(Role.TOOL, "found", tool_call_id="call_1", tool_name="web_search")),
    (Topics.TOOLS_PROGRESS, lambda: message(Role.TOOL, {"state": "working", "call_id": "call_1"})),
    (Topics.RUNS_INPUT, lambda: message(Role.HUMAN, "no, Bergen")),
]


FACT = {"topic": "home", "value": "Porto"}
# What is to be stored, and what is counted where the store refuses it.
KEPT: list[tuple[str, Callable[[], Message], Event | None]] = [
    *((topic, made, Event.ROW_REJECTED) for topic, made in CHANGES),
    (Topics.TOOLS_REGISTER, lambda: message(Role.SYSTEM, definition()), None),
    (Topics.TOOLS_UNREGISTER, lambda: message(Role.SYSTEM, {"name": "web_search"}), None),
    (Topics.SESSION_STATE, lambda: message(Role.COMMAND, {"op": "set", "state": {"role": "r"}}), Event.STATE_REFUSED),
    (Topics.MEMORY_FACTS, lambda: message(Role.COMMAND, {"op": "add", "facts": [FACT]}), Event.FACTS_REFUSED),
    (
        Topics.SESSION_CONSTRAINTS,
        lambda: message(Role.COMMAND, {"op": "add", "constraints": ["r"]}),
        Event.CONSTRAINTS_REFUSED,
    ),
]
WORK: list[tuple[str, Callable[[], Message]]] = [
    *((topic, made) for topic, made, _ in KEPT),
    (Topics.CONTEXT_BUILD_REQUEST, request),
    (Topics.MEMORY_SEARCH, lambda: message(Role.HUMAN, {"query": "x"})),
    (Topics.TOOLS_REQUESTS, lambda: message(content={"name": "search_memory", "args": {"query": "x"}})),
]


class TestTopics:
    """Each message reaches whom it is for."""

    async def test_a_request(self) -> None:
        """It is answered."""
        async with dispatching() as trial, trial.bus.subscribe(Topics.CONTEXT_BUILD_RESPONSE) as heard:
            await trial.dispatch(on_its_own(Topics.CONTEXT_BUILD_REQUEST, request()))
            await trial.service.pending.none()
            await heard.stop()
            assert len([delivery async for delivery in heard]) == 1
        assert trial.metrics.counted[None] == 1

    @pytest.mark.parametrize(("topic", "made"), CHANGES)
    @pytest.mark.parametrize("is_shared", [False, True])
    async def test_a_result(self, topic: str, made: Callable[[], Message], is_shared: bool) -> None:
        """It is recorded, and done when it is: not before."""
        async with dispatching() as trial:
            delivery = of(topic, made()) if is_shared else on_its_own(topic, made())
            trial.store.down = True
            await trial.dispatch(delivery)
            await passed()
            assert trial.bus.settled == []
            trial.store.down = False
            await trial.persistence.flush()
            await trial.settled(*([delivery] if is_shared else []))
        assert [row["run_id"] for row in trial.store.messages] == ["run_1"]
        assert trial.metrics.counted == {Event.ROW_RECORDED: 1}

    async def test_a_result_that_is_never_recorded(self) -> None:
        """By rule: it is done, for handing it out again would not help."""
        async with dispatching() as trial:
            delivery = of(Topics.LLM_RESULTS, message(Role.SYSTEM, None))
            await trial.dispatch(delivery)
            await trial.persistence.flush()
            await trial.settled(delivery)
        assert trial.metrics.counted == {}

    async def test_a_tool(self) -> None:
        """It is stored and listed, and forgotten again; both are done when they are stored."""
        async with dispatching() as trial:
            register = of(Topics.TOOLS_REGISTER, message(Role.SYSTEM, definition()))
            await trial.dispatch(register)
            await until(_lists(trial, "web_search"))
            unregister = of(Topics.TOOLS_UNREGISTER, message(Role.SYSTEM, {"name": "web_search"}), "2-0")
            await trial.dispatch(unregister)
            await until(_lists(trial))
            await trial.settled(register, unregister)
        assert trial.metrics.counted == {}

    async def test_a_state(self) -> None:
        """It is kept for the session that the message names, and done when it is stored."""
        async with dispatching() as trial:
            delivery = of(Topics.SESSION_STATE, message(Role.COMMAND, {"op": "set", "state": {"role": "r"}}))
            await trial.dispatch(delivery)
            await trial.settled(delivery)
        (row,) = trial.store.session_states
        assert (row["owner_key"], row["session_id"]) == ("ada", "s")
        assert state_in(row["document"])[0].role == "r"
        assert trial.metrics.counted == {Event.STATE_RECORDED: 1}

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"{}",
            b"null",
            b"[1]",
            b"now",
            b"\xff\x00",
            b'{"a": NaN}',
            b"[" * 9_999,
            b"x" * 200_000,
            encode(changed()),
        ],
        ids=lambda payload: ascii(payload[:9]),
    )
    @pytest.mark.parametrize("signing", [None, Signing(SIGNING.keys)], ids=["unsigned", "signed"])
    async def test_news_of_changed_settings(self, payload: bytes, signing: Signing | None) -> None:
        """Whatever its content, the stored settings are read again, and it is no dead letter."""
        async with dispatching(signing=signing, max_payload_bytes=100_000) as trial:
            await trial.dispatch(on_its_own(Topics.CONFIG_CHANGED, payload))
            await until(_has_reloaded(trial))
            await trial.dispatcher.pending.none()
            assert await trial.letters.count() == 0
        assert trial.metrics.counted == {}

    async def test_signed_news_of_changed_settings(self) -> None:
        """Where signatures are required nothing else counts: not what is signed, and not what is not."""
        no_message = {"id": "1", "timestamp": utc_now().isoformat(), "content": []}
        async with dispatching(signing=SIGNING) as trial:
            for payload in (
                encode(changed(), topic=Topics.CONFIG_CHANGED, signing=SIGNING),
                SIGNING.signed(Topics.CONFIG_CHANGED, no_message),
            ):
                trial.reloads.clear()
                await trial.dispatch(on_its_own(Topics.CONFIG_CHANGED, payload))
                await until(_has_reloaded(trial))
            trial.reloads.clear()
            for payload in (b"{}", encode(changed()), encode(changed(), topic=Topics.SESSION_STATE, signing=SIGNING)):
                await trial.dispatch(on_its_own(Topics.CONFIG_CHANGED, payload))
            await trial.dispatcher.pending.none()
            await passed()
            assert (await trial.letters.count(), trial.reloads) == (3, [])

    def test_the_news(self) -> None:
        """Every topic of news is known."""
        assert {*NEWS} == {Topics.TOOLS_REGISTER, Topics.TOOLS_UNREGISTER, Topics.CONFIG_CHANGED}

    def test_the_work(self) -> None:
        """Requests are shed when too many wait, for somebody waits for them; what is recorded never is."""
        shared = {item.topic: item for item in work(7)}
        assert shared[Topics.CONTEXT_BUILD_REQUEST].most == 7
        assert (shared[Topics.MEMORY_SEARCH].most, work(3)[1].most) == (1, 1)
        assert [topic for topic, item in shared.items() if item.sheds] == [*ANSWER_TOPICS]
        results = {Topics.LLM_RESULTS, Topics.TOOLS_RESULTS, Topics.TOOLS_PROGRESS, Topics.RUNS_INPUT}
        kept = {
            Topics.TOOLS_REGISTER,
            Topics.TOOLS_UNREGISTER,
            Topics.SESSION_STATE,
            Topics.MEMORY_FACTS,
            Topics.SESSION_CONSTRAINTS,
        }
        assert {*shared} == {*ANSWER_TOPICS, *results, *kept}
        with_tools = {item.topic: item.most for item in work(7, tool_calls=True)}
        assert with_tools == {item.topic: item.most for item in work(7)} | {Topics.TOOLS_REQUESTS: 64}

    async def test_a_call_of_a_tool(self) -> None:
        """One of ours has a result; what is for others is done, and nobody is told that it could not be read."""
        call = message(content={"name": "update_working_memory", "args": {"content": "# One"}})
        async with dispatching() as trial, trial.bus.subscribe(Topics.TOOLS_RESULTS) as heard:
            ours, others = of(Topics.TOOLS_REQUESTS, call), of(Topics.TOOLS_REQUESTS, b"not JSON", "2-0")
            await trial.dispatch(ours, others)
            (result,) = await take(heard, 1)
            await trial.calls.pending.none()
            assert {*trial.bus.settled} >= {others}
            assert await trial.letters.count() == 0
        assert decode(result.payload).content["status"] == "success"
        assert trial.store.memory.rows["working_memory"][0]["content"] == "# One"

    async def test_more_calls_than_can_wait(self) -> None:
        """On a bus that keeps nothing they are dead letters, for it is now or never."""
        async with dispatching() as trial:
            trial.calls.full = True
            call = message(content={"name": "search_memory", "args": {"query": "x"}})
            await trial.dispatch(on_its_own(Topics.TOOLS_REQUESTS, call))
            letter = await trial.letter()
        assert letter.reason == "too many calls of tools are waiting"
        assert trial.metrics.counted == {DeadLetterCause.BACKLOG: 1}


def _lists(trial: Trial, *names: str) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        return trial.registry.list_tool_names() == [*names]

    return probe


class TestFaults:
    """What cannot be used becomes a dead letter, is counted, and is done."""

    @pytest.mark.parametrize(
        ("payload", "cause"),
        [
            (b"secret", DeadLetterCause.UNREADABLE),
            (encode(message(content="x" * 2_000)), DeadLetterCause.TOO_LARGE),
        ],
    )
    @pytest.mark.parametrize(
        "topic",
        [
            Topics.LLM_RESULTS,
            Topics.TOOLS_RESULTS,
            Topics.TOOLS_REGISTER,
            Topics.TOOLS_UNREGISTER,
            Topics.SESSION_STATE,
            Topics.MEMORY_FACTS,
            Topics.SESSION_CONSTRAINTS,
        ],
    )
    async def test_no_message(self, topic: str, payload: bytes, cause: DeadLetterCause) -> None:
        """Whatever it was meant to be; what comes after it is handled."""
        async with dispatching(max_payload_bytes=1_500) as trial:
            after = message().model_copy(update={"id": "msg_2"})
            bad, good = of(topic, payload), of(Topics.LLM_RESULTS, after, "2-0")
            await trial.dispatch(bad, good)
            letter = await trial.letter()
            await trial.settled(bad, good)
        assert (letter.topic, letter.size, letter.body) == (topic, len(payload), None)
        assert "secret" not in letter.reason
        # In the place of a result that is too large a row says so.
        told = cause is DeadLetterCause.TOO_LARGE and topic in {Topics.LLM_RESULTS, Topics.TOOLS_RESULTS}
        assert trial.metrics.counted == {cause: 1, Event.ROW_RECORDED: 1 + told}

    @pytest.mark.parametrize(
        ("topic", "role", "content", "reason", "counted"),
        [
            (
                Topics.TOOLS_REGISTER,
                Role.SYSTEM,
                {"type": "function"},
                "function: a mapping with name, description and parameters is needed",
                {},
            ),
            (
                Topics.SESSION_STATE,
                Role.COMMAND,
                {"op": "set", "state": {"todos": [{"id": "a", "text": "b", "status": "done"}]}},
                "content.state.todos[0].status: 'done' is unknown; allowed: pending, in_progress, completed",
                {},
            ),
            (
                Topics.SESSION_STATE,
                Role.COMMAND,
                {"op": "set", "state": {"useful_info": [{"id": n, "text": "x" * 8_000} for n in range(140)]}},
                "at most 1048576 are allowed",
                {Event.STATE_REFUSED: 1},
            ),
            (
                Topics.MEMORY_FACTS,
                Role.COMMAND,
                {"op": "add", "facts": [{"topic": "home"}]},
                "content.facts[0].value: is missing or blank; a text of 1 to 500 characters is needed",
                {},
            ),
            (
                Topics.SESSION_CONSTRAINTS,
                Role.COMMAND,
                {"op": "add", "constraints": [{"text": "b", "kind": "should"}]},
                "content.constraints[0].kind: 'should' is unknown; allowed: must, must_not, format, scope",
                {},
            ),
            (
                Topics.SESSION_CONSTRAINTS,
                Role.COMMAND,
                {"op": "add", "constraints": ["x" * 2_000 + str(n) for n in range(9)]},
                "content.constraints[0].text: 2001 characters, at most 2000 are allowed",
                {},
            ),
            (
                Topics.SESSION_CONSTRAINTS,
                Role.COMMAND,
                {"op": "add", "constraints": [f"{n} {'x ' * 990}" for n in range(100)]},
                "tokens, at most 10000 are allowed; take some back first",
                {Event.CONSTRAINTS_REFUSED: 1},
            ),
            (Topics.RUNS_INPUT, Role.AI, "and umbrellas?", "role: HUMAN is needed", {}),
            (Topics.RUNS_INPUT, Role.HUMAN, [{"type": "text", "text": " \n"}], "content: is empty", {}),
        ],
        ids=[
            "a definition that is none",
            "a state that is none",
            "a state that becomes too large",
            "a fact that is none",
            "a constraint that is none",
            "a constraint that is too long",
            "constraints that are too many",
            "a person's words from a model",
            "a person who says nothing",
        ],
    )
    async def test_refused(  # a table
        self, topic: str, role: Role, content: Any, reason: str, counted: dict[Any, int]
    ) -> None:
        """What is wrong is in the letter, with its place, and nothing is stored."""
        async with dispatching(max_payload_bytes=2 << 20) as trial:
            delivery = of(topic, message(role, content))
            await trial.dispatch(delivery)
            letter = await trial.letter()
            await trial.settled(delivery)
        assert reason in letter.reason
        assert trial.metrics.counted == Counter(counted) + Counter({DeadLetterCause.REFUSED: 1})
        assert trial.store.session_states == trial.store.messages == []

    @pytest.mark.parametrize("is_shared", [False, True])
    @pytest.mark.parametrize(("topic", "made", "event"), KEPT, ids=[topic for topic, *_ in KEPT])
    async def test_refused_by_the_store(
        self, topic: str, made: Callable[[], Message], event: Event | None, is_shared: bool
    ) -> None:
        """Whatever is to be stored and is refused is a dead letter, counted, and done."""
        async with dispatching() as trial:
            trial.store.rejecting = True
            delivery = of(topic, made()) if is_shared else on_its_own(topic, made())
            await trial.dispatch(delivery)
            letter = await trial.letter()
            await trial.settled(*([delivery] if is_shared else []))
        assert (letter.topic, letter.message_id) == (topic, "msg_1")
        assert letter.reason.lower().endswith("never")
        assert trial.metrics.counted == Counter(filter(None, [DeadLetterCause.REFUSED, event]))

    async def test_an_unknown_state(self) -> None:
        """Of a call is refused, and the dead letter says what is allowed."""
        async with dispatching() as trial:
            delivery = of(Topics.TOOLS_PROGRESS, message(Role.TOOL, {"state": "paused", "call_id": "call_1"}))
            await trial.dispatch(delivery)
            letter = await trial.letter()
            await trial.settled(delivery)
        allowed = "working, input_required, completed, failed, cancelled"
        assert letter.reason == f"content.state: 'paused' is unknown; allowed: {allowed}"
        assert (letter.message_id, trial.store.messages) == ("msg_1", [])
        assert trial.metrics.counted == {DeadLetterCause.REFUSED: 1}

    @pytest.mark.parametrize("topic", [Topics.LLM_RESULTS, Topics.TOOLS_RESULTS, Topics.RUNS_INPUT])
    async def test_a_result_of_an_ambiguous_session(self, topic: str) -> None:
        """On the wire "s" and a NUL, or half a surrogate pair, have become this one: it is in no session."""
        async with dispatching() as trial:
            delivery = of(topic, message(session_id="s\ufffd"))
            await trial.dispatch(delivery)
            letter = await trial.letter()
            await trial.settled(delivery)
        assert letter.reason == "metadata.session_id: NUL, U+FFFD and half a surrogate pair are not allowed in an id"
        assert trial.metrics.counted == {DeadLetterCause.REFUSED: 1}

    @pytest.mark.parametrize("is_shared", [False, True])
    async def test_corrupt_requests_take_no_place(self, is_shared: bool) -> None:
        """Three thousand at once are three thousand dead letters, and the next good request is built."""
        topic = Topics.CONTEXT_BUILD_REQUEST
        bad = [of(topic, b"secret %d" % number, f"{number}-0", shared=is_shared) for number in range(3_000)]
        good = of(topic, request(), "9999-0", shared=is_shared)
        async with dispatching(bodies_up_to=100, max_in_flight=1) as trial:
            with capture_logs() as logs:
                await trial.dispatch(*bad, good)
                await trial.service.pending.none()
                await trial.dispatcher.pending.none()
            (newest,) = await trial.letters.newest(1)
            assert await trial.letters.count() == 3_000
        assert newest.body == bad[-1].payload
        assert "secret" not in str(logs)
        assert (trial.metrics.counted[DeadLetterCause.UNREADABLE], trial.metrics.counted[None]) == (3_000, 1)
        assert len(trial.bus.settled) == 3_001 * is_shared

    @pytest.mark.parametrize("topic", [Topics.TOOLS_REQUESTS, Topics.LLM_RESULTS])
    async def test_unsigned(self, topic: str) -> None:
        """What is not answered is a dead letter that names it, where signatures are required."""
        async with dispatching(signing=SIGNING) as trial:
            await trial.dispatch(of(topic, message(content={"name": "search_memory", "args": {"query": "x"}})))
            letter = await trial.letter()
        assert (letter.message_id, "metadata.signature: missing" in letter.reason) == ("msg_1", True)
        assert trial.metrics.counted == {DeadLetterCause.UNAUTHENTICATED: 1}

    @pytest.mark.parametrize("topic", [Topics.LLM_RESULTS, Topics.TOOLS_RESULTS])
    @pytest.mark.parametrize("shared", [True, False])
    async def test_a_result_that_is_too_large(self, topic: str, *, shared: bool) -> None:
        """Its row says so and which call it answers, and is a dead letter; one that is not takes its place."""
        role = Role.TOOL if topic == Topics.TOOLS_RESULTS else Role.AI

        def told(text: str) -> bytes:
            content = {"result": text, "call_id": "c1", "status": "success"} if role is Role.TOOL else text
            return encode(message(role, content))

        async with dispatching(max_payload_bytes=1_500) as trial:
            for number in (1, 2):
                await trial.dispatch(of(topic, told("x" * 2_000), f"{number}-0", shared=shared))
            await trial.persistence.flush()
            (row,) = trial.store.messages
            assert row["content"].startswith("(too large to be recorded: ")
            assert (row["role"], row["id"], row["run_id"]) == (role, "msg_1", "run_1")
            if role is Role.TOOL:
                told_of = {"call_id": "c1", "status": "error", "execution_success": False}
                assert {name: row["metadata"][name] for name in told_of} == told_of

            for number, text in enumerate(("small", "another", "x" * 2_000), 3):
                await trial.dispatch(of(topic, told(text), f"{number}-0", shared=shared))
            await trial.persistence.flush()
            assert [row["content"] for row in trial.store.messages] == ["small"]
            await passed()
        assert trial.metrics.counted[DeadLetterCause.TOO_LARGE] == 3
        if role is Role.TOOL:
            assert row["metadata"]["execution_success"] is True

    @pytest.mark.parametrize("topic", [Topics.LLM_RESULTS, Topics.TOOLS_RESULTS])
    async def test_a_stranger_records_nothing_that_is_too_large(self, topic: str) -> None:
        """Where signatures are required, nobody knows who sent it, whatever signature it has."""
        signed = encode(message(content="x" * 2_000), topic=topic, signing=Signing(SIGNING.keys))
        async with dispatching(max_payload_bytes=1_500, signing=SIGNING) as trial:
            for number, payload in enumerate((encode(message(content="x" * 2_000)), signed), 1):
                await trial.dispatch(of(topic, payload, f"{number}-0"))
            await trial.persistence.flush()
            await passed()
        assert trial.store.messages == []
        assert trial.metrics.counted == {DeadLetterCause.UNAUTHENTICATED: 2}

    async def test_a_request_that_is_too_large_to_be_searched(self) -> None:
        """More than sixteen times what is allowed is a dead letter without an id."""
        async with dispatching(max_payload_bytes=2_000) as trial:
            await trial.dispatch(on_its_own(Topics.CONTEXT_BUILD_REQUEST, request("x" * 300_000)))
            letter = await trial.letter()
        assert (letter.message_id, letter.size > 300_000) == ("", True)
        assert trial.metrics.counted == {DeadLetterCause.TOO_LARGE: 1}

    @pytest.mark.parametrize("deliveries", [5, 6, 151])
    @pytest.mark.parametrize(("topic", "made"), WORK, ids=[topic for topic, _ in WORK])
    async def test_what_outlived_many_replicas(self, topic: str, made: Callable[[], Message], deliveries: int) -> None:
        """It was only waiting, so it is dealt with, however often it was handed out."""
        async with dispatching() as trial:
            delivery = of(topic, made(), deliveries=deliveries)
            await trial.dispatch(delivery)
            await trial.settled(delivery)
            assert await trial.letters.count() == 0
        assert DeadLetterCause.POISON not in trial.metrics.counted

    @pytest.mark.parametrize("died", [5, 6])
    @pytest.mark.parametrize(("topic", "made"), WORK, ids=[topic for topic, _ in WORK])
    async def test_what_kills_who_reads_it(self, topic: str, made: Callable[[], Message], died: int) -> None:
        """Read five times and never to its end, it is not read again; what was in hand with it is."""
        async with dispatching() as trial:
            bad, good = of(topic, made(), deliveries=11), of(Topics.LLM_RESULTS, message(), "2-0", deliveries=11)
            for _ in range(died):
                await trial.ledger.claim(f"read:{topic}:1-0", "1-0", lease_ms=0)
            await trial.dispatch(bad, good)
            letter = await trial.letter()
            await trial.settled(bad, good)
        assert (letter.deliveries, letter.reason) == (11, f"read {died} times, and never to its end")
        assert trial.metrics.counted == {DeadLetterCause.POISON: 1, Event.ROW_RECORDED: 1}

    async def test_a_fault_with_a_suspect(self) -> None:
        """It is a dead letter, and the next message is handled."""
        async with dispatching() as trial:
            trial.ledger.fault = LookupError("boom")
            bad, good = of(Topics.LLM_RESULTS, message(), deliveries=6), of(Topics.LLM_RESULTS, message(), "2-0")
            await trial.dispatch(bad, good)
            assert (await trial.letter()).reason == "passing it on failed"
            await trial.settled(bad, good)
        assert [row["id"] for row in trial.store.messages] == ["msg_1"]

    async def test_a_suspect_while_redis_is_away(self) -> None:
        """It is read when Redis is back; a claim that could not be given back counts once."""
        async with dispatching() as trial:
            trial.ledger.failures.update(claim=1, release=1)
            delivery = of(Topics.LLM_RESULTS, message(), deliveries=6)
            with capture_logs() as logs:
                await trial.dispatch(delivery)
                await trial.settled(delivery)
        assert [log["event"] for log in logs].count("reading_delayed") == 1
        assert trial.metrics.counted == {Event.ROW_RECORDED: 1}

    async def test_letters_that_cannot_be_kept(self) -> None:
        """While the bus is away the next message is handled; they are done when their letters are kept."""
        async with dispatching() as trial:
            trial.letters.away = True
            bad = [of(Topics.LLM_RESULTS, b"bad %d" % number, f"{number}-0") for number in range(5)]
            good = of(Topics.LLM_RESULTS, message(), "9999-0")
            await trial.dispatch(*bad, good)
            await trial.settled(good)
            assert await trial.letters.count() == 0
            trial.letters.away = False
            await trial.settled(good, *bad)
            assert await trial.letters.count() == 5
        assert trial.metrics.counted[Event.ROW_RECORDED] == 1

    async def test_a_fault_in_keeping_a_letter(self) -> None:
        """Is counted; the next letter is kept."""
        async with dispatching() as trial:
            trial.letters.fault = LookupError("boom")
            bad = [of(Topics.LLM_RESULTS, b"bad %d" % number, f"{number}-0") for number in range(2)]
            await trial.dispatch(bad[0])
            await trial.settled(bad[0])
            trial.letters.fault = None
            await trial.dispatch(bad[1])
            await trial.settled(*bad)
            assert await trial.letters.count() == 1
        assert trial.metrics.counted[Event.BACKGROUND_FAULT] == 1

    async def test_more_letters_than_can_wait(self) -> None:
        """Those that the bus keeps wait on; of others that is counted, and the next message is handled."""
        async with dispatching() as trial:
            trial.letters.away = True
            bad = [of(Topics.LLM_RESULTS, b"bad %d" % number, f"{number}-0") for number in range(100)]
            others = [on_its_own(Topics.LLM_RESULTS, b"other %d" % number) for number in range(4_097)]
            good = of(Topics.LLM_RESULTS, message(), "9999-0")
            await trial.dispatch(*bad, *others, good)
            await trial.settled(good)
            assert trial.metrics.counted[Event.DEAD_LETTER_LOST] == 1
            trial.letters.away = False
            await trial.settled(good, *bad)
            await trial.dispatcher.pending.none()
            assert await trial.letters.count() == 100 + 4_096


def large(owner: str, number: int, content: Any = "x") -> Message:
    """A result that is read in a thread."""
    told = {"content": "y" * (200 << 10), "more": content}
    return Message(id=f"{owner}_{number}", run_id=f"run_of_{owner}", owner_key=owner, role=Role.AI, content=told)


class TestLarge:
    """What takes long to read holds up its owner alone."""

    @pytest.mark.parametrize("is_shared", [False, True])
    async def test_of_one_owner_nothing_overtakes(self, is_shared: bool) -> None:
        """Results are recorded in the order in which they were sent, large or small; what others sent goes by."""
        sent = [
            large("ada", 0, [[]] * 10_000),
            message().model_copy(update={"id": "ada_1"}),
            large("ada", 2),
            message().model_copy(update={"id": "bob_0", "owner_key": "bob"}),
            large("eve", 0),
        ]
        deliveries = [of(Topics.LLM_RESULTS, each, f"{number}-0", shared=is_shared) for number, each in enumerate(sent)]
        async with dispatching() as trial:
            await trial.dispatch(*deliveries)
            await trial.persistence.flush()
            rows = sorted(trial.store.messages, key=lambda row: str(row["_id"]))
            await trial.settled(*(deliveries if is_shared else []))
        assert [row["id"] for row in rows if row["owner_key"] == "ada"] == ["ada_0", "ada_1", "ada_2"]
        assert rows[0]["id"] == "bob_0"
        assert {row["id"] for row in rows} == {each.id for each in sent}

    async def test_signed_messages_have_their_owners(self) -> None:
        """Also where the owner stands behind the content, as in canonical form."""
        sent = [large("ada", 0, [[]] * 50_000), large("ada", 1), large("eve", 0)]
        async with dispatching(signing=SIGNING) as trial:
            payloads = [encode(each, topic=Topics.LLM_RESULTS, signing=SIGNING) for each in sent]
            assert [find_sender(payload) for payload in payloads] == [(each.owner_key, each.run_id) for each in sent]
            await trial.dispatch(*(of(Topics.LLM_RESULTS, payload, f"{n}-0") for n, payload in enumerate(payloads)))
            await trial.persistence.flush()
        rows = sorted(trial.store.messages, key=lambda row: str(row["_id"]))
        assert [row["id"] for row in rows if row["owner_key"] == "ada"] == ["ada_0", "ada_1"]

    async def test_a_request_passes_by_what_others_send_in_its_owners_name(self) -> None:
        """It is accepted before any of that is read."""
        forged = [on_its_own(Topics.LLM_RESULTS, encode(large("ada", number))) for number in range(300)]
        payload = encode(request(), topic=Topics.CONTEXT_BUILD_REQUEST, signing=SIGNING)
        async with dispatching(signing=SIGNING) as trial:
            accepted = 0

            async def flood() -> AsyncIterator[Delivery]:
                nonlocal accepted
                for delivery in [*forged, on_its_own(Topics.CONTEXT_BUILD_REQUEST, payload)]:
                    yield delivery
                accepted = trial.service.pending.count

            await trial.dispatcher.dispatch_all(flood(), anyio.Event())
        assert accepted == 1
        assert trial.metrics.counted[DeadLetterCause.UNAUTHENTICATED] >= 1

    async def test_a_reader_waits_for_a_large_result(self) -> None:
        """It finds the row, or knows that one is missing."""
        async with dispatching() as trial:
            pasts = []

            async def sent() -> AsyncIterator[Delivery]:
                yield on_its_own(Topics.LLM_RESULTS, large("ada", 0))
                pasts.append(await trial.persistence.get_past("ada", messages=9, excerpt_chars=9, asked=request()))

            await trial.dispatcher.dispatch_all(sent(), anyio.Event())
        assert [row["id"] for row in pasts[0].rows] == ["ada_0"] or not pasts[0].complete

    async def test_without_room_small_messages_go_on(self) -> None:
        """On a bus that keeps nothing, large results are dead letters then."""
        texts = ["z" * (700 << 10)]
        results = [on_its_own(Topics.LLM_RESULTS, encode(large("ada", number, texts))) for number in range(60)]
        small = [message().model_copy(update={"id": f"small_{number}", "owner_key": "ada"}) for number in range(50)]
        async with dispatching() as trial:
            await trial.dispatch(*results, *(on_its_own(Topics.LLM_RESULTS, each) for each in small))
            await trial.persistence.flush()
            await trial.dispatcher.pending.none()
        kept = {row["id"] for row in trial.store.messages}
        assert kept >= {each.id for each in small}
        refused = trial.metrics.counted[DeadLetterCause.BACKLOG]
        assert 0 < refused == len(results) + len(small) - len(kept)

    async def test_without_room_large_requests_are_sent_again(self) -> None:
        """They are no dead letters: another replica may have room."""
        note = {"note": "n" * (950 << 10)}
        asked = [request(request_id=f"msg_{number}", run_metadata=note) for number in range(60)]
        async with dispatching() as trial:
            await trial.dispatch(*(on_its_own(Topics.CONTEXT_BUILD_REQUEST, each) for each in asked))
            await trial.service.pending.none()
            assert await trial.letters.count() == 0
        dropped = trial.metrics.counted[Event.REQUEST_DROPPED]
        assert 0 < dropped == len(asked) - len(trial.ledger.kept_ms)

    async def test_a_large_message_that_cannot_be_used(self) -> None:
        """It is a dead letter, and the drain waits for it."""
        async with dispatching() as trial:
            bad = of(Topics.LLM_RESULTS, encode(large("ada", 0))[:-1])
            good = of(Topics.LLM_RESULTS, message(), "2-0")
            await trial.dispatch(bad, good)
            await trial.settled(bad, good)
            assert "not JSON" in (await trial.letter()).reason


class TestFull:
    """Results for which there is no room."""

    async def test_of_which_this_replica_has_charge(self) -> None:
        """They are offered until they are taken: recorded once, done once, and no dead letter."""
        async with dispatching() as trial:
            trial.persistence.full = 3
            deliveries = [
                of(Topics.LLM_RESULTS, message().model_copy(update={"id": f"msg_{number}"}), f"{number}-0")
                for number in range(2)
            ]
            await trial.dispatch(*deliveries)
            await trial.settled(*deliveries)
            assert await trial.letters.count() == 0
        assert sorted(row["id"] for row in trial.store.messages) == ["msg_0", "msg_1"]
        assert trial.metrics.counted == {Event.ROW_RECORDED: 2}

    async def test_which_nobody_keeps(self) -> None:
        """They are dead letters, for it is now or never."""
        async with dispatching() as trial:
            trial.persistence.full = 1
            await trial.dispatch(on_its_own(Topics.LLM_RESULTS, message()))
            letter = await trial.letter()
        assert letter.reason == "too much is waiting to be recorded"
        assert (trial.store.messages, trial.metrics.counted) == ([], {DeadLetterCause.BACKLOG: 1})


class TestSigning:
    """Where messages are signed, each is believed for its topic and its time only."""

    async def test_a_signed_result(self) -> None:
        """It is recorded; also when it lay on the bus for long."""
        async with dispatching(signing=SIGNING) as trial:
            old = message().model_copy(update={"timestamp": utc_now().replace(year=2020, day=1)})
            sent_ms = int(old.timestamp.timestamp() * 1_000)
            payload = encode(old, topic=Topics.LLM_RESULTS, signing=SIGNING)
            delivery = of(Topics.LLM_RESULTS, payload, sent_ms=sent_ms)
            await trial.dispatch(delivery)
            await trial.settled(delivery)
        assert trial.metrics.counted == {Event.ROW_RECORDED: 1}

    @pytest.mark.parametrize(
        "payload",
        [
            encode(message()),
            encode(message(), topic=Topics.TOOLS_RESULTS, signing=SIGNING),
            encode(
                message().model_copy(update={"timestamp": utc_now().replace(year=2020, day=1)}),
                topic=Topics.LLM_RESULTS,
                signing=SIGNING,
            ),
        ],
        ids=["unsigned", "another topic", "stale"],
    )
    async def test_not_to_be_believed(self, payload: bytes) -> None:
        """Nothing is recorded; it is a dead letter of its own cause."""
        async with dispatching(signing=SIGNING) as trial:
            delivery = of(Topics.LLM_RESULTS, payload)
            await trial.dispatch(delivery)
            await trial.letter()
            await trial.settled(delivery)
        assert (trial.store.messages, trial.metrics.counted) == ([], {DeadLetterCause.UNAUTHENTICATED: 1})
