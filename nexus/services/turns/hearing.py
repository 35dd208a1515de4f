"""Hearing of results: the turns of their runs go on (CONTRACT §6).

Rules of this module:

- What is heard of many runs is kept together. Nobody waits for that; who asks for the goal of a session does.
- What is heard of a run that waits to be begun is kept with its turn.
- A run that is no turn, because a replica was killed before it had begun it, becomes one.
- A store that does not answer now is no harm: it is told when it does. What is never told, since the replica ends first
  or too much is waiting, is found out when the turn is looked at, which one that was closed since is not (decision 15).
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

import structlog

from nexus.core.errors import StoreUnavailableError
from nexus.core.models import utc_now
from nexus.core.ports import MessageStore, Row, TurnStore
from nexus.core.ports.turns import TurnTouch
from nexus.core.tasks import Pending
from nexus.core.turns import TurnStart
from nexus.services.by_session import BySession, Key
from nexus.services.context.agents import is_internal
from nexus.services.context.clock import parse_moment
from nexus.services.context.memory import as_text
from nexus.services.turns.beginning import Beginnings
from nexus.services.turns.documents import heard
from nexus.services.turns.work import TurnWork

_log = structlog.get_logger(__name__)

# A context that is asked for next is to tell what came of the turn before.
_HEARD_TOGETHER_S: Final = 0.05


class Hearing:
    """Hears of results. Use `running()` to have the background workers at work.

    Args:
        store: where turns are kept.
        messages: where the inputs of runs are.
        beginnings: begins turns.
        work: told of turns that may be over.
    """

    def __init__(self, store: TurnStore, messages: MessageStore, beginnings: Beginnings, work: TurnWork) -> None:
        self._store = store
        self._messages = messages
        self._beginnings = beginnings
        self._work = work
        self._touches = BySession[TurnTouch](self._touch, self._settle, self._delayed, _HEARD_TOGETHER_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Keep what was heard, until the context ends."""
        async with self._touches.running():
            try:
                yield self
            finally:
                if self.pending.count:
                    # Those that go on are looked at when they have been silent for long.
                    _log.warning("turn_not_touched", runs=self.pending.count, reason="the service ended")

    @property
    def pending(self) -> Pending:
        """What was heard and is not kept yet."""
        return self._touches.pending

    def heard(self, row: Row) -> None:
        """A row was recorded. One of a model or a tool says that the turn of its run has gone on."""
        if row["role"] not in {"AI", "TOOL"} or is_internal(row["metadata"]):
            return
        changes, unless_due = heard(row, utc_now())
        touch = TurnTouch(row["owner_key"], row["session_id"], row["run_id"], changes, unless_due, row["id"])
        if self._beginnings.heard(touch) or self._touches.offer((touch.owner_key, touch.session_id), touch, 0):
            return
        _log.warning("turn_not_touched", run_id=touch.run_id, reason="too much is waiting")

    async def settled(self, key: Key) -> None:
        """Return when what was heard of the session until now is kept, or about to be with a turn that begins.

        Raises:
            StoreUnavailableError: it cannot be kept now.
        """
        await self._touches.settled(key)

    async def none(self) -> None:
        """Return when nothing that was heard is on its way."""
        await self.pending.none()

    async def _touch(self, heard_of: Mapping[Key, Sequence[TurnTouch]]) -> None:
        touches = [touch for of_session in heard_of.values() for touch in of_session]
        for touch in await self._store.touch_runs(touches):
            if not self._beginnings.heard(touch):
                await self._begin_late(touch)
        if any("due_at" in touch.changes for touch in touches):
            self._work.wake()

    async def _begin_late(self, touch: TurnTouch) -> None:
        """Begin the turn of a run that has an input, and have it know what was heard."""
        asked = await self._messages.run_input(touch.owner_key, touch.run_id)
        text = as_text(asked.get("content")) if asked else ""
        if not asked or not text:
            return
        # A result may be said to belong to another session than its run.
        session_id = str(asked.get("session_id"))
        begun_at = parse_moment(asked.get("timestamp")) or utc_now()
        start = TurnStart(touch.owner_key, session_id, touch.run_id, begun_at, text, str(asked.get("id", "")))
        if not (self._beginnings.offer(start) and self._beginnings.heard(touch._replace(session_id=session_id))):
            raise StoreUnavailableError("too many turns are waiting")

    @staticmethod
    def _settle(touch: TurnTouch, reason: str | None) -> None:
        if reason is not None:
            _log.warning("turn_not_touched", run_id=touch.run_id, reason=reason)

    @staticmethod
    def _delayed(reason: str) -> None:
        _log.warning("turn_delayed", reason=reason)
