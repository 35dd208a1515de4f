"""A request service at work on a bus, a ledger and a builder that can be told what to do."""

import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import anyio

from nexus.adapters.in_memory import MemoryBus, MemoryDeadLetters, MemoryLedger
from nexus.core.errors import BusRefusedError, BusUnavailableError
from nexus.core.models import Message, Topics
from nexus.core.ports import Acquired, Claim, DeadLetter, Delivery, OutboxRow, RecallSource, Subscription
from nexus.core.wire import decode, encode
from nexus.services.context.builder import Built, ContextBuilder
from nexus.services.context.request import Deadline
from nexus.services.requests.answerer import RequestService
from nexus.services.requests.claims import DeadLetterWriter
from nexus.services.requests.envelope import RequestSettings, read_incoming
from tests.nexus.support.builder_settings import BY_DEFAULT
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.waiting import PATIENCE_S, take, until
from tests.nexus.unit.services.parts import Parts, opened

ANSWERS = Topics.CONTEXT_BUILD_RESPONSE
LONG_MS = 60_000


class SettlingBus(MemoryBus):
    """A bus in memory that writes down which shared deliveries are done, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.settled: list[Delivery] = []
        self.aside: set[str] = set()
        self.publish_failures = 0

    async def publish(self, topic: str, payload: bytes, *, once: str = "") -> int:
        """Fail for as long as there are failures left, then publish."""
        if self.publish_failures:
            self.publish_failures -= 1
            raise BusUnavailableError("away")
        return await super().publish(topic, payload, once=once)

    def set_aside(self, delivery: Delivery, *, aside: bool) -> None:
        """Remember which are set aside."""
        (self.aside.add if aside else self.aside.discard)(delivery.entry)

    def done(self, delivery: Delivery) -> None:
        """Write it down."""
        if delivery.shared:
            self.settled.append(delivery)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class SettlingLedger(MemoryLedger):
    """A ledger in memory that settles deliveries as one on streams does, and fails on request.

    Attributes:
        asked: calls of each operation.
        failures, lost_replies: calls of each operation that are still to fail, before it or after it is done.
        refusing: keys are of another kind.
        fault, renewal_faults: unexpected errors of claims and renewals.
        now_ms: the time in claims, instead of the clock's.
        kept_ms: how long each answer is kept.
    """

    def __init__(self, bus: SettlingBus) -> None:
        self.clock = Clock()
        super().__init__(bus, clock=self.clock)
        self._settled = bus.settled
        self.asked: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.lost_replies: Counter[str] = Counter()
        self.now_ms: int | None = None
        self.refusing = False
        self.fault: Exception | None = None
        self.renewal_faults: list[Exception] = []
        self.kept_ms: dict[str, int] = {}

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        if self.fault:
            raise self.fault
        if self.refusing:
            raise BusRefusedError("another kind")
        self._before("claim")
        claim = await super().claim(key, fingerprint, lease_ms, waited_ms)
        self._after("claim")
        return replace(claim, now_ms=self.now_ms) if isinstance(claim, Acquired) and self.now_ms else claim

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold a request for longer."""
        self._before("renew")
        if self.renewal_faults:
            raise self.renewal_faults.pop()
        return await super().renew(claim, lease_ms)

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        self._before("release")
        await super().release(claim)

    async def conclude(  # noqa: PLR0917  # as the port has it
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | None = None,
    ) -> int | None:
        """Keep the answer, publish it and settle the delivery."""
        self._before("conclude")
        self.kept_ms[claim.key] = keep_ms
        heard = await super().conclude(claim, topic, answer, keep_ms, delivery, outbox)
        self._after("conclude")
        if heard is not None and delivery and delivery.shared:
            self._settled.append(delivery)
        return heard

    async def times_asked(self, operation: str, times: int = 1) -> None:
        """Wait until an operation has been asked for so often."""

        async def asked() -> bool:
            return self.asked[operation] >= times

        await until(asked)

    def _before(self, operation: str) -> None:
        self.asked[operation] += 1
        if self.failures[operation]:
            self.failures[operation] -= 1
            raise BusUnavailableError("away")

    def _after(self, operation: str) -> None:
        if self.lost_replies[operation]:
            self.lost_replies[operation] -= 1
            raise BusUnavailableError("the reply was lost")


class Letters(MemoryDeadLetters):
    """Dead letters that cannot be kept for as long as `away`, or by a `fault`."""

    away = False
    fault: Exception | None = None

    async def keep(self, letter: DeadLetter) -> None:
        """Keep it, or fail."""
        if self.away:
            raise BusUnavailableError("away")
        if self.fault:
            raise self.fault
        await super().keep(letter)


class StrangeBuilder(ContextBuilder):
    """A builder that waits at a gate, or fails; with the ids of its requests, and of those that others answered."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.persistence, parts.store, parts.registry, parts.ledger, BY_DEFAULT)
        self.gate = anyio.Event()
        self.gate.set()
        self.failure: BaseException | None = None
        self.begun: list[str] = []
        self.left_to_others: list[str] = []

    async def build(
        self,
        message: Message,
        deadline: Deadline,
        *,
        timings_ms: Mapping[str, float] | None = None,
        outbox_waiting: bool = False,
        sent_at: datetime | None = None,
    ) -> Built:
        """Build, when the gate is open and nothing is to fail."""
        self.begun.append(message.id)
        with anyio.move_on_after(deadline.left_s):
            await self.gate.wait()
        if self.failure:
            raise self.failure
        return await super().build(
            message, deadline, timings_ms=timings_ms, outbox_waiting=outbox_waiting, sent_at=sent_at
        )

    def remember_run(self, message: Message) -> None:
        """Take note."""
        self.left_to_others.append(message.id)
        super().remember_run(message)


@dataclass(frozen=True)
class Serving:
    """A service at work, what it stands on, and what it publishes."""

    parts: Parts
    bus: SettlingBus
    ledger: SettlingLedger
    letters: Letters
    builder: StrangeBuilder
    service: RequestService
    writer: DeadLetterWriter
    heard: Subscription
    metrics: RecordingMetrics = field(default_factory=RecordingMetrics)

    def offer(self, delivery: Delivery) -> None:
        """Have a request read and offered, as the dispatcher does."""
        self.service.offer(read_incoming(delivery, time.monotonic(), self.service.settings))

    async def answers(self, count: int = 1) -> list[Message]:
        """The next `count` answers."""
        return [decode(delivery.payload) for delivery in await take(self.heard, count)]

    async def ask(self, payload: Message | bytes, **about: Any) -> dict[str, Any]:
        """The content of the answer to a request, when everything is finished."""
        self.offer(asking(payload, **about))
        (answer,) = await self.answers()
        with anyio.fail_after(PATIENCE_S):
            await self.service.pending.none()
        assert isinstance(answer.content, dict)
        return answer.content

    async def finish(self) -> list[Message]:
        """Every answer until all that was accepted is finished."""
        with anyio.fail_after(PATIENCE_S):
            await self.service.pending.none()
        await self.heard.stop()
        return [decode(delivery.payload) async for delivery in self.heard]

    async def claimed(self, message: Message, lease_ms: int = LONG_MS) -> Acquired:
        """The request, in the hands of another replica."""
        claim = await MemoryLedger.claim(self.ledger, key(message), fingerprint(message), lease_ms)
        assert isinstance(claim, Acquired)
        return claim


@asynccontextmanager
async def serving(
    *topics: str,
    store: FakeStore | None = None,
    bodies_up_to: int | None = None,
    recall: RecallSource | None = None,
    **settings: Any,
) -> AsyncIterator[Serving]:
    """A service on a bus of its own; `topics` are listened to, by default the common one."""
    bus = SettlingBus()
    ledger, letters, metrics = SettlingLedger(bus), Letters(), RecordingMetrics()
    async with (
        opened(store, bus=bus, ledger=ledger) as parts,
        bus.subscribe(*(topics or [ANSWERS])) as heard,
    ):
        builder = StrangeBuilder(parts)
        writer = DeadLetterWriter(letters, metrics, bodies_up_to)
        service = RequestService(builder, bus, ledger, writer, RequestSettings(**settings), metrics, recall=recall)
        async with service.running():
            yield Serving(parts, bus, ledger, letters, builder, service, writer, heard, metrics)


def asking(payload: Message | bytes, **about: Any) -> Delivery:
    """A request as the bus delivers it."""
    content = encode(payload) if isinstance(payload, Message) else payload
    return Delivery(Topics.CONTEXT_BUILD_REQUEST, content, **about)


def shared(payload: Message | bytes, entry: str = "1-0", **about: Any) -> Delivery:
    """A request of which this replica has charge."""
    return asking(payload, entry=entry, shared=True, **about)


def key(message: Message) -> str:
    """Its key at the ledger."""
    return read_incoming(asking(message), 0.0, RequestSettings()).key


def fingerprint(message: Message) -> str:
    """What a request is known by at the ledger."""
    return hashlib.sha256(encode(message)).hexdigest()


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
