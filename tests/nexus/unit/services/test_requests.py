"""Every request that can be read gets one effective answer (CONTRACT §1.4 to §1.6)."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from nexus.adapters.memory_bus import MemoryBus, MemoryLedger, MemorySubscription
from nexus.core.errors import BusUnavailableError
from nexus.core.models import Message, utc_now
from nexus.core.ports import Acquired, Conflict, DeadLetter, Subscription
from nexus.core.topics import Topics
from nexus.core.wire import decode, encode
from nexus.services.context.builder import ContextBuilder
from nexus.services.requests import RequestService, RequestSettings
from tests.nexus.support.waiting import PATIENCE_S, take, until
from tests.nexus.unit.services.parts import HangingStore, Parts, opened, request

ANSWERS = Topics.CONTEXT_BUILD_RESPONSE


@dataclass(frozen=True)
class Serving:
    """A service at work, and what it publishes."""

    parts: Parts
    service: RequestService
    heard: Subscription

    async def answers(self, count: int = 1) -> list[Message]:
        """The next `count` answers."""
        return [decode(delivery.payload) for delivery in await take(self.heard, count)]

    async def ask(self, payload: bytes) -> dict[str, Any]:
        """The content of the answer to a request."""
        self.service.offer(payload)
        (answer,) = await self.answers()
        assert isinstance(answer.content, dict)
        return answer.content

    async def finish(self) -> list[Message]:
        """Every answer until all that was accepted is finished."""
        with anyio.fail_after(PATIENCE_S):
            await self.service.drained()
        await self.heard.stop()
        return [decode(delivery.payload) async for delivery in self.heard]


class StrangeBuilder(ContextBuilder):
    """A builder that waits at a gate, or fails."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.persistence, parts.store, parts.registry, parts.ledger)
        self.gate = anyio.Event()
        self.gate.set()
        self.failure: BaseException | None = None
        self.begun: list[str] = []

    async def handle_build_request(
        self, message: Message, *, budget_s: float = 5.0, timings_ms: Mapping[str, float] | None = None
    ) -> Message:
        """Build, when the gate is open and nothing is to fail."""
        self.begun.append(message.id)
        await self.gate.wait()
        if self.failure:
            raise self.failure
        return await super().handle_build_request(message, budget_s=budget_s, timings_ms=timings_ms)


@asynccontextmanager
async def serving(
    *topics: str, store: HangingStore | None = None, builder: ContextBuilder | None = None, **settings: Any
) -> AsyncIterator[Serving]:
    """A service on a bus of its own; `topics` are listened to, by default the common one."""
    async with opened(store) as parts, parts.bus.subscribe(*(topics or [ANSWERS])) as heard:
        service = RequestService(builder or parts.builder, parts.bus, parts.ledger, RequestSettings(**settings))
        async with service.running():
            yield Serving(parts, service, heard)


@asynccontextmanager
async def strange(**settings: Any) -> AsyncIterator[tuple[Serving, StrangeBuilder]]:
    """A service with a builder that can be told what to do."""
    async with opened() as parts, parts.bus.subscribe(ANSWERS) as heard:
        builder = StrangeBuilder(parts)
        service = RequestService(builder, parts.bus, parts.ledger, RequestSettings(**settings))
        async with service.running():
            yield Serving(parts, service, heard), builder


def ids(answers: list[Message]) -> Counter[str]:
    """How often each request was answered."""
    return Counter(answer.metadata["request_id"] for answer in answers)


def code(content: Any) -> str:
    """The code of an error answer, `success` for another."""
    return str(content["error"]["code"] if content["status"] == "error" else content["status"])


async def passed(events: int = 20) -> None:
    """Let everybody else run until they wait for something."""
    for _ in range(events):
        await anyio.lowlevel.checkpoint()


class TestAnswers:
    """Who asks is answered, where and as it was asked."""

    async def test_a_success(self) -> None:
        """With the ids of the request, and the time that it waited in the manifest."""
        async with serving() as trial:
            trial.service.offer(encode(request()))
            (answer,) = await trial.answers()
        assert (answer.run_id, answer.owner_key, answer.metadata) == ("run_1", "ada", {"request_id": "msg_1"})
        assert answer.content["status"] == "success"
        assert set(answer.content["context"]["timings_ms"]) == {"queue", "gather", "assemble", "build"}

    async def test_on_a_topic_of_its_own(self) -> None:
        """`reply_to` names it; the common topic hears nothing."""
        async with serving(ANSWERS, f"{ANSWERS}.me") as trial:
            trial.service.offer(encode(request(reply_to="me")))
            (delivery,) = await take(trial.heard, 1)
            assert await trial.finish() == []
        assert delivery.topic == f"{ANSWERS}.me"

    @pytest.mark.parametrize(
        ("made", "expected"),
        [
            (lambda: encode(request(reply_to="a b")), "INVALID_REQUEST"),
            (lambda: encode(request(deadline_ms=5)), "INVALID_REQUEST"),
            (lambda: encode(request("")), "EMPTY_INPUT"),
            (lambda: encode(request(run_metadata={"layout": "x"})), "UNKNOWN_LAYOUT"),
            (lambda: encode(request())[:-1], "INVALID_REQUEST"),
            (lambda: encode(request("x" * 2_000)), "PAYLOAD_TOO_LARGE"),
            (lambda: encode(request().model_copy(update={"owner_key": "bob"})), "OWNER_MISMATCH"),
        ],
    )
    async def test_an_error(self, made: Callable[[], bytes], expected: str) -> None:
        """Whatever is wrong, the request is told under its id."""
        async with serving(max_payload_bytes=2_000) as trial:
            trial.service.offer(made())
            (answer,) = await trial.answers()
        assert code(answer.content) == expected
        assert answer.metadata == {"request_id": "msg_1"}
        assert answer.run_id == "run_1"

    async def test_an_unreadable_request_with_a_reply_topic(self) -> None:
        """The answer goes where it can be heard."""
        async with serving(f"{ANSWERS}.me") as trial:
            content = await trial.ask(encode(request(reply_to="me")).replace(b'"HUMAN"', b'"GOD"', 1))
        assert code(content) == "INVALID_REQUEST"

    async def test_unreadable_bytes(self) -> None:
        """They are a dead letter without a body, nobody is answered, and the next request is."""
        async with serving() as trial:
            trial.service.offer(b"secret")
            content = await trial.ask(encode(request()))
            assert await trial.finish() == []
        (letter,) = trial.parts.ledger.dead_letters
        assert (letter.topic, letter.size, letter.body) == (Topics.CONTEXT_BUILD_REQUEST, 6, None)
        assert "secret" not in letter.reason
        assert content["status"] == "success"

    async def test_bodies_are_kept_where_that_is_wanted(self) -> None:
        """`bus.dead_letter_bodies`."""
        async with serving(dead_letter_bodies=True) as trial:
            trial.service.offer(b"bytes")
            await trial.finish()
        assert [letter.body for letter in trial.parts.ledger.dead_letters] == [b"bytes"]


class TestOnce:
    """One request id has one effective answer."""

    async def test_asked_again_while_it_is_built(self) -> None:
        """The builder works once, and so is it answered."""
        async with strange() as (trial, builder):
            builder.gate = anyio.Event()
            payload = encode(request())
            for _ in range(100):
                trial.service.offer(payload)
                await anyio.lowlevel.checkpoint()
            assert trial.service.pending == 1
            builder.gate.set()
            answers = await trial.finish()
        assert ids(answers) == {"msg_1": 1}
        assert builder.begun == ["msg_1"]

    async def test_asked_again_after_the_answer(self) -> None:
        """It is never built again; what is said again is the same bytes."""
        async with strange() as (trial, builder):
            payload = encode(request())
            trial.service.offer(payload)
            (first,) = await take(trial.heard, 1)
            for _ in range(5):
                trial.service.offer(payload)
                await trial.service.drained()
            await trial.heard.stop()
            again = [delivery async for delivery in trial.heard]
        assert builder.begun == ["msg_1"]
        assert all(delivery == first for delivery in again)

    async def test_a_kept_answer_is_announced(self) -> None:
        """A replica that did not build it finds it at the ledger."""
        kept = b"the kept answer"
        async with serving(f"{ANSWERS}.me") as trial:
            bus = trial.parts.bus
            ledger = AnsweringLedger(bus, kept)
            other = RequestService(trial.parts.builder, bus, ledger)
            async with other.running():
                other.offer(encode(request()))
                (delivery,) = await take(trial.heard, 1)
        assert (delivery.topic, delivery.payload) == (f"{ANSWERS}.me", kept)

    async def test_two_requests_of_one_id(self) -> None:
        """The second is told so, once; the first gets its own answer, also when it asks again."""
        async with strange() as (trial, builder):
            builder.gate = anyio.Event()
            original, thief = encode(request("mine")), encode(request("theirs", owner="eve"))
            trial.service.offer(original)
            await passed()
            for _ in range(3):
                trial.service.offer(thief)
                await passed()
            builder.gate.set()
            trial.service.offer(original)
            answers = await trial.finish()
        assert sorted((answer.owner_key, code(answer.content)) for answer in answers) == [
            ("ada", "success"),
            ("eve", "ID_CONFLICT"),
        ]
        assert "mine" not in str(next(answer.content for answer in answers if answer.owner_key == "eve"))

    async def test_a_conflict_with_an_answered_request(self) -> None:
        """Another payload under its id never gets the kept answer."""
        async with serving() as trial:
            first = await trial.ask(encode(request("mine")))
            second = await trial.ask(encode(request("other")))
        assert (code(first), code(second)) == ("success", "ID_CONFLICT")

    async def test_two_services_on_one_bus(self) -> None:
        """200 requests that both hear are each answered once."""
        async with serving(max_in_flight=50) as trial:
            bus, ledger = trial.parts.bus, trial.parts.ledger
            second = RequestService(trial.parts.builder, bus, ledger, RequestSettings(max_in_flight=200))
            async with second.running():
                for number in range(200):
                    payload = encode(request("hi", f"msg_{number}", f"run_{number}"))
                    trial.service.offer(payload)
                    second.offer(payload)
                    await passed(3)
                await second.drained()
                answers = await trial.finish()
        assert ids(answers) == {f"msg_{number}": 1 for number in range(200)}
        assert {code(answer.content) for answer in answers} == {"success"}


class AnsweringLedger(MemoryLedger):
    """A ledger that knows every answer."""

    def __init__(self, bus: MemoryBus, kept: bytes) -> None:
        super().__init__(bus)
        self.answer = kept

    async def begin(self, key: str, fingerprint: str, lease_ms: int) -> Any:
        """It was answered elsewhere."""
        claim = await super().begin(key, fingerprint, lease_ms)
        assert isinstance(claim, Acquired)
        await self.finish(claim, "nowhere", b"", 60_000)
        self._state.requests[key].said_at = 0
        self._state.requests[key].topic = f"{ANSWERS}.me"
        self._state.requests[key].answer = self.answer
        return await super().begin(key, fingerprint, lease_ms)


class TestOverload:
    """Work is bounded, and who is not served is told at once."""

    async def test_beyond_the_queue_is_refused_at_once(self) -> None:
        """Two are built, two wait, six are OVERLOADED while the others are still at it; nobody is lost."""
        async with strange(max_in_flight=2) as (trial, builder):
            builder.gate = anyio.Event()
            await passed()
            for number in range(10):
                trial.service.offer(encode(request("hi", f"msg_{number}", f"run_{number}")))
                await passed()
            refused = await trial.answers(6)
            assert {code(answer.content) for answer in refused} == {"OVERLOADED"}
            assert trial.service.pending == 4
            builder.gate.set()
            served = await trial.finish()
        assert {code(answer.content) for answer in served} == {"success"}
        assert ids([*refused, *served]) == {f"msg_{number}": 1 for number in range(10)}
        assert builder.begun == ["msg_0", "msg_1", "msg_2", "msg_3"]

    async def test_a_burst_of_thousands(self) -> None:
        """Every one of them is answered, one way or the other: none of the ids is free afterwards."""
        payloads = [encode(request("hi", f"msg_{number}", f"run_{number}")) for number in range(3_000)]
        async with strange(max_in_flight=10) as (trial, builder):
            await passed()
            for payload in payloads:
                trial.service.offer(payload)
            await trial.service.drained()
            ledger = trial.parts.ledger
            claims = [await ledger.begin(f"msg_{number}", "any", 1_000) for number in range(3_000)]
        assert claims == [Conflict()] * 3_000
        assert len(builder.begun) < 3_000

    async def test_who_waits_may_ask_again(self) -> None:
        """The same bytes are not refused while they wait in the queue."""
        async with strange(max_in_flight=1) as (trial, builder):
            builder.gate = anyio.Event()
            await passed()
            payloads = [encode(request("hi", f"msg_{number}", f"run_{number}")) for number in range(2)]
            for payload in (*payloads, *payloads, *payloads):
                trial.service.offer(payload)
                await passed()
            builder.gate.set()
            answers = await trial.finish()
        assert [code(answer.content) for answer in answers] == ["success", "success"]

    async def test_after_a_refusal_it_may_be_tried_again(self) -> None:
        """An answer that says "try again" is kept no longer than the request's deadline and a lease."""
        async with strange(max_in_flight=1, lease_ms=200, deadline_ms=600) as (trial, builder):
            builder.gate = anyio.Event()
            await passed()
            payloads = [encode(request("hi", f"msg_{number}", f"run_{number}")) for number in range(3)]
            for payload in payloads:
                trial.service.offer(payload)
                await passed()
            (refused,) = await trial.answers()
            builder.gate.set()
            await trial.answers(2)

            async def begun() -> bool:
                trial.service.offer(payloads[2])
                await trial.service.drained()
                return "msg_2" in builder.begun

            await until(begun)
            (served,) = await trial.answers()
        assert (code(refused.content), code(served.content)) == ("OVERLOADED", "success")

    async def test_a_refusal_outlives_every_replica_that_has_the_request(self) -> None:
        """A replica that has it queued until its deadline finds it answered, and does not answer it otherwise."""
        async with opened() as parts, parts.bus.subscribe(ANSWERS) as heard:
            ledger, builder = KeepingLedger(parts.bus), StrangeBuilder(parts)
            builder.gate = anyio.Event()
            settings = RequestSettings(max_in_flight=1, lease_ms=200)
            service = RequestService(builder, parts.bus, ledger, settings)
            async with service.running():
                for number in range(3):
                    service.offer(encode(request("hi", f"msg_{number}", f"run_{number}", deadline_ms=7_000)))
                    await passed()
                (refused,) = await take(heard, 1)
                builder.gate.set()
                await take(heard, 2)
        assert code(decode(refused.payload).content) == "OVERLOADED"
        assert ledger.kept_ms["msg_2"] == 7_000 + 200
        assert ledger.kept_ms["msg_0"] == settings.answer_ttl_ms


class KeepingLedger(MemoryLedger):
    """A ledger that remembers for how long it was to keep an answer."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus)
        self.kept_ms: dict[str, int] = {}

    async def finish(self, claim: Acquired, topic: str, answer: bytes, keep_ms: int) -> bool:
        """Finish, and remember."""
        self.kept_ms[claim.key] = keep_ms
        return await super().finish(claim, topic, answer, keep_ms)


class TestDeadline:
    """An answer that comes too late is an error, and comes in time."""

    async def test_old_on_arrival(self) -> None:
        """A timestamp older than the deadline and what clocks may differ by."""
        async with serving(clock_skew_ms=1_000) as trial:
            old = request().model_copy(update={"timestamp": utc_now().replace(year=2020)})
            content = await trial.ask(encode(old))
        assert code(content) == "DEADLINE_EXCEEDED"
        assert content["error"]["message"].startswith("timestamp: ")
        assert content["error"]["message"].endswith(" s old on arrival, at most 6 s are allowed")

    async def test_from_the_future(self) -> None:
        """A clock that runs ahead does no harm."""
        async with serving(clock_skew_ms=0) as trial:
            content = await trial.ask(encode(request().model_copy(update={"timestamp": utc_now().replace(year=2200)})))
        assert code(content) == "success"

    async def test_a_builder_that_hangs(self) -> None:
        """The requester is told, and the worker is free again."""
        async with strange(max_in_flight=1) as (trial, builder):
            builder.gate = anyio.Event()
            content = await trial.ask(encode(request(deadline_ms=100)))
            builder.gate.set()
            after = await trial.ask(encode(request(request_id="msg_2")))
        assert (code(content), code(after)) == ("DEADLINE_EXCEEDED", "success")

    async def test_a_store_that_hangs(self) -> None:
        """A degraded answer rather than none."""
        async with serving(store=HangingStore("newest_messages", "find_identity", "insert_message")) as trial:
            content = await trial.ask(encode(request(deadline_ms=1_000)))
        assert content["degraded"] == ["history", "profile"]

    async def test_waiting_counts(self) -> None:
        """What waited in the queue for longer than its deadline is not built."""
        async with strange(max_in_flight=1) as (trial, builder):
            builder.gate = anyio.Event()
            await passed()
            trial.service.offer(encode(request(request_id="msg_1", deadline_ms=200)))
            await passed()
            trial.service.offer(encode(request(request_id="msg_2", deadline_ms=100)))
            answers = await trial.finish()
        assert [code(answer.content) for answer in answers] == ["DEADLINE_EXCEEDED"] * 2
        assert builder.begun == ["msg_1"]


class TestFailures:
    """Nothing that goes wrong with one request touches the next."""

    @pytest.mark.parametrize("failure", [RuntimeError("secret"), KeyError("secret"), ExceptionGroup("g", [OSError()])])
    async def test_a_builder_that_raises(self, failure: Exception) -> None:
        """INTERNAL without a word of the exception, and the next request is served."""
        async with strange() as (trial, builder):
            builder.failure = failure
            content = await trial.ask(encode(request()))
            builder.failure = None
            after = await trial.ask(encode(request(request_id="msg_2")))
        assert content["error"]["code"] == "INTERNAL"
        assert content["error"]["retryable"]
        assert "secret" not in str(content)
        assert code(after) == "success"

    async def test_a_bus_that_is_away(self) -> None:
        """Nobody can be told; the service goes on, and who asks again is answered."""
        async with opened() as parts, parts.bus.subscribe(ANSWERS) as heard:
            ledger = FailingLedger(parts.bus)
            service = RequestService(parts.builder, parts.bus, ledger)
            async with service.running():
                payload = encode(request())
                service.offer(payload)
                service.offer(b"unreadable")
                await service.drained()
                ledger.away = False
                service.offer(payload)
                (answer,) = await Serving(parts, service, heard).answers()
        assert code(answer.content) == "success"

    async def test_stopping_gives_the_request_back(self) -> None:
        """Another replica may take it at once."""
        async with opened() as parts:
            builder = StrangeBuilder(parts)
            builder.gate = anyio.Event()
            service = RequestService(builder, parts.bus, parts.ledger, RequestSettings(lease_ms=60_000))
            async with service.running():
                service.offer(encode(request()))
                await passed()
                assert builder.begun == ["msg_1"]
            claim = await parts.ledger.begin("msg_1", "any", 1_000)
        assert isinstance(claim, Acquired)

    async def test_stopping_without_a_bus(self) -> None:
        """The lease then runs out by itself; stopping is no error."""
        async with opened() as parts:
            builder = StrangeBuilder(parts)
            builder.gate = anyio.Event()
            ledger = FailingLedger(parts.bus)
            ledger.away = False
            service = RequestService(builder, parts.bus, ledger)
            async with service.running():
                service.offer(encode(request()))
                await passed()
                ledger.away = True
        assert builder.begun == ["msg_1"]

    async def test_a_long_build_keeps_its_lease(self) -> None:
        """Renewed until it is finished, also through an outage of the bus."""
        async with opened() as parts, parts.bus.subscribe(ANSWERS) as heard:
            builder = StrangeBuilder(parts)
            builder.gate = anyio.Event()
            ledger = RenewalLedger(parts.bus)
            service = RequestService(builder, parts.bus, ledger, RequestSettings(lease_ms=200))
            async with service.running():
                service.offer(encode(request()))
                with anyio.fail_after(PATIENCE_S):
                    await ledger.renewed.wait()
                builder.gate.set()
                (answer,) = await Serving(parts, service, heard).answers()
        assert code(answer.content) == "success"


class FailingLedger(MemoryLedger):
    """A ledger that cannot be reached."""

    away = True

    async def begin(self, key: str, fingerprint: str, lease_ms: int) -> Any:
        """Fail while it is away."""
        self._fail()
        return await super().begin(key, fingerprint, lease_ms)

    async def release(self, claim: Acquired) -> None:
        """Fail while it is away."""
        self._fail()
        await super().release(claim)

    async def bury(self, letter: DeadLetter) -> None:
        """Fail while it is away."""
        self._fail()
        await super().bury(letter)

    def _fail(self) -> None:
        if self.away:
            raise BusUnavailableError("away")


class RenewalLedger(MemoryLedger):
    """A ledger whose first renewal fails."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus)
        self.failed = False
        self.renewed = anyio.Event()

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Fail the first time, then hold the lease."""
        if not self.failed:
            self.failed = True
            raise BusUnavailableError("away")
        held = await super().renew(claim, lease_ms)
        self.renewed.set()
        return held


async def test_drained_returns_at_once_without_work() -> None:
    """And as often as it is asked."""
    async with serving() as trial:
        await trial.service.drained()
        await trial.service.drained()
        assert trial.service.pending == 0


def test_the_subscription_is_what_the_port_says() -> None:
    """For the type checker: the memory bus' subscription is a Subscription."""
    subscription: type[Subscription] = MemorySubscription
    assert subscription
