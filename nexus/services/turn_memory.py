"""Turns of sessions: begun, heard of, read back (CONTRACT §6).

Rules of this module:

- A run becomes a turn when its first context is asked for, or else with its first result; see `turns.beginning`.
- What a turn was is read from the rows of its run when it is over, by `turns.work`. There is always a summary: until
  then, and without a model, it is made by rules.
- Sub-agents' runs are their own business, and no turns.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

import anyio

from nexus.core.errors import TurnNotFoundError
from nexus.core.metrics import Metrics, NoMetrics
from nexus.core.ports import MessageStore, Row, TurnStore
from nexus.core.tasks import Pending
from nexus.core.turns import Goal, Level, Turn, TurnStart
from nexus.services.context.remembered import accumulated
from nexus.services.turns.beginning import Beginnings, goal_in
from nexus.services.turns.documents import read_turn
from nexus.services.turns.hearing import Hearing
from nexus.services.turns.work import TurnWork

# Turns that are read at once where all of a session's are wanted.
_PAGE: Final = 200
_MOST_FOUND: Final = 100


class TurnMemory:
    """Begins and reads turns. Use `running()` to have the background workers at work.

    Args:
        store: where turns are kept.
        messages: where the rows of their runs are.
        work: closes and summarises them.
        metrics: what is counted.
    """

    def __init__(
        self, store: TurnStore, messages: MessageStore, work: TurnWork, metrics: Metrics | None = None
    ) -> None:
        self._store = store
        self._beginnings = Beginnings(store, messages, work, metrics or NoMetrics())
        self._hearing = Hearing(store, messages, self._beginnings, work)
        self.work = work

    @property
    def pending(self) -> Pending:
        """Turns that were begun and are not kept yet, and what was heard of them."""
        return self._beginnings.pending

    @property
    def unkept(self) -> int:
        """How many of those there are, and of what was heard of others."""
        return self.pending.count + self._hearing.pending.count

    async def drained(self) -> None:
        """Return when all turns that were begun, and what was heard of them, are kept."""
        await self._hearing.none()
        await self._beginnings.pending.none()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Keep, close and summarise turns, until the context ends. Wait for `drained` first, to lose nothing."""
        async with self._beginnings.running(), self._hearing.running(), self.work.running():
            yield self

    def begin_turn(self, start: TurnStart) -> anyio.Event | None:
        """Have the run remembered as a turn; see `TurnSource.begin_turn`."""
        return self._beginnings.offer(start)

    async def start_turn(self, start: TurnStart) -> Turn:
        """Begin a turn now. One of the session that is not over counts as completed.

        Returns:
            The turn; the one that is there, where the run has one.

        Raises:
            StoreUnavailableError: the store did not answer.
            StoreRejectedError: it will never keep the turn.
        """
        await self._beginnings.begin(start)
        (kept,) = await self._store.turns_of_runs(start.owner_key, start.session_id, [start.run_id])
        return await self.get_turn_by_number(start.owner_key, start.session_id, kept["turn_number"])

    async def heard(self, row: Row) -> None:
        """A row was recorded: one of a model or a tool says that the turn of its run has gone on. Never waits."""
        self._hearing.heard(row)

    async def goal(self, owner_key: str, session_id: str, run_id: str) -> Goal:
        """The goal as the run is to know it; see `TurnSource.goal`."""
        await self._hearing.settled((owner_key, session_id))
        if known := await self._beginnings.goal((owner_key, session_id), run_id):
            return known
        own = await self._store.turns_of_runs(owner_key, session_id, [run_id])
        document = own[0] if own else await self._store.latest_turn(owner_key, session_id)
        return goal_in(document, own=bool(own)) if document else Goal()

    async def past_turns(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None, without_runs: Sequence[str] = ()
    ) -> list[Row]:
        """Turns, the highest number first; see `TurnSource.past_turns`."""
        return await self._store.turns(owner_key, session_id, limit=limit, before=before, without_runs=without_runs)

    async def get_turn_by_number(self, owner_key: str, session_id: str, turn_number: int) -> Turn:
        """The turn with that number.

        Raises:
            TurnNotFoundError: there is none that can be read.
            StoreUnavailableError: the store did not answer.
        """
        document = await self._store.find_turn(owner_key, session_id, turn_number)
        turn = read_turn(document) if document else None
        if turn is None:
            raise TurnNotFoundError(turn_number)
        return turn

    async def get_user_facing_summary(self, owner_key: str, session_id: str, turn_number: int) -> str:
        """The detailed summary of a turn. Errors as for `get_turn_by_number`."""
        return (await self.get_turn_by_number(owner_key, session_id, turn_number)).summaries.detailed

    async def get_accumulated_summaries(self, owner_key: str, session_id: str, level: Level = "brief") -> str:
        """What is remembered of all turns at that level, as contexts show it; `""` where there are none.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        documents: list[Row] = []
        before = None
        while True:
            page = await self._store.turns(owner_key, session_id, limit=_PAGE, before=before)
            documents += page
            if len(page) < _PAGE:
                return accumulated(documents, level)
            before = page[-1]["turn_number"]

    async def search(self, owner_key: str, session_id: str, text: str) -> list[Turn]:
        """Up to 100 turns with `text` in a summary or an insight, whatever the case, the highest number first.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        found = await self._store.search_turns(owner_key, session_id, text, limit=_MOST_FOUND)
        return [turn for document in found if (turn := read_turn(document))]
