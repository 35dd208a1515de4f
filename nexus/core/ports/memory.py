"""The stores of turns and of working memory, and both as the context builder uses them (contract §6, §7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import anyio

from nexus.core.models import Row
from nexus.core.turns import Goal, TurnStart
from nexus.core.working_memory import CompactionJob, CompactionRequest, Snapshot

# Characters of a phrase. Escaped for a pattern, each may take four, and not every server takes one of more than 1,000.
LONGEST_QUERY: Final = 250


@dataclass(frozen=True, slots=True)
class TurnTouch:
    """Fields to set in the turn of a run when more of the run is recorded.

    Attributes:
        session_id: another session may have a copy of the turn.
        changes: fields that are set in any case.
        unless_due: further fields, set where `close` is not due on the turn.
        message_id: a turn that has this among its `messages` stays as it is.
    """

    owner_key: str
    session_id: str
    run_id: str
    changes: Mapping[str, Any]
    unless_due: Mapping[str, Any] = field(default_factory=dict)
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

    async def latest_turn(self, owner_key: str, session_id: str) -> Row | None:
        """The turn with the highest number, without `messages`, `tool_calls` and `removed`, which are long."""

    async def find_turn(self, owner_key: str, session_id: str, turn_number: int) -> Row | None:
        """The turn with that number."""

    async def turns_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """The turns of these runs, in any order, as `latest_turn` gives one."""

    async def turns(
        self,
        owner_key: str,
        session_id: str,
        *,
        limit: int,
        before: int | None = None,
        without_runs: Sequence[str] = (),
        whole: bool = False,
    ) -> list[Row]:
        """Up to `limit` turns with a number below `before`, the highest first, without those of some runs.

        `whole`: with `messages`, `tool_calls`, `removed`, `thinking_phase` and `workspace_context`, which are long.
        """

    async def search_turns(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` turns with `text` in a summary or an insight, whatever the case; the highest number first.

        `text` is taken literally; a text of more than `LONGEST_QUERY` characters is rejected. The turns are not
        whole; see `turns`.
        """

    async def count_turns(self, owner_key: str, session_id: str) -> int:
        """How many turns the session has."""

    async def update_turn(
        self, owner_key: str, session_id: str, turn_number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values. False, and no change, when they have not."""

    async def touch_runs(self, touches: Sequence[TurnTouch]) -> list[TurnTouch]:
        """Set these fields of the turns of runs, of each run in this order. Returns the touches of runs without a turn.

        Repeating it changes nothing. Where one of them is rejected, some of the others may have been changed.
        """

    async def claim(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the turns on which this work is due by `now`, the one last due, whole; it is then due at `until`.

        Concurrent callers get different turns. None when nothing is due.
        """


class TurnSource(Protocol):
    """The part of the turn memory that the builder uses."""

    def begin_turn(self, start: TurnStart) -> anyio.Event | None:
        """Have the run remembered as a turn; once, however often and by however many replicas that is asked for.

        Never waits. A goal, surroundings or rounds that a later call brings are taken over. The event is set when the
        turn is kept; None when too much is waiting already.
        """

    async def goal(self, owner_key: str, session_id: str, run_id: str) -> Goal:
        """The goal of the run's turn, or of the latest turn where the run has none. StoreUnavailableError.

        Writes that this replica has accepted for the session come first.
        """

    async def past_turns(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None, without_runs: Sequence[str] = ()
    ) -> list[Row]:
        """Up to `limit` turns, not whole, the highest number first; see `TurnStore.turns`. StoreUnavailableError.

        Of the latest, those that are not closed yet come with summaries by rules of what is recorded of them.
        """


class NewestMemory(NamedTuple):
    """The documents of a session that say what its working memory is now.

    Attributes:
        overview: with the highest revision; None where there is none.
        details: by name, without `content`.
        detail_count: how many details there are in all.
        compaction: with the highest number, without `rows` and `removed`; None where there is none.
    """

    overview: Row | None
    details: list[Row]
    detail_count: int
    compaction: Row | None


class MemoryStore(Protocol):
    """Overviews, details and compactions, one document each revision, version or number.

    - Documents have the fields of `nexus.core.working_memory`, and `owner_key` and `session_id`. They never change, but
      for the summary of a compaction, the work that is due on it and what it says of things that retention removed.
    - Unique are (`owner_key`, `session_id`, `revision`), (…, `name`, `version`) and (…, `number`): of several writers
      of the same one, one succeeds.
    - `work` of a compaction says what is due (`refine`, or None), `due_at` when. Times are kept to the millisecond.
    - Every read but `claim_compaction` names an owner and returns documents of that owner only, without `_id`.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for what it cannot keep.
    """

    async def insert_overview(self, overview: Row) -> bool:
        """Store a revision. False, and no change, when it is taken."""

    async def latest_overview(self, owner_key: str, session_id: str) -> Row | None:
        """The overview with the highest revision."""

    async def overviews(self, owner_key: str, session_id: str, *, limit: int, before: int | None = None) -> list[Row]:
        """Up to `limit` overviews, the highest revision first; only those below `before`."""

    async def drop_overviews(self, owner_key: str, session_id: str, *, below: int) -> int:
        """Remove the revisions below this one. Returns how many there were."""

    async def insert_details(self, details: Sequence[Row]) -> int:
        """Store these in order, up to the first whose name and version are taken. Returns how many were stored."""

    async def list_details(
        self, owner_key: str, session_id: str, *, limit: int | None = None, after: str = ""
    ) -> list[Row]:
        """The newest version of each detail, by name, without `content`; up to `limit` of those behind a name."""

    async def newest(self, owner_key: str, session_id: str, *, notes: int, archives: int) -> NewestMemory:
        """The working memory of a session as it is now, in one read.

        Of details the newest version of the notes and archives written last, at most so many of each. It takes time for
        what is returned, not for all archives.
        """

    async def find_detail(
        self, owner_key: str, session_id: str, name: str, *, version: int | None = None
    ) -> Row | None:
        """That version of the detail; its newest where none is named."""

    async def detail_versions(
        self, owner_key: str, session_id: str, *, limit: int, after: tuple[str, int] | None = None
    ) -> list[Row]:
        """Up to `limit` versions, whole, by name and then by version; only those after that name and version."""

    async def search_details(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` whole details whose content has `text`, ignoring case, the last written first.

        Of each detail the newest version that has it. `text` is literal; more than `LONGEST_QUERY` characters are
        rejected. A text index of the server may speed this up, but never hide a find.
        """

    async def insert_compaction(self, compaction: Row) -> bool:
        """Store a compaction. False, and no change, when its number is taken."""

    async def latest_compaction(self, owner_key: str, session_id: str) -> Row | None:
        """The compaction with the highest number, without `rows` and `removed`, which are many."""

    async def compactions(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None = None, whole: bool = False
    ) -> list[Row]:
        """Up to `limit` compactions, the highest number first; only those below `before`.

        `whole`: with `rows` and `removed`.
        """

    async def update_compaction(
        self, owner_key: str, session_id: str, number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values. False, and no change, when they have not."""

    async def claim_compaction(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Claim the compaction on which this work has been due the longest by `now`; it is then due at `until`.

        Callers at the same time get different ones. None when nothing is due.
        """


class MemorySource(Protocol):
    """The working memory as the context builder uses it."""

    async def snapshot(self, owner_key: str, session_id: str) -> Snapshot:
        """The working memory of a session, or StoreUnavailableError."""

    def compact_soon(self, request: CompactionRequest, /, *, long: bool = False) -> CompactionJob | None:
        """Start the compaction in the background, or join the one of the session that is under way. Never waits.

        `long`: it may take long and no request waits for it; only a few of these run at once. None when too many are
        under way; it is not started then.
        """
