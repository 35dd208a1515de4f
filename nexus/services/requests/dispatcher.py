"""Passes messages of the bus to the services of their topics, without ever waiting (contract §1.1).

Rules of this module:

- Passing a message on takes no time: services put it into their queues, and dead letters have a queue here.
- A message is acknowledged when its work is done: a result when it is written, a tool or a session's state when it is
  stored. Until then a bus that keeps messages keeps it, so that it outlives this process.
- Only requests are answered, so any other unusable message becomes a dead letter.
"""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import anyio
import structlog

from nexus.core.concurrency import OuterHandler, Pending, supervised
from nexus.core.errors import ErrorCode, UnreadablePayloadError
from nexus.core.metrics import DeadLetterCause, Metrics, NoMetrics
from nexus.core.models import AMBIGUOUS_ID, Message, Topics, is_ambiguous
from nexus.core.ports import Bus, Delivery, Work
from nexus.core.wire import EnvelopeError
from nexus.services.persistence import PersistenceService
from nexus.services.requests.answerer import RequestService
from nexus.services.requests.claims import MOST_TRUSTED_DELIVERIES, DeadLetterWriter, SuspectReader
from nexus.services.requests.envelope import RequestSettings, read_message
from nexus.services.requests.tool_calls import MOST_CALLS, ToolCallService
from nexus.services.session_state.service import SessionStates
from nexus.services.tools.registry import ToolCatalog

_log = structlog.get_logger(__name__)

_TASK: Final = "dispatcher"
_MOST_RESULTS: Final = 256
_MOST_TOOLS: Final = 64
_MOST_STATES: Final = 64
_MOST_LETTERS: Final = 1_000
_OFFER_AGAIN_S: Final = 0.2

NEWS: Final = (Topics.TOOLS_REGISTER, Topics.TOOLS_UNREGISTER, Topics.CONFIG_CHANGED)


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a message cannot be used."""

    reason: str
    cause: DeadLetterCause
    message_id: str = ""


def work(max_in_flight: int, *, tool_calls: bool = False) -> tuple[Work, ...]:
    """The topics whose messages replicas share out among themselves; `tool_calls`: also calls of the memory tools."""
    calls = (Work(Topics.TOOLS_REQUESTS, MOST_CALLS),) if tool_calls else ()
    return (
        Work(Topics.CONTEXT_BUILD_REQUEST, max_in_flight, sheds=True),
        Work(Topics.LLM_RESULTS, _MOST_RESULTS),
        Work(Topics.TOOLS_RESULTS, _MOST_RESULTS),
        Work(Topics.TOOLS_REGISTER, _MOST_TOOLS),
        Work(Topics.TOOLS_UNREGISTER, _MOST_TOOLS),
        Work(Topics.SESSION_STATE, _MOST_STATES),
        *calls,
    )


class Dispatcher:
    """Passes deliveries on. Use `running()`, then `dispatch_all`; `pending` are dead letters that are not kept yet.

    `reload` reads the stored settings again; `tool_calls` is None without the memory tools.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        bus: Bus,
        requests: RequestService,
        persistence: PersistenceService,
        catalog: ToolCatalog,
        states: SessionStates,
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
        self._states = states
        self._suspects = suspects
        self._dead_letters = dead_letters
        self._reload = reload
        self._settings = settings
        self._tool_calls = tool_calls
        self._metrics = metrics or NoMetrics()
        self.pending = Pending()
        self._letters, self._unwritten = anyio.create_memory_object_stream[tuple[Delivery, _Fault]](_MOST_LETTERS)
        self._reload_wanted = anyio.Event()
        self._tasks = anyio.create_task_group()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Keep dead letters and reload settings until the context ends."""
        async with self._letters, self._unwritten, self._tasks:
            self._tasks.start_soon(supervised, self._metrics, "dead_letters", self._write_letters)
            self._tasks.start_soon(supervised, self._metrics, "settings", self._reload_when_wanted)
            try:
                yield self
            finally:
                self._tasks.cancel_scope.cancel()

    async def dispatch_all(self, deliveries: AsyncIterable[Delivery], ended: anyio.Event) -> None:
        """Pass on every delivery; `ended` is set when there are no more."""
        try:
            async for delivery in deliveries:
                if delivery.deliveries > MOST_TRUSTED_DELIVERIES:
                    self._tasks.start_soon(self._dispatch_suspect, delivery)
                else:
                    self._dispatch(delivery)
        finally:
            ended.set()

    async def _dispatch_suspect(self, delivery: Delivery) -> None:
        if reason := await self._suspects.read(delivery):
            self._dead_letter(delivery, _Fault(reason, DeadLetterCause.POISON))
        else:
            self._dispatch(delivery)

    def _dispatch(self, delivery: Delivery) -> None:
        """Pass on a message, or make it a dead letter."""
        fault: _Fault | None = _Fault("passing it on failed", DeadLetterCause.POISON)
        with OuterHandler(self._metrics, _TASK, topic=delivery.topic):
            fault = self._pass_on(delivery)
        if fault:
            self._dead_letter(delivery, fault)

    def _pass_on(self, delivery: Delivery) -> _Fault | None:
        """Pass on a message. Returns the fault of an unusable one."""
        if delivery.topic == Topics.CONTEXT_BUILD_REQUEST:
            self._requests.offer(delivery)
            return None
        if delivery.topic == Topics.TOOLS_REQUESTS:
            # Most of them are for other runners of tools.
            taken = self._tool_calls is None or self._tool_calls.offer(delivery)
            return None if taken else _Fault("too many calls of tools are waiting", DeadLetterCause.BACKLOG)
        try:
            message = read_message(delivery, self._settings)
        except EnvelopeError as error:
            return _Fault(str(error), _CAUSES.get(error.code, DeadLetterCause.UNREADABLE), error.ids.id)
        except UnreadablePayloadError as error:
            return _Fault(str(error), DeadLetterCause.UNREADABLE)
        return self._offer(delivery, message)

    def _offer(self, delivery: Delivery, message: Message) -> _Fault | None:
        match delivery.topic:
            case Topics.LLM_RESULTS | Topics.TOOLS_RESULTS:
                session = message.metadata.get("session_id")
                if isinstance(session, str) and is_ambiguous(session):
                    reason = f"metadata.session_id: {AMBIGUOUS_ID}"
                    return _Fault(reason, DeadLetterCause.REFUSED, message.id)
                settled = partial(self._settle, delivery, message.id)
                return self._take(
                    delivery,
                    message,
                    partial(self._persistence.offer, delivery.topic, message, len(delivery.payload), settled),
                )
            case Topics.SESSION_STATE:
                return self._keep_state(delivery, message)
            case Topics.TOOLS_REGISTER | Topics.TOOLS_UNREGISTER:
                # Streams deliver it twice: to every replica as news, and to one replica as work.
                settled = partial(self._settle, delivery, message.id)
                accepted = self._catalog.offer(delivery.topic, message, settled, kept=delivery.shared)
                return None if accepted else _Fault("the tool was refused", DeadLetterCause.REFUSED, message.id)
            case _:
                self._reload_wanted.set()
                return None

    def _keep_state(self, delivery: Delivery, message: Message) -> _Fault | None:
        settled = partial(self._settle, delivery, message.id)
        try:
            return self._take(delivery, message, partial(self._states.offer, message, len(delivery.payload), settled))
        except ValueError as error:
            return _Fault(str(error), DeadLetterCause.REFUSED, message.id)

    def _settle(self, delivery: Delivery, message_id: str, reason: str | None) -> None:
        """Finish a delivery that is stored, or is refused for this reason."""
        if reason is None:
            self._bus.done(delivery)
        else:
            self._dead_letter(delivery, _Fault(reason, DeadLetterCause.REFUSED, message_id))

    def _take(self, delivery: Delivery, message: Message, offer: Callable[[], bool]) -> _Fault | None:
        if offer():
            return None
        if not delivery.shared:
            return _Fault("too much is waiting to be recorded", DeadLetterCause.BACKLOG, message.id)
        # Of shared deliveries no more wait here than the bus hands out at once.
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
            self._letters.send_nowait((delivery, fault))
        except anyio.WouldBlock:
            if not delivery.shared:
                self._dead_letters.lose(delivery, "too many are waiting")
                return
            # No more of them wait here than the bus hands out at once.
            self._tasks.start_soon(self._letters.send, (delivery, fault))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The service is stopping, and a bus that keeps messages hands it to another replica.
            if not delivery.shared:
                self._dead_letters.lose(delivery, "the service is stopping")
            return
        self.pending.begin()

    async def _write_letters(self) -> None:
        async for delivery, fault in self._unwritten:
            await self._dead_letters.write(delivery, fault.reason, fault.cause, fault.message_id)
            self._bus.done(delivery)
            self.pending.end()
            # Its payload may be large, and the next letter far away.
            del delivery


async def _offer_until_taken(offer: Callable[[], bool]) -> None:
    while True:
        await anyio.sleep(_OFFER_AGAIN_S)
        if offer():
            return


_CAUSES: Final = {
    ErrorCode.PAYLOAD_TOO_LARGE: DeadLetterCause.TOO_LARGE,
    ErrorCode.UNAUTHENTICATED: DeadLetterCause.UNAUTHENTICATED,
}
