"""Finding the latest turns of many sessions with one command (CONTRACT §6).

Rules of this module:

- A number that a session had a while ago says where to begin, and no more: what comes out is what the server holds now,
  whoever has begun, imported or removed turns since.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING

from nexus.adapters.mongo_find import Finds, Page
from nexus.adapters.mongo_schema import of_session
from nexus.core.ports import Row
from nexus.core.ports.turns import LATEST, SessionPlace

# That of the unique numbers.
_INDEX: Final = [("owner_key", ASCENDING), ("session_id", ASCENDING), ("turn_number", DESCENDING)]
_HIGHEST_FIRST: Final = _INDEX[-1:]
_LATEST: Final = dict.fromkeys(LATEST, 1)
_SESSIONS_KNOWN: Final = 1_024
# Turns of a session that others may have begun since; with more of them, asking for the latest alone costs less.
_BEGUN_SINCE: Final = 4


class LatestTurns:
    """Remembers which numbers sessions had, and looks from there on: the server sorts nothing, and has one plan."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[SessionPlace, int] = OrderedDict()

    def seen(self, turns: Iterable[Row]) -> None:
        """These turns are kept, as far as anybody knows; the last of each session counts."""
        for turn in turns:
            place = turn["owner_key"], turn["session_id"]
            self._numbers[place] = turn["turn_number"]
            self._numbers.move_to_end(place)
        while len(self._numbers) > _SESSIONS_KNOWN:
            self._numbers.popitem(last=False)

    async def find(self, finds: Finds, sessions: Collection[SessionPlace]) -> list[Row]:
        """What `TurnStore.latest_turns` promises.

        Args:
            finds: where turns are found.
            sessions: of which.
        """
        known = {place: self._numbers[place] for place in sessions if place in self._numbers}
        # One by itself is found as soon without.
        found = await self._found_since(finds, known) if len(known) > 1 else {}
        others = [of_session(*place) for place in sessions if place not in found]
        if others:
            rows = await finds.first_of_each(others, _HIGHEST_FIRST, only=_LATEST)
            found |= {(row["owner_key"], row["session_id"]): row for row in rows}
        self.seen(found.values())
        return [*found.values()]

    async def _found_since(self, finds: Finds, known: Mapping[SessionPlace, int]) -> dict[SessionPlace, Row]:
        """The latest of those sessions that still have a turn with that number, or a higher one."""
        queries = [{**of_session(*place), "turn_number": {"$gte": number}} for place, number in known.items()]
        most = len(known) * _BEGUN_SINCE
        rows = await finds.rows({"$or": queries}, Page(most), only=_LATEST, index=_INDEX)
        found: dict[SessionPlace, Row] = {}
        if len(rows) < most:
            for row in sorted(rows, key=_number):
                found[row["owner_key"], row["session_id"]] = row
        return found


def _number(turn: Row) -> Any:
    return turn["turn_number"]
