"""The states of sessions, as they are said on the bus (`session.state`, CONTRACT §5), kept in the store and read back.

Rules of this module:

- Every replica writes what it hears. Changes are joined to what is kept, so that neither their order nor their number
  shows, and a document is replaced only by whoever has seen it: who comes second reads it again.
- What waits to be written waits by session; see `by_session`.
- A state that this process was told of before it was asked for is in the answer.
- A row that comes back is checked against its owner and its session before anybody sees it.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics, Reading
from nexus.core.models import Message
from nexus.core.ports import SessionStateStore
from nexus.core.tasks import Pending
from nexus.services.by_session import BySession, Key
from nexus.services.said import said_at
from nexus.services.session_state.merge import Change, apply, read_change, read_session, state_in
from nexus.services.session_state.state import SessionState

_log = structlog.get_logger(__name__)

# What is called when a change is stored, or with the reason when it never will be.
Settled = Callable[[str | None], None]


def _nothing(_reason: str | None) -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Said:
    change: Change
    message_id: str
    settled: Settled


class SessionStates:
    """Keeps and reads the states of sessions. Use `running()` to have the background workers at work."""

    def __init__(self, store: SessionStateStore, metrics: Metrics | None = None) -> None:
        self._store = store
        self._metrics = metrics or NoMetrics()
        self._changes = BySession[_Said](self._store_said, self._settle, self._delayed)
        self._metrics.read_from(Reading.UNWRITTEN_STATES, lambda: self.pending.count)

    @property
    def pending(self) -> Pending:
        """Changes that are not stored yet."""
        return self._changes.pending

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Store what is offered, until the context ends. Wait for `pending` first, to lose nothing."""
        async with self._changes.running():
            try:
                yield self
            finally:
                if self.pending.count:
                    _log.error("session_states_unwritten", pending=self.pending.count)
                    self._metrics.count(Event.STATE_LOST, self.pending.count)

    def offer(self, message: Message, size: int, settled: Settled = _nothing) -> bool:
        """Accept a `session.state` message.

        Args:
            message: what is said.
            size: that of its payload.
            settled: called when it is stored, or with the reason when it never will be.

        Returns:
            False when too much is waiting already.

        Raises:
            ValueError: it says nothing that can be kept; where, and what is allowed.
        """
        key = message.owner_key, read_session(message.metadata)
        said = _Said(read_change(message.content, said_at(message), message.id), message.id, settled)
        return self._changes.offer(key, said, size)

    async def get(self, owner_key: str, session_id: str) -> SessionState:
        """The state of a session, with all of it that was offered before this is asked.

        Raises:
            StoreUnavailableError: the store did not answer, or what was offered cannot be stored now.
        """
        await self._changes.settled((owner_key, session_id))
        _, document = await self._find((owner_key, session_id))
        state, faults = state_in(document)
        if faults:
            _log.warning("stored_state_passed_over", reason=faults[0], rows=len(faults))
        return state

    async def _find(self, key: Key) -> tuple[int | None, Any]:
        """The revision and the document that are kept; 0 and None where there is none, None for what is no revision."""
        row = await self._store.find_session_state(*key)
        if row is None:
            return 0, None
        if (row.get("owner_key"), row.get("session_id")) != key:
            # The store broke its promise. Showing nothing of it is the only safe answer.
            _log.error("foreign_rows_withheld", rows=1)
            raise StoreUnavailableError("the store gave the state of another session")
        revision = row.get("revision")
        return revision if isinstance(revision, int) and revision > 0 else None, row.get("document")

    async def _store_said(self, said: Mapping[Key, Sequence[_Said]]) -> None:
        for key, items in said.items():
            await self._store_changes(key, items)

    async def _store_changes(self, key: Key, said: Sequence[_Said]) -> None:
        """Join the changes to what is kept, however often somebody else comes first."""
        changes = [item.change for item in said]
        while True:
            revision, kept = await self._find(key)
            if revision is None:
                raise StoreRejectedError("what is stored of the session has no revision; remove it from session_states")
            document = apply(kept, *changes)
            if document == (kept or {}) or await self._store.put_session_state(*key, document, revision):
                return

    def _settle(self, said: _Said, reason: str | None) -> None:
        if reason is None:
            self._metrics.count(Event.STATE_RECORDED)
        else:
            _log.warning("session_state_refused", message_id=said.message_id, reason=reason)
            self._metrics.count(Event.STATE_REFUSED)
        said.settled(reason)

    def _delayed(self, reason: str) -> None:
        _log.warning("session_state_delayed", reason=reason, pending=self.pending.count)
