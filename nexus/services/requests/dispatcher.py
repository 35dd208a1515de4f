"""From the bus to the service that deals with a message, without ever waiting (contract §1.1).

Rules of this module:

- Nothing here waits for anything: what takes time is done by others, or later.
- A piece of work is reported done when it is: a result when it is written, a tool or a session's state when it is
  stored. Until then a bus that keeps messages keeps it, so that it outlives this process.
- Only requests are answered, so anything else that cannot be used becomes a dead letter.
"""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import anyio
import structlog

from nexus.core.concurrency import Pending
from nexus.core.errors import ErrorCode, UnreadablePayloadError
from nexus.core.metrics import DeadLetterCause
from nexus.core.models import Message, Topics
from nexus.core.ports import Bus, Delivery, Work
from nexus.core.wire import EnvelopeError
from nexus.services.persistence import PersistenceService
from nexus.services.requests.admission import RequestService
from nexus.services.requests.deliveries import MOST_DELIVERIES, DeadLetterWriter, handed_out_too_often
from nexus.services.requests.envelope import RequestSettings, read_message
from nexus.services.requests.tool_calls import MOST_CALLS, ToolCallService
from nexus.services.session_state.service import SessionStates
from nexus.services.tools.catalogue import ToolCatalog

_log = structlog.get_logger(__name__)

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
    """The topics whose messages replicas share out among themselves.

    Args:
        max_in_flight: requests that one replica has in hand at once.
        tool_calls: whether there are tools of our own to be called.
    """
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
    """Hands deliveries on. Use `running()`, then `dispatch_all`.

    Args:
        bus, requests, persistence, catalog, states, dead_letters: what deals with them.
        reload: reads the stored settings again.
        settings: limits and keys.
        tool_calls: does calls of our own tools; None where there are none.

    Attributes:
        pending: dead letters that are not kept yet.
    """

    def __init__(  # noqa: PLR0917  # one for each part
        self,
        bus: Bus,
        requests: RequestService,
        persistence: PersistenceService,
        catalog: ToolCatalog,
        states: SessionStates,
        dead_letters: DeadLetterWriter,
        reload: Callable[[], Awaitable[None]],
        settings: RequestSettings,
        tool_calls: ToolCallService | None = None,
    ) -> None:
        self._bus = bus
        self._requests = requests
        self._persistence = persistence
        self._catalog = catalog
        self._states = states
        self._dead_letters = dead_letters
        self._reload = reload
        self._settings = settings
        self._tool_calls = tool_calls
        self.pending = Pending()
        self._to_bury, self._unusable = anyio.create_memory_object_stream[tuple[Delivery, _Fault]](_MOST_LETTERS)
        self._reload_wanted = anyio.Event()
        self._tasks = anyio.create_task_group()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Do what is to be done later, until the context ends."""
        async with self._tasks:
            self._tasks.start_soon(self._bury_all)
            self._tasks.start_soon(self._reload_when_wanted)
            try:
                yield self
            finally:
                self._tasks.cancel_scope.cancel()

    async def dispatch_all(self, deliveries: AsyncIterable[Delivery], ended: anyio.Event) -> None:
        """Hand on every delivery; `ended` is set when there are no more."""
        try:
            async for delivery in deliveries:
                if delivery.topic == Topics.CONTEXT_BUILD_REQUEST:
                    self._requests.offer(delivery)
                elif fault := self._dispatch(delivery):
                    self._bury(delivery, fault)
        finally:
            ended.set()

    def _dispatch(self, delivery: Delivery) -> _Fault | None:
        """Hand on what is no request. Returns why it cannot be used, if so."""
        if delivery.topic == Topics.TOOLS_REQUESTS:
            return self._call(delivery)
        if delivery.deliveries > MOST_DELIVERIES:
            return _Fault(handed_out_too_often(delivery), DeadLetterCause.POISON)
        settings = self._settings
        try:
            message = read_message(delivery, max_bytes=settings.max_payload_bytes, signing=settings.signing)
        except EnvelopeError as error:
            return _Fault(str(error), _CAUSES.get(error.code, DeadLetterCause.UNREADABLE), error.ids.id)
        except UnreadablePayloadError as error:
            return _Fault(str(error), DeadLetterCause.UNREADABLE)
        return self._hand_on(delivery, message)

    def _call(self, delivery: Delivery) -> _Fault | None:
        """Hand on a message of a topic that others share, where most are not for us."""
        if self._tool_calls is None or self._tool_calls.offer(delivery):
            return None
        return _Fault("too many calls of tools are waiting", DeadLetterCause.BACKLOG)

    def _hand_on(self, delivery: Delivery, message: Message) -> _Fault | None:
        match delivery.topic:
            case Topics.LLM_RESULTS | Topics.TOOLS_RESULTS:
                settled = partial(self._bus.done, delivery)
                return self._take(
                    delivery,
                    message,
                    partial(self._persistence.offer, delivery.topic, message, len(delivery.payload), settled),
                )
            case Topics.SESSION_STATE:
                return self._keep_state(delivery, message)
            case Topics.TOOLS_REGISTER | Topics.TOOLS_UNREGISTER:
                # In streams it comes twice: as news, and to one replica as a piece of work.
                stored = partial(self._bus.done, delivery) if delivery.shared else None
                accepted = self._catalog.offer(delivery.topic, message, stored)
                return None if accepted else _Fault("the tool was refused", DeadLetterCause.REFUSED, message.id)
            case _:
                self._reload_wanted.set()
                return None

    def _keep_state(self, delivery: Delivery, message: Message) -> _Fault | None:
        def settled(reason: str | None) -> None:
            if reason is None:
                self._bus.done(delivery)
            else:
                self._bury(delivery, _Fault(reason, DeadLetterCause.REFUSED, message.id))

        try:
            return self._take(delivery, message, partial(self._states.offer, message, len(delivery.payload), settled))
        except ValueError as error:
            return _Fault(str(error), DeadLetterCause.REFUSED, message.id)

    def _take(self, delivery: Delivery, message: Message, offer: Callable[[], bool]) -> _Fault | None:
        if offer():
            return None
        if not delivery.shared:
            return _Fault("too much is waiting to be recorded", DeadLetterCause.BACKLOG, message.id)
        # No more than may be in hand wait like this.
        self._tasks.start_soon(_offer_until_taken, offer)
        return None

    async def _reload_when_wanted(self) -> None:
        while True:
            await self._reload_wanted.wait()
            # However often it was asked for: what is read next is the newest.
            self._reload_wanted = anyio.Event()
            await self._reload()

    def _bury(self, delivery: Delivery, fault: _Fault) -> None:
        try:
            self._to_bury.send_nowait((delivery, fault))
        except anyio.WouldBlock:
            _log.error("dead_letter_not_kept", topic=delivery.topic, reason="too many are waiting")
            self._bus.done(delivery)
        else:
            self.pending.begin()

    async def _bury_all(self) -> None:
        with self._to_bury, self._unusable:
            async for delivery, fault in self._unusable:
                await self._dead_letters.write(delivery, fault.reason, fault.cause, fault.message_id)
                self._bus.done(delivery)
                self.pending.end()
                # It may hold a large payload, and the next may be long in coming.
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
