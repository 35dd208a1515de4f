"""Which rows the history of a run has: those of its first build, whatever is recorded later (contract §4.6). Pure.

An `_id` that Nexus or MongoDB made holds the second in which its row was stored, by the clock of the replica that
stored it, and then which replica that was. Rows of one second are in order where one replica stored them, and in no
order otherwise. An `_id` that another program made says nothing, and only older rows have one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from nexus.core.models import parse_moment
from nexus.core.ports import Row
from nexus.core.working_memory import SECOND, is_object_id

_REPLICA: Final = slice(8, 18)
# The clocks of replicas may differ by this much.
_APART_S: Final = 2
_NEVER: Final = "00000000"


@dataclass(frozen=True, slots=True)
class UntilShown:
    """The rows that a build showed: all that were stored before a moment, and these of the later ones.

    Attributes:
        since: the moment, as the seconds of an `_id`.
        ids: the `_id`s of the later ones.
    """

    since: str
    ids: frozenset[str]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Self:
        """A cut-off that includes these rows, and of others those that are older than all of them."""
        ids = [row_id for row in rows if is_object_id(row_id := str(row["_id"]))]
        since = f"{max(int(max(ids)[SECOND], 16) - _APART_S, 0):08x}" if ids else _NEVER
        return cls(since, frozenset(row_id for row_id in ids if row_id[SECOND] >= since))

    def includes(self, row: Row) -> bool:
        """Whether the row is part of the history."""
        row_id = str(row["_id"])
        return not is_object_id(row_id) or row_id[SECOND] < self.since or row_id in self.ids


@dataclass(frozen=True, slots=True)
class UntilStored:
    """The rows that were stored no later than a certain one.

    Attributes:
        row_id: the `_id` of that row.
        moment: its time, which decides between rows that several replicas stored in the same second.
    """

    row_id: str
    moment: datetime | None = None

    @classmethod
    def of(cls, row: Row) -> Self:
        """A cut-off at this row, which it includes."""
        return cls(str(row["_id"]), parse_moment(row.get("timestamp")))

    def includes(self, row: Row) -> bool:
        """Whether the row is part of the history."""
        row_id = str(row["_id"])
        if not (is_object_id(row_id) and is_object_id(self.row_id)):
            return True
        if row_id[SECOND] != self.row_id[SECOND] or row_id[_REPLICA] == self.row_id[_REPLICA]:
            return row_id <= self.row_id
        moment = parse_moment(row.get("timestamp"))
        return moment is None or self.moment is None or moment <= self.moment
