"""Tools registered over the bus (contract §3), stored so that a restart and every replica see them.

Every replica writes every change that reaches it, and the later message wins, however late, often or in which order
messages arrive. Other changes it reads from the store, from time to time.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

import anyio
import structlog

from nexus.core.concurrency import Pending
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.models import Message, Topics, trusted_time
from nexus.core.ports import DocumentStore
from nexus.services.tools.registry import ToolRegistry, check_definition, check_name

_log = structlog.get_logger(__name__)

_MOST_WAITING: Final = 256
_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Change:
    """A definition to store under a name; None to remove it."""

    name: str
    definition: dict[str, Any] | None
    at: datetime
    settled: Callable[[], None] | None


class ToolCatalog:
    """Keeps the remote tools of a registry equal to those in the store.

    Attributes:
        pending: changes that are accepted and not stored.
    """

    def __init__(self, registry: ToolRegistry, documents: DocumentStore, *, refresh_s: float = 30.0) -> None:
        self._registry = registry
        self._documents = documents
        self._refresh_s = refresh_s
        # Half of it is for messages that the bus keeps: those it hands out must find room.
        self._send, self._receive = anyio.create_memory_object_stream[_Change](2 * _MOST_WAITING)
        self._refreshing = anyio.Lock()
        self.pending = Pending()
        registry.complete = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Store accepted changes and refresh, until the context ends."""
        async with self._send, self._receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._store_changes)
            tasks.start_soon(self._refresh_forever)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def offer(self, topic: str, message: Message, settled: Callable[[], None] | None = None) -> bool:
        """Accept a message of `tools.register` (a definition) or `tools.unregister` (`{"name": …}` or the name).

        Args:
            topic: which of the two.
            message: the registration.
            settled: called when it is stored, or refused by the store for good. Given for messages that the bus keeps.

        Returns:
            False when it is malformed, names a tool of this process, or too many are waiting; the log says which.
        """
        try:
            name, definition = _read(topic, message.content)
        except ValueError as error:
            _log.warning("tool_refused", message_id=message.id, reason=str(error))
            return False
        if self._registry.is_local(name):
            _log.warning("tool_refused", message_id=message.id, name=name, reason="the name is taken by a module")
            return False
        if self._enqueue(_Change(name, definition, trusted_time(message), settled)):
            return True
        _log.error("tool_refused", message_id=message.id, name=name, reason="no more changes can be taken now")
        return False

    def _enqueue(self, change: _Change) -> bool:
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

    async def _store_changes(self) -> None:
        async for change in self._receive:
            try:
                await self._store(change)
            except Exception as error:  # noqa: BLE001  # the outermost handler: one change must not stop the others
                _log.exception("tool_refused", name=change.name, reason=type(error).__name__)
            self.pending.end()
            if change.settled:
                change.settled()

    async def _store(self, change: _Change) -> None:
        """Store the change, however long that takes: later ones wait, so that their order is kept."""
        while True:
            try:
                is_newest = await self._documents.put_tool(change.name, change.definition, change.at)
                await self.refresh()
            except StoreUnavailableError as error:
                _log.warning("tool_delayed", name=change.name, reason=str(error))
                await anyio.sleep(_PAUSE_S)
            except StoreRejectedError as error:
                _log.error("tool_refused", name=change.name, reason=str(error))
                return
            else:
                changed = "tool_registered" if change.definition else "tool_unregistered"
                _log.info(changed if is_newest else "tool_change_outdated", name=change.name)
                return

    async def _refresh_forever(self) -> None:
        while True:
            await anyio.sleep(self._refresh_s if self._registry.complete else min(_PAUSE_S, self._refresh_s))
            try:
                await self.refresh()
            except (StoreUnavailableError, StoreRejectedError) as error:
                _log.warning("tools_not_refreshed", reason=str(error))
            except Exception as error:  # noqa: BLE001  # the outermost handler of a background task
                _log.exception("tools_not_refreshed", reason=type(error).__name__)


def _read(topic: str, content: Any) -> tuple[str, dict[str, Any] | None]:
    if topic == Topics.TOOLS_REGISTER:
        definition = check_definition(content)
        return definition["function"]["name"], definition
    return check_name(content.get("name") if isinstance(content, Mapping) else content, "name"), None
