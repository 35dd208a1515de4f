"""Turns in memory, for unit tests. Their contract suite runs on it too."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from nexus.core.errors import StoreRejectedError
from nexus.core.ports import Row
from nexus.core.ports.memory import LONGEST_QUERY, TurnTouch
from nexus.core.turns import CLOSE
from tests.nexus.support.stored import stored

_LISTS: Final = frozenset({"messages", "tool_calls", "removed"})
_LONG: Final = frozenset({*_LISTS, "thinking_phase", "workspace_context"})


class FakeTurns:
    """`nexus.core.ports.TurnStore` in memory.

    Attributes:
        rows: what is kept, in the order in which it was inserted.

    Args:
        ask: called with the name of every operation before it is done.
    """

    def __init__(self, ask: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self._ask = ask

    async def insert_turns(self, turns: Sequence[Row]) -> int:
        """Keep these up to the first whose number or run is taken. Returns how many were kept."""
        self._ask("insert_turns")
        for kept, turn in enumerate([stored(dict(turn)) for turn in turns]):
            of_session = self._of(turn["owner_key"], turn["session_id"])
            if any(
                row["turn_number"] == turn["turn_number"] or row.get("run_id") == turn["run_id"] for row in of_session
            ):
                return kept
            self.rows.append(turn)
        return len(turns)

    async def latest_turn(self, owner_key: str, session_id: str) -> Row | None:
        """The turn with the highest number."""
        self._ask("latest_turn")
        return next((stored(_without(_LISTS, row)) for row in self._of(owner_key, session_id)), None)

    async def find_turn(self, owner_key: str, session_id: str, turn_number: int) -> Row | None:
        """The turn with that number."""
        self._ask("find_turn")
        stored({"turn_number": turn_number})
        found = (row for row in self._of(owner_key, session_id) if row["turn_number"] == turn_number)
        return next(map(stored, found), None)

    async def turns_of_runs(self, owner_key: str, session_id: str, run_ids: Sequence[str]) -> list[Row]:
        """The turns of these runs, in any order."""
        self._ask("turns_of_runs")
        return [
            stored(_without(_LISTS, row)) for row in self._of(owner_key, session_id) if row.get("run_id") in run_ids
        ]

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
        """Up to `limit` turns, the highest number first."""
        self._ask("turns")
        found = [
            row if whole else _short(row)
            for row in self._of(owner_key, session_id)
            if (before is None or row["turn_number"] < before) and row.get("run_id") not in without_runs
        ]
        return [stored(row) for row in found[:limit]]

    async def search_turns(self, owner_key: str, session_id: str, text: str, *, limit: int) -> list[Row]:
        """Up to `limit` turns with `text` in a summary or an insight; the highest number first."""
        self._ask("search_turns")
        if len(text) > LONGEST_QUERY:
            raise StoreRejectedError(f"no text of more than {LONGEST_QUERY} characters can be searched for")
        stored({"text": text})
        literal = re.compile(re.escape(text), re.IGNORECASE)
        found = [row for row in self._of(owner_key, session_id) if any(map(literal.search, _searched(row)))]
        return [stored(_short(row)) for row in found[:limit]]

    async def count_turns(self, owner_key: str, session_id: str) -> int:
        """How many turns the session has."""
        self._ask("count_turns")
        return len(self._of(owner_key, session_id))

    async def update_turn(
        self, owner_key: str, session_id: str, turn_number: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Set these fields, if those in `seen` still have these values."""
        self._ask("update_turn")
        wanted = stored({**seen, "turn_number": turn_number}).items()
        of_session = self._of(owner_key, session_id)
        return bool(_set(changes, [row for row in of_session if all(row.get(name) == value for name, value in wanted)]))

    async def touch_runs(self, touches: Sequence[TurnTouch]) -> list[TurnTouch]:
        """Set these fields of the turns of these runs. Returns those of which the run has no turn."""
        self._ask("touch_runs")
        return [touch for touch in touches if not self._touch(touch)]

    def _touch(self, touch: TurnTouch) -> bool:
        of_run = [row for row in self._of(touch.owner_key, touch.session_id) if row.get("run_id") == touch.run_id]
        is_due = any(row.get("work") == CLOSE for row in of_run)
        changed = [row for row in of_run if touch.message_id is None or touch.message_id not in row["messages"]]
        _set({**touch.changes, **({} if is_due else touch.unless_due)}, changed)
        return bool(of_run)

    async def claim(self, work: str, now: datetime, until: datetime) -> Row | None:
        """Of the turns on which this work is due by `now`, the one last due; it is then due at `until`."""
        self._ask("claim")
        moment = stored({"now": now})["now"]
        due = [row for row in self.rows if row.get("work") == work and row.get("due_at") and row["due_at"] <= moment]
        if not due:
            return None
        last = max(due, key=lambda row: row["due_at"])
        _set({"due_at": until}, [last])
        return stored(last)

    def _of(self, owner_key: str, session_id: str) -> list[Row]:
        of_session = [
            row for row in self.rows if (row.get("owner_key"), row.get("session_id")) == (owner_key, session_id)
        ]
        return sorted(of_session, key=lambda row: row["turn_number"], reverse=True)


def _set(changes: Mapping[str, Any], rows: Sequence[Row]) -> int:
    for row, changed in [(row, stored({**row, **changes})) for row in rows]:
        row.update(changed)
    return len(rows)


def _short(row: Row) -> Row:
    return _without(_LONG, row)


def _without(names: frozenset[str], row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def _searched(row: Row) -> Iterator[str]:
    summaries = row.get("summaries") or {}
    found = [summaries.get("brief"), summaries.get("detailed"), row.get("insights")]
    found += (summaries.get("structured") or {}).values()
    for value in found:
        yield from (item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str))
