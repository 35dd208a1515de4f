"""Passes messages of the bus to the services of their topics, without ever waiting (contract §1.1).

- A message that takes long to read is read in a thread, one of an owner at a time, and what the owner sent after it
  waits behind it, but for requests. Where its owner cannot be found without reading it, or there is no room, it may
  be overtaken.
- A message is acknowledged when its work is done: a result when it is written, a tool, a session's state, a
  fact or a constraint when it is stored. Until then a bus that keeps messages keeps it.
- Only requests are answered, so any other unusable message becomes a dead letter.
"""

import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self

import anyio
from anyio.lowlevel import checkpoint

from nexus.core.concurrency import OuterHandler, Pending, supervised
from nexus.core.errors import ErrorCode, UnreadablePayloadError
from nexus.core.fairness import FairWorkers, Room
from nexus.core.metrics import DeadLetterCause, Metrics, NoMetrics
from nexus.core.models import AMBIGUOUS_ID, ANSWER_TOPICS, Message, Role, Topics, Why, is_ambiguous
from nexus.core.ports import Bus, Delivery, Row, Work
from nexus.core.wire import EnvelopeError, find_sender
from nexus.services.history.condense import with_condensed
from nexus.services.history.forms import left_out_of, native
from nexus.services.history.rows import ROW_MAKERS, is_empty_answer, row_of
from nexus.services.persistence import PersistenceService
from nexus.services.requests.answerer import MOST_REFUSALS_PER_OWNER, RequestService
from nexus.services.requests.claims import MOST_TRUSTED_DELIVERIES, DeadLetterWriter, SuspectReader, refusal_cause
from nexus.services.requests.envelope import (
    RequestSettings,
    ToolCallRequest,
    may_name_memory_tool,
    read_incoming,
    read_message,
    read_tool_call,
    too_large_result,
)
from nexus.services.requests.tool_calls import MOST_CALLS, MOST_CALLS_ASIDE, ToolCallService
from nexus.services.session_queue import MessageQueue
from nexus.services.tools.registry import ToolCatalog

_TASK: Final = "dispatcher"
_MOST_RESULTS: Final = 256
_MOST_RESULTS_ASIDE: Final = 1_024
# Of any other topic.
_MOST_OTHERS: Final = 64
# Shared by topics.
_MOST_LETTERS, _MOST_LETTER_BYTES = 8_192, 128 << 20
# From this size on a message may take above 20 ms to read, and to verify in another spelling than the canonical one.
_LARGE: Final = 128 << 10
# Each that reads makes the loop wait its turn.
_READERS: Final = 1
_MOST_UNREAD, _MOST_UNREAD_BYTES, _MOST_HELD_UP = 8_192, 64 << 20, 64
# How long messages are passed on before other tasks have their turn.
_SLICE_S: Final = 0.005
_OFFER_AGAIN_S: Final = 0.2

_RESULTS: Final = (Topics.LLM_RESULTS, Topics.TOOLS_RESULTS)
NEWS: Final = (Topics.TOOLS_REGISTER, Topics.TOOLS_UNREGISTER, Topics.CONFIG_CHANGED)


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a message cannot be used."""

    reason: str
    cause: DeadLetterCause
    message_id: str = ""


# Passes on a message that was read; returns its fault where it cannot be used.
_PassOn = Callable[[], _Fault | None]


class _Read(NamedTuple):
    """What passes a message on, and of whom it is; `""` where that is not known."""

    pass_on: _PassOn
    owner_key: str = ""
    run_id: str = ""


def work(max_in_flight: int, *, tool_calls: bool = False) -> tuple[Work, ...]:
    """The topics whose messages replicas share out among themselves; `tool_calls`: also calls of the memory tools."""
    calls = (Work(Topics.TOOLS_REQUESTS, MOST_CALLS, aside=MOST_CALLS_ASIDE),) if tool_calls else ()
    return (
        Work(Topics.CONTEXT_BUILD_REQUEST, max_in_flight, aside=MOST_REFUSALS_PER_OWNER, sheds=True),
        Work(Topics.MEMORY_SEARCH, max(max_in_flight // 4, 1), aside=MOST_REFUSALS_PER_OWNER, sheds=True),
        *(Work(topic, _MOST_RESULTS, aside=_MOST_RESULTS_ASIDE) for topic in ROW_MAKERS),
        Work(Topics.TOOLS_REGISTER, _MOST_OTHERS),
        Work(Topics.TOOLS_UNREGISTER, _MOST_OTHERS),
        Work(Topics.SESSION_STATE, _MOST_OTHERS),
        Work(Topics.MEMORY_FACTS, _MOST_OTHERS),
        Work(Topics.SESSION_CONSTRAINTS, _MOST_OTHERS),
        *calls,
    )


class Dispatcher:
    """Passes deliveries on. Use `running()`, then `dispatch_all`; `pending` are dead letters that are not kept yet.

    `queues` store what messages of a topic say, by topic; `reload` reads the stored settings again; `tool_calls` is
    None without the memory tools.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        bus: Bus,
        requests: RequestService,
        persistence: PersistenceService,
        catalog: ToolCatalog,
        queues: Mapping[str, MessageQueue[Any]],
        suspects: SuspectReader,
        dead_letters: DeadLetterWriter,
        reload: Callable[[], Awaitable[None]],
        settings: RequestSettings,
        tool_calls: ToolCallService | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._bus = bus
        self._requests = requests
        self._persistence = persistence
        self._catalog = catalog
        self._queues = queues
        self._suspects = suspects
        self._dead_letters = dead_letters
        self._reload = reload
        self._settings = settings
        self._tool_calls = tool_calls
        self._metrics = metrics or NoMetrics()
        self.pending = Pending()
        self._letters, self._unwritten = anyio.create_memory_object_stream[tuple[Delivery, _Fault]](math.inf)
        self._letter_room = Room(_MOST_LETTERS, _MOST_LETTER_BYTES)
        self._threads = anyio.CapacityLimiter(_READERS)
        self._large = FairWorkers[Callable[[], Awaitable[None]]](
            _call,
            most=_MOST_HELD_UP,
            share=1,
            waiting=Room(_MOST_UNREAD, _MOST_UNREAD_BYTES),
            metrics=self._metrics,
            task=_TASK,
        )
        self._unread = Pending()
        self._reload_wanted = anyio.Event()
        self._tasks = anyio.create_task_group()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Keep dead letters and reload settings until the context ends."""
        async with self._letters, self._unwritten, self._large.running(), self._tasks:
            self._tasks.start_soon(supervised, self._metrics, "dead_letters", self._write_letters)
            self._tasks.start_soon(supervised, self._metrics, "settings", self._reload_when_wanted)
            try:
                yield self
            finally:
                self._tasks.cancel_scope.cancel()

    async def dispatch_all(self, deliveries: AsyncIterable[Delivery], ended: anyio.Event) -> None:
        """Pass on every delivery; `ended` is set when there are no more."""
        try:
            slice_ends = time.monotonic() + _SLICE_S
            async for delivery in deliveries:
                if delivery.deliveries > MOST_TRUSTED_DELIVERIES:
                    self._tasks.start_soon(supervised, self._metrics, _TASK, partial(self._dispatch_suspect, delivery))
                else:
                    with self._guarded(delivery):
                        self._begin(delivery)
                if time.monotonic() > slice_ends:
                    await checkpoint()
                    slice_ends = time.monotonic() + _SLICE_S
            await self._unread.none()
        finally:
            ended.set()

    async def _dispatch_suspect(self, delivery: Delivery) -> None:
        with self._guarded(delivery):
            if reason := await self._suspects.read(delivery):
                self._dead_letter(delivery, _Fault(reason, DeadLetterCause.POISON))
            else:
                self._begin(delivery)

    @contextmanager
    def _guarded(self, delivery: Delivery) -> Iterator[None]:
        with OuterHandler(self._metrics, _TASK, topic=delivery.topic) as handler:
            yield
        if handler.failed:
            self._dead_letter(delivery, _Fault("passing it on failed", DeadLetterCause.POISON))

    def _begin(self, delivery: Delivery) -> None:
        signing = self._settings.signing
        if delivery.topic == Topics.CONFIG_CHANGED and not (signing and signing.required):
            # The content does not matter, so that it need not even be a message.
            self._want_reload()
            return
        read = partial(self._read, delivery, time.monotonic())
        if len(delivery.payload) > _LARGE:
            if not self._hold_up(delivery, *find_sender(delivery.payload), read):
                self._go_without_room(delivery, read)
            return
        message = read()
        # A request passes by: its build waits a moment for results, and its answer says where it could not.
        waits = delivery.topic not in ANSWER_TOPICS and self._large.has(message.owner_key)
        if not (waits and self._hold_up(delivery, message.owner_key, message.run_id, lambda: message)):
            self._pass_on(delivery, message.pass_on)

    def _hold_up(self, delivery: Delivery, owner_key: str, run_id: str, read: Callable[[], _Read]) -> bool:
        """Have a delivery wait in its owner's line. False where that has no room."""
        unrecorded = self._persistence.expect(owner_key, run_id) if delivery.topic in ROW_MAKERS else None

        async def pass_on() -> None:
            try:
                await self._read_and_pass_on(delivery, read)
            finally:
                self._unread.end()
                if unrecorded:
                    unrecorded()

        # Small messages are bounded by their number.
        is_counted = not delivery.shared and len(delivery.payload) > _LARGE
        if not self._large.offer(owner_key, pass_on, len(delivery.payload) if is_counted else 0):
            if unrecorded:
                unrecorded()
            return False
        self._unread.begin()
        self._bus.set_aside(delivery, aside=True)
        return True

    async def _read_and_pass_on(self, delivery: Delivery, read: Callable[[], _Read]) -> None:
        with self._guarded(delivery):
            is_large = len(delivery.payload) > _LARGE
            message = await anyio.to_thread.run_sync(read, limiter=self._threads) if is_large else read()
            self._bus.set_aside(delivery, aside=False)
            self._pass_on(delivery, message.pass_on)

    def _go_without_room(self, delivery: Delivery, read: Callable[[], _Read]) -> None:
        if delivery.shared:
            # The bus hands out a bounded number, and none of them is refused: it may be overtaken instead.
            self._tasks.start_soon(self._read_and_pass_on, delivery, read)
        elif delivery.topic in ANSWER_TOPICS:
            # Another replica may have room, and its sender sends it again.
            self._requests.drop(delivery, "too many large messages are waiting")
        else:
            self._dead_letter(delivery, _Fault("too many large messages are waiting", DeadLetterCause.BACKLOG))

    def _pass_on(self, delivery: Delivery, pass_on: _PassOn) -> None:
        if fault := pass_on():
            self._dead_letter(delivery, fault)

    def _read(self, delivery: Delivery, arrived_at: float) -> _Read:
        """Read a message. Changes nothing, so it may run in a thread."""
        try:
            match delivery.topic:
                case Topics.CONTEXT_BUILD_REQUEST | Topics.MEMORY_SEARCH:
                    request = read_incoming(delivery, arrived_at, self._settings)
                    return _Read(partial(self._requests.offer, request), request.ids.owner_key)
                case Topics.TOOLS_REQUESTS:
                    return self._read_call(delivery, arrived_at)
                case _:
                    return self._read_news(delivery)
        except EnvelopeError as error:
            if delivery.topic == Topics.CONFIG_CHANGED and error.code is ErrorCode.INVALID_REQUEST:
                # Where a signature is required this is found after it was verified.
                return _Read(self._want_reload)
            fault = _Fault(str(error), _CAUSES.get(error.code, DeadLetterCause.UNREADABLE), error.ids.id)
            if delivery.topic in _RESULTS and (told := too_large_result(delivery, error)):
                row = ROW_MAKERS[delivery.topic](told)
                return _Read(partial(self._record_instead, row, fault), told.owner_key, told.run_id)
        except UnreadablePayloadError as error:
            too_large = len(delivery.payload) > self._settings.max_payload_bytes
            fault = _Fault(str(error), DeadLetterCause.TOO_LARGE if too_large else DeadLetterCause.UNREADABLE)
        return _Read(lambda: fault)

    def _read_news(self, delivery: Delivery) -> _Read:
        """Read a message that is not answered; raises as `read_message`."""
        message = read_message(delivery, self._settings)
        make_row = ROW_MAKERS.get(delivery.topic)
        try:
            row = make_row(message, len(delivery.payload)) if make_row else None
        except ValueError as error:
            fault = _Fault(str(error), DeadLetterCause.REFUSED, message.id)
            return _Read(lambda: fault, message.owner_key, message.run_id)
        row = with_condensed(row, self._settings.condense_above) if row else None
        return _Read(partial(self._offer, delivery, message, row), message.owner_key, message.run_id)

    def _read_call(self, delivery: Delivery, arrived_at: float) -> _Read:
        # Most of them are for other runners of tools, where there are such.
        answers_all = self._settings.unknown_tools_after_ms is not None
        calls = self._tool_calls if answers_all or may_name_memory_tool(delivery.payload) else None
        call = read_tool_call(delivery, arrived_at, self._settings) if calls else None
        if calls is None or call is None:
            return _Read(partial(self._bus.done, delivery))
        return _Read(partial(self._offer_call, calls, call), call.ids.owner_key)

    def _offer_call(self, calls: ToolCallService, call: ToolCallRequest) -> _Fault | None:
        taken = calls.offer(call)
        return None if taken else _Fault("too many calls of tools are waiting", DeadLetterCause.BACKLOG, call.ids.id)

    def _offer(self, delivery: Delivery, message: Message, row: Row | None) -> _Fault | None:
        match delivery.topic:
            case topic if topic in ROW_MAKERS:
                if reason := _why_not_recorded(delivery.topic, message, row):
                    return _Fault(reason, DeadLetterCause.REFUSED, message.id)
                settled = partial(self._settle, delivery, message.id, partly=_what_is_not_understood(message, row))
                # A replica that stops gives back what it had in hand as if it had never been handed out.
                offer = partial(self._persistence.offer, row, len(delivery.payload), settled)
                return self._take(delivery, message, offer)
            case topic if topic in self._queues:
                return self._queue(delivery, message, self._queues[topic])
            case Topics.TOOLS_REGISTER | Topics.TOOLS_UNREGISTER:
                # Streams deliver it twice: to every replica as news, and to one replica as work.
                settled = partial(self._settle, delivery, message.id)
                refused = self._catalog.offer(delivery.topic, message, settled, kept=delivery.shared)
                return None if refused is None else _Fault(refused, DeadLetterCause.REFUSED, message.id)
            case _:
                self._want_reload()
                return None

    def _record_instead(self, row: Row | None, fault: _Fault) -> _Fault:
        self._persistence.offer(row, 0)
        return fault

    def _want_reload(self) -> None:
        self._reload_wanted.set()

    def _queue(self, delivery: Delivery, message: Message, queue: MessageQueue[Any]) -> _Fault | None:
        settled = partial(self._settle, delivery, message.id)
        try:
            return self._take(delivery, message, partial(queue.offer, message, len(delivery.payload), settled))
        except ValueError as error:
            return _Fault(str(error), DeadLetterCause.REFUSED, message.id)

    def _settle(self, delivery: Delivery, message_id: str, reason: str | None, *, partly: str | None = None) -> None:
        """Finish a delivery that is stored, or is refused for this reason; `partly`: what of it is not understood."""
        reason = reason or partly
        if reason is None:
            self._bus.done(delivery)
        else:
            self._dead_letter(delivery, _Fault(reason, refusal_cause(reason), message_id))

    def _take(self, delivery: Delivery, message: Message, offer: Callable[[], bool]) -> _Fault | None:
        if offer():
            return None
        if not delivery.shared:
            return _Fault("too much is waiting to be recorded", DeadLetterCause.BACKLOG, message.id)
        # Of shared deliveries no more wait here than the bus hands out, and those of other owners pass by.
        self._bus.set_aside(delivery, aside=True)
        self._tasks.start_soon(supervised, self._metrics, _TASK, partial(_offer_until_taken, offer))
        return None

    async def _reload_when_wanted(self) -> None:
        while True:
            await self._reload_wanted.wait()
            # One reload serves all wishes so far: it reads the newest settings.
            self._reload_wanted = anyio.Event()
            await self._reload()

    def _dead_letter(self, delivery: Delivery, fault: _Fault) -> None:
        try:
            # A bus that keeps messages hands out a bounded number.
            if delivery.shared or self._letter_room.enter(delivery.topic, len(delivery.payload)):
                self._letters.send_nowait((delivery, fault))
                self.pending.begin()
            else:
                self._dead_letters.lose(delivery, "too many are waiting")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The service is stopping, and a bus that keeps messages hands it to another replica.
            if not delivery.shared:
                self._dead_letters.lose(delivery, "the service is stopping")

    async def _write_letters(self) -> None:
        async for delivery, fault in self._unwritten:
            await self._dead_letters.write(delivery, fault.reason, fault.cause, fault.message_id)
            self._bus.done(delivery)
            if not delivery.shared:
                self._letter_room.leave(delivery.topic, len(delivery.payload))
            self.pending.end()
            # Its payload may be large, and the next letter far away.
            del delivery


def _why_not_recorded(topic: str, message: Message, row: Row | None) -> str | None:
    session = message.metadata.get("session_id")
    if isinstance(session, str) and is_ambiguous(session):
        return f"metadata.session_id: {AMBIGUOUS_ID}"
    if topic == Topics.RUNS_INPUT and message.role is not Role.HUMAN:
        return "role: HUMAN is needed"
    if topic == Topics.RUNS_INPUT and row is None:
        return "content: is empty"
    return None


def _what_is_not_understood(message: Message, row: Row | None) -> str | None:
    """What its sender could do something about: parts that nobody knows, or nothing that a context could show."""
    if message.role is Role.SYSTEM or is_empty_answer(message.content):
        # Parts of a stream, and its end.
        return None
    parts = [part for each in native(row or row_of(message)) for part in left_out_of(each, message.id)]
    named = ", ".join(sorted({part.what for part in parts if row is None or part.why is Why.UNREADABLE}))
    if row is None:
        return f"content: not recorded, since there is no text and no call in it, only {named or 'nothing'}"
    return f"content: recorded, but not understood and not shown: {named}" if named else None


async def _call(pass_on: Callable[[], Awaitable[None]]) -> None:
    await pass_on()


async def _offer_until_taken(offer: Callable[[], bool]) -> None:
    while True:
        await anyio.sleep(_OFFER_AGAIN_S)
        if offer():
            return


_CAUSES: Final = {
    ErrorCode.PAYLOAD_TOO_LARGE: DeadLetterCause.TOO_LARGE,
    ErrorCode.UNAUTHENTICATED: DeadLetterCause.UNAUTHENTICATED,
}
