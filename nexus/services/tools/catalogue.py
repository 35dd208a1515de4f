"""Tools that are registered over the bus (CONTRACT §3), kept so that a restart and every replica see them.

Every replica writes what it hears, and what was said later counts, however late, often or in which order it is heard.
So a message that lay about, or that somebody sends again, changes nothing. What a replica did not hear it reads from
the store, where it looks again every now and then.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

import anyio
import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.models import Message
from nexus.core.ports import DocumentStore
from nexus.core.tasks import Pending
from nexus.core.topics import Topics
from nexus.services.said import said_at
from nexus.services.tools.registry import ToolRegistry, check_definition, check_name

_log = structlog.get_logger(__name__)

_MOST_WAITING: Final = 256
_PAUSE_S: Final = 1.0

# The name of a tool, and its definition; None to forget it.
_Change = tuple[str, dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    name: str
    definition: dict[str, Any] | None
    said_at: datetime
    settled: Callable[[], None] | None


class ToolCatalog:
    """Keeps a registry's remote tools the same as those in the store.

    Attributes:
        pending: changes that are not stored yet.
    """

    def __init__(self, registry: ToolRegistry, documents: DocumentStore, *, refresh_s: float = 30.0) -> None:
        self._registry = registry
        self._documents = documents
        self._refresh_s = refresh_s
        self._send, self._receive = anyio.create_memory_object_stream[_Waiting](2 * _MOST_WAITING)
        self._refreshing = anyio.Lock()
        self.pending = Pending()
        registry.complete = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Apply what is offered and refresh, until the context ends."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._apply_all)
            tasks.start_soon(self._refresh_forever)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
                self._send.close()
                self._receive.close()

    def offer(self, topic: str, message: Message, settled: Callable[[], None] | None = None) -> bool:
        """Accept a message of `tools.register` (the definition) or `tools.unregister` (`{"name": …}` or the name).

        Args:
            topic: which of the two.
            message: what is registered.
            settled: called when it is stored, or never will be because the store does not accept it. Whoever gives
                this has charge of the message, and finds room for it.

        Returns:
            False when it is malformed, names a tool of this process, or too many are waiting; the log says which.
        """
        try:
            change = _registered(message.content) if topic == Topics.TOOLS_REGISTER else _unregistered(message.content)
        except ValueError as error:
            _log.warning("tool_refused", message_id=message.id, reason=str(error))
            return False
        if self._registry.is_local(change[0]):
            _log.warning("tool_refused", message_id=message.id, name=change[0], reason="the name is taken by a module")
            return False
        if self._enqueue(_Waiting(*change, said_at(message), settled)):
            return True
        _log.error("tool_refused", message_id=message.id, name=change[0], reason="no more changes can be taken now")
        return False

    def _enqueue(self, change: _Waiting) -> bool:
        if change.settled is None and self._receive.statistics().current_buffer_used >= _MOST_WAITING:
            return False
        try:
            self._send.send_nowait(change)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        self.pending.begin()
        return True

    async def refresh(self) -> None:
        """Read the store's tools into the registry.

        Raises:
            StoreUnavailableError: the registry stays as it is.
        """
        # One at a time, so that an older list never replaces a newer one.
        async with self._refreshing:
            for fault in self._registry.set_remote(await self._documents.list_tools()):
                _log.warning("stored_tool_passed_over", reason=fault)
            self._registry.complete = True

    async def _apply_all(self) -> None:
        async for change in self._receive:
            await self._apply(change)
            self.pending.end()
            if change.settled:
                change.settled()

    async def _apply(self, change: _Waiting) -> None:
        """Make the change in the store, however long that takes: later changes wait, so that their order is kept."""
        while True:
            try:
                counts = await self._documents.put_tool(change.name, change.definition, change.said_at)
                await self.refresh()
            except StoreUnavailableError as error:
                _log.warning("tool_delayed", name=change.name, reason=str(error))
                await anyio.sleep(_PAUSE_S)
            except StoreRejectedError as error:
                _log.error("tool_refused", name=change.name, reason=str(error))
                return
            else:
                changed = "tool_registered" if change.definition else "tool_unregistered"
                _log.info(changed if counts else "tool_change_outdated", name=change.name)
                return

    async def _refresh_forever(self) -> None:
        while True:
            await anyio.sleep(self._refresh_s if self._registry.complete else min(_PAUSE_S, self._refresh_s))
            try:
                await self.refresh()
            except (StoreUnavailableError, StoreRejectedError) as error:
                _log.warning("tools_not_refreshed", reason=str(error))


def _registered(content: Any) -> _Change:
    definition = check_definition(content)
    return definition["function"]["name"], definition


def _unregistered(content: Any) -> _Change:
    return check_name(content.get("name") if isinstance(content, Mapping) else content, "name"), None
