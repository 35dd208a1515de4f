"""Stores the states of sessions as they are changed over the bus (`session.state`, contract §5), and reads them back.

- A document is replaced only if it has the revision that was read: on a conflict it is read and merged again.
- Of one session one worker writes at a time. What cannot be written now waits in memory, bounded (see
  `session_queue`).
- Reading waits for the changes of that session that were accepted before.
- A stored document is checked against its owner and session before it is used.
"""

from collections.abc import Sequence
from typing import Any, Final

import structlog

from nexus.core.errors import StoreUnavailableError
from nexus.core.metrics import Event, Metrics, Reading
from nexus.core.models import Message
from nexus.core.ports import Row, SessionStateStore
from nexus.services.history.rows import revision_of
from nexus.services.history.tombstones import Said, Tombstones
from nexus.services.session_queue import Key, MessageQueue, Outcomes
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


class SessionStates(MessageQueue[Change]):
    """Stores and reads the states of sessions. Messages are written while `running()`."""

    def __init__(self, store: SessionStateStore, tombstones: Tombstones, metrics: Metrics | None = None) -> None:
        super().__init__(_OUTCOMES, tombstones, metrics)
        self._store = store

    def _read_message(self, message: Message, said: Said) -> tuple[Key, Change]:
        return (said.owner_key, said.session_id), read_change(message.content, said.said_at, message.id)

    async def get(self, owner_key: str, session_id: str) -> SessionState:
        """The state with every change that was accepted before; StoreUnavailableError where that cannot be had now."""
        await self._queue.settled((owner_key, session_id))
        state, faults = state_in(await stored_state(self._store, owner_key, session_id))
        if faults:
            _log.warning("stored_state_passed_over", reason=faults[0], rows=len(faults))
        return state

    async def _write(self, key: Key, changes: Sequence[Change]) -> None:
        while True:
            row = await _find(self._store, key)
            revision, stored = revision_of(row, "session", "session_states"), row.get("document") if row else None
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
