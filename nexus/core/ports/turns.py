"""The store of turns, and their source for the builder (contract §6)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import anyio

from nexus.core.ports.rows import Row
from nexus.core.turns import Goal, TurnStart

# Four characters stand for some of a text in a pattern, and not every server takes one of more than a thousand.
LONGEST_SEARCHED: Final = 250


class TurnTouch(NamedTuple):
    """Fields to set in the turn of a run when more of the run is recorded.

    Attributes:
        owner_key, session_id, run_id: the turn; another session may have a copy of it.
        changes: fields that are set in any case.
        unless_due: further fields, set where `close` is not due on the turn.
        message_id: a turn that has this among its `messages` stays as it is.
    """

    owner_key: str
    session_id: str
    run_id: str
    changes: Mapping[str, Any]
    unless_due: Mapping[str, Any] = {}
    message_id: str | None = None


class TurnStore(Protocol):
    """Turns, one document each: the fields of `nexus.core.turns.Turn`, and of the work that is due on it.

    - A document is unique by (`owner_key`, `session_id`, `turn_number`) and by (`owner_key`, `run_id`, `session_id`).
    - `work` is the work that is due (`close`, `summarise`, or None), `due_at` when. Times are kept to the millisecond.
    - Every read but `claim` names an owner and returns documents of that owner only, without `_id`.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for values it cannot keep.
    """

    async def insert_turns(self, turns: Sequence[Row]) -> int:
        """Keep these, in their order, up to the first whose number or run is taken. Returns how many were kept."""
        ...

    async def latest_turn(self, owner_key: str, session_id: str) -> Row | None:
        """The turn with the highest number, without `messages` and `tool_calls`, which are long."""
        ...

    async def find_turn(self, owner_key: str, session_id: str, turn_number: int) -> Row | None:
        """The turn with that number."""
        ...

    async def turns_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """The turns of these runs, in any order, without `messages` and `tool_calls`."""
        ...

    async def turns(  # a page of a session
        self,
        owner_key: str,
        session_id: str,
        *,
        limit: int,
        before: int | None = None,
        without_runs: Sequence[str] = (),
        whole: bool = False,
    ) -> list[Row]:
        """Up to `limit` turns, the highest number first.

        Args:
            owner_key: whose.
            session_id: of which session.
            limit: turns at most.
            before: only those with a lower number.
            without_runs: not the turns of these runs.
            whole: with `messages`, `tool_calls`, `thinking_phase` and `workspace_context`, which are long.
        """
        ...

    async def search_turns(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` turns with `text` in a summary or an insight, whatever the case; the highest number first.

        `text` is taken literally; a text of more than `LONGEST_SEARCHED` characters is rejected. The turns are not
        whole; see `turns`.
        """
        ...

    async def count_turns(self, owner_key: str, session_id: str) -> int:
        """How many turns the session has."""
        ...

    async def delete_turns(self, owner_key: str, session_id: str) -> int:
        """Forget the session's turns. Returns how many there were."""
        ...

    async def update_turn(
        self, owner_key: str, session_id: str, turn_number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values. False, and no change, when they have not."""
        ...

    async def touch_runs(self, touches: Sequence[TurnTouch]) -> list[TurnTouch]:
        """Set these fields of the turns of these runs, of each run in this order. Repeating it changes nothing.

        Where one of them is rejected, some of the others may have been changed.

        Returns:
            The touches of runs without a turn.
        """
        ...

    async def claim(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the turns on which this work is due by `now`, the one last due, whole; it is then due at `until`.

        Concurrent callers get different turns. None when nothing is due.
        """
        ...


class TurnSource(Protocol):
    """The part of the turn memory that the builder uses."""

    def begin_turn(self, start: TurnStart) -> anyio.Event | None:
        """Have the run remembered as a turn; once, however often and by however many replicas that is asked for.

        Never waits. A goal, surroundings or rounds that a later call brings are taken over. The event is set when the
        turn is kept; None when too much is waiting already.
        """
        ...

    async def goal(self, owner_key: str, session_id: str, run_id: str) -> Goal:
        """The goal of the run's turn, or of the latest turn where the run has none.

        Writes that this replica has accepted for the session come first.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...

    async def past_turns(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None, without_runs: Sequence[str] = ()
    ) -> list[Row]:
        """Up to `limit` turns, not whole, the highest number first; see `TurnStore.turns`.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...
