"""Up to which row the history of a run goes: that of its first build, whatever is recorded later (CONTRACT §4.6). Pure.

An `_id` that MongoDB made says the second in which its row was stored, by the clock of the replica that stored it, and
then which replica that was. Of rows of one second, those of one replica are in order, and those of several are not.
Ids that other programs made up say nothing, and only older rows have them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from nexus.core.ports import Row
from nexus.core.working_memory import OBJECT_ID
from nexus.services.context.clock import parse_moment

_SECOND: Final = slice(0, 8)
_REPLICA: Final = slice(8, 18)
# By so much the clocks of replicas may differ.
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
        """What says of each row, however often it is read, whether it is one of these or older than all of them."""
        ids = [str(row["_id"]) for row in rows if OBJECT_ID.fullmatch(str(row["_id"]))]
        since = f"{max(int(max(ids)[_SECOND], 16) - _APART_S, 0):08x}" if ids else _NEVER
        return cls(since, frozenset(row_id for row_id in ids if row_id[_SECOND] >= since))

    def includes(self, row: Row) -> bool:
        """Whether the row is part of the history."""
        row_id = str(row["_id"])
        return not OBJECT_ID.fullmatch(row_id) or row_id[_SECOND] < self.since or row_id in self.ids


@dataclass(frozen=True, slots=True)
class UntilStored:
    """The rows that were stored no later than a certain one.

    Attributes:
        row_id: its `_id`.
        moment: its time, which decides between rows that several replicas stored in its second.
    """

    row_id: str
    moment: datetime | None = None

    @classmethod
    def of(cls, row: Row) -> Self:
        """Up to this row."""
        return cls(str(row["_id"]), parse_moment(row.get("timestamp")))

    def includes(self, row: Row) -> bool:
        """Whether the row is part of the history."""
        row_id = str(row["_id"])
        # Of an earlier second is nearly every row, and such an `_id` is one of the past whatever its form.
        if row_id[_SECOND] < self.row_id[_SECOND]:
            return True
        if not (OBJECT_ID.fullmatch(row_id) and OBJECT_ID.fullmatch(self.row_id)):
            return True
        if row_id[_SECOND] != self.row_id[_SECOND] or row_id[_REPLICA] == self.row_id[_REPLICA]:
            return row_id <= self.row_id
        moment = parse_moment(row.get("timestamp"))
        return moment is None or self.moment is None or moment <= self.moment
