"""Where turns are kept, and what the builder needs of them (CONTRACT §6)."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import anyio

from nexus.core.ports.rows import Row
from nexus.core.turns import Goal, TurnStart

# Four characters stand for some of a text in a pattern, and not every server takes one of more than a thousand.
LONGEST_SEARCHED: Final = 250
# What `latest_turns` gives of a turn, besides its `_id`.
LATEST: Final = ("owner_key", "session_id", "turn_number", "run_id", "status", "task_context", "begun_at")

# What `claim_all` gives of a turn; of `summaries` only `source`.
CLAIMED: Final = (
    "owner_key",
    "session_id",
    "turn_number",
    "run_id",
    "status",
    "thinking_phase",
    "summaries",
    "work",
    "due_at",
    "heard_at",
    "rows",
    "overtaken",
)

# A session: (owner_key, session_id).
SessionPlace = tuple[str, str]
# Where a turn is: (owner_key, session_id, turn_number).
TurnPlace = tuple[str, str, int]


class TurnUpdate(NamedTuple):
    """What `update_turn` takes."""

    place: TurnPlace
    changes: Mapping[str, Any]
    seen: Mapping[str, Any]


class TurnsUpdated(NamedTuple):
    """What `update_turns` has done.

    Attributes:
        changed: how many turns were changed.
        refused: the places of the updates that make of a turn what cannot be kept.
    """

    changed: int
    refused: Sequence[int] = ()


class TurnTouch(NamedTuple):
    """What of a run is set in its turn when more of the run is known.

    Attributes:
        owner_key: whose.
        session_id: in which session; another may have a copy of the turn.
        run_id: of which run.
        changes: what is set in any case.
        unless_due: what is set besides where `close` is not due on it.
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
    - `work` says what is due (`close`, `summarise`, or None), `due_at` when. Times are kept to the millisecond.
    - Every read but `claim` names an owner and returns documents of that owner only, without `_id` but for
      `latest_turns`.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for what it cannot keep.
    """

    async def insert_turns(self, turns: Sequence[Row]) -> int:
        """Keep these, in their order, up to the first whose number or run is taken. Returns how many were kept."""
        ...

    async def insert_turns_of_sessions(self, sessions: Sequence[Sequence[Row]]) -> list[int]:
        """Do what `insert_turns` does for each of several sessions. Returns how many of each were kept.

        Where one cannot be kept for another reason, some of the others may be.
        """
        ...

    async def latest_turn(self, owner_key: str, session_id: str) -> Row | None:
        """The turn with the highest number, without `messages` and `tool_calls`, which are long."""
        ...

    async def latest_turns(self, sessions: Collection[SessionPlace]) -> list[Row]:
        """Of each of these sessions the turn with the highest number, no more of it than `LATEST` and its `_id`.

        In any order; sessions without turns are left out.
        """
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

        `text` is taken literally; one of more than `LONGEST_SEARCHED` characters is rejected. What is read is what
        `turns` gives of those that are not whole.
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

    async def update_turns(self, updates: Sequence[TurnUpdate]) -> TurnsUpdated:
        """Do what `update_turn` does for each of these turns; one that cannot be kept is no other's business."""
        ...

    async def touch_runs(self, touches: Sequence[TurnTouch]) -> list[TurnTouch]:
        """Set these fields of the turns of these runs, of each run in this order. Done again, it comes to the same.

        Where one cannot be kept as it would become, some of the others may be changed.

        Returns:
            Those of which the run has no turn.
        """
        ...

    async def overtake(self, turns: Collection[Any], changes: Mapping[str, Any], *, due_by: datetime) -> int:
        """Set these fields of those of these turns that are not over, and have them due by then at the latest.

        On a turn that is not over `close` is due; where it is not, the turn stays as it is.

        Args:
            turns: their `_id`s, as `latest_turns` has told them.
            changes: the fields.
            due_by: when `close` is due on them, where it is not before.

        Returns:
            How many there were.
        """
        ...

    async def close_unheard(self, turns: Collection[Any], changes: Mapping[str, Any]) -> int:
        """Set these fields of those of these turns that are as they began, with an input and nothing else.

        Args:
            turns: their `_id`s, as `latest_turns` has told them.
            changes: the fields.

        Returns:
            How many there were.
        """
        ...

    async def claim(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the turns on which this work is due by `now`, the one last due, whole; it is then due at `until`.

        Of several that claim at once, each gets another. None when nothing is due.
        """
        ...

    async def claim_all(self, work: str, now: datetime, until: datetime, *, limit: int) -> list[Row]:
        """Claim up to `limit` turns as `claim` does, the last due first, no more of them than `CLAIMED`.

        Of several that claim at once, none gets a turn that another gets, and some may get fewer than there are.
        """
        ...


class TurnSource(Protocol):
    """What the builder needs of the turn memory."""

    def begin_turn(self, start: TurnStart) -> anyio.Event | None:
        """Have the run remembered as a turn; once, however often and by however many replicas it is asked for.

        Never waits. A goal, a surrounding or rounds that come along later are taken over. The event is set when the
        turn is kept; None when too much is waiting already.
        """
        ...

    async def goal(self, owner_key: str, session_id: str, run_id: str) -> Goal:
        """The goal of the run's turn, with what was offered here before; of the latest turn where the run has none.

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
