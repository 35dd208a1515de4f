"""Stores the states of sessions as they are changed over the bus (`session.state`, contract §5), and reads them back.

- A document is replaced only if it has the revision that was read: on a conflict it is read and merged again.
- Of one session one worker writes at a time. What cannot be written now waits in memory, bounded (see
  `session_queue`).
- Reading waits for the changes of that session that were accepted before.
- A stored document is checked against its owner and session before it is used.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, Reading
from nexus.core.models import Message, trusted_time
from nexus.core.ports import Row, SessionStateStore
from nexus.core.ports.store import Settled
from nexus.services.history.rows import read_session_id
from nexus.services.history.tombstones import Tombstones
from nexus.services.session_queue import Accepted, Key, MessageQueue, Outcomes
from nexus.services.session_state.merge import Change, apply, read_change, state_in
from nexus.services.session_state.state import SessionState

_log = structlog.get_logger(__name__)

_OUTCOMES: Final = Outcomes(
    delayed="session_state_delayed",
    refused="session_state_refused",
    unwritten="session_states_unwritten",
    recorded_count=Event.STATE_RECORDED,
    refused_count=Event.STATE_REFUSED,
    lost_count=Event.STATE_LOST,
    waiting=Reading.UNWRITTEN_STATES,
)


class SessionStates:
    """Stores and reads the states of sessions. Changes are written while `running()`.

    Attributes:
        pending: changes that are accepted and not stored.
    """

    def __init__(self, store: SessionStateStore, tombstones: Tombstones, metrics: Metrics | None = None) -> None:
        self._store = store
        self._changes = MessageQueue[Change](self._write, _OUTCOMES, tombstones, metrics)
        self.pending = self._changes.pending

    def running(self) -> AbstractAsyncContextManager[None]:
        """Write accepted messages until the context ends. Wait for `pending` first, to lose nothing."""
        return self._changes.running()

    def offer(self, message: Message, size: int, settled: Settled = lambda _: None) -> bool:
        """Accept a `session.state` message of `size` bytes. Never waits; False when too much is waiting already.

        ValueError where the message holds no change; it says where and what is allowed.
        """
        key = message.owner_key, read_session_id(message.metadata)
        said_at = trusted_time(message)
        change = read_change(message.content, said_at, message.id)
        return self._changes.offer(key, Accepted(change, message.id, key[1], said_at, settled), size)

    async def get(self, owner_key: str, session_id: str) -> SessionState:
        """The state with every change that was accepted before; StoreUnavailableError where that cannot be had now."""
        await self._changes.settled((owner_key, session_id))
        _, document = await self._find((owner_key, session_id))
        state, faults = state_in(document)
        if faults:
            _log.warning("stored_state_passed_over", reason=faults[0], rows=len(faults))
        return state

    async def _find(self, key: Key) -> tuple[int | None, Any]:
        """Revision and document; 0 and None where nothing is stored, None as revision where the stored one is bad."""
        row = await _find(self._store, key)
        if row is None:
            return 0, None
        revision = row.get("revision")
        return revision if isinstance(revision, int) and revision > 0 else None, row.get("document")

    async def _write(self, key: Key, changes: Sequence[Change]) -> None:
        while True:
            revision, stored = await self._find(key)
            if revision is None:
                raise StoreRejectedError("what is stored of the session has no revision; remove it from session_states")
            document = apply(stored, *changes)
            if document == (stored or {}) or await self._store.put_session_state(*key, document, revision):
                return


async def stored_state(store: SessionStateStore, owner_key: str, session_id: str) -> Any:
    """The stored document of a session's state, which `state_in` reads; None where there is none."""
    row = await _find(store, (owner_key, session_id))
    return row.get("document") if row else None


async def _find(store: SessionStateStore, key: Key) -> Row | None:
    row = await store.find_session_state(*key)
    if row is not None and (row.get("owner_key"), row.get("session_id")) != key:
        _log.error("foreign_rows_withheld", rows=1)
        raise StoreUnavailableError("the store gave the state of another session")
    return row
