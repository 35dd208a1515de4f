"""What is left of a session after a compaction, as few `_id`s as that can be said with (CONTRACT §7). Pure."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final

from nexus.core.ports import Row
from nexus.core.working_memory import SECOND, Tail, is_object_id
from nexus.services.context.agents import is_internal
from nexus.services.memory.progress import stored_at

# For clocks that differ, and for what is being written meanwhile. It may be longer where that costs no more than so
# many `_id`s, which have to be read with each context.
_SLACK_S: Final = 120
_LONGEST_SLACK_S: Final = 3_600
_FEW: Final = 200


def tail_after(tail: Tail, rows: Iterable[Row], covered: Iterable[Row], now: datetime) -> Tail:
    """What is left when these are covered.

    Args:
        tail: what was left before.
        rows: of the tail, all that were stored before `now`.
        covered: some of them.
        now: the time, or an earlier one.
    """
    taken = {row["_id"] for row in covered}
    left = [row for row in rows if row.get("_id") not in taken and not is_internal(row.get("metadata"))]
    edge = min(stored for stored in (now, *map(stored_at, left)) if stored)
    edge_s = int(edge.timestamp())
    # Of those that would have to be listed, the newest that are too many.
    listed = _seconds({*taken, *tail.without})
    cheap = listed[-_FEW - 1] + 1 if len(listed) > _FEW else 0
    since = min(max(edge_s - _LONGEST_SLACK_S, cheap), edge_s - _SLACK_S)
    # What was stored before the earlier boundary is covered and no longer listed.
    return tail.after(taken, f"{max(since, int(tail.since, 16), 1):08x}")


def edge_for(tail: Tail, most: int) -> datetime:
    """When all that was stored before is covered, the tail lists no more than so many of those that it lists now.

    Args:
        tail: one that lists as many at least.
        most: 1 at least.
    """
    return datetime.fromtimestamp(_seconds(tail.without)[-most] + _SLACK_S + 1, UTC)


def is_lost_later(row_id: str) -> bool:
    """Whether no tail but that of a session without compactions has a row with this `_id`."""
    return not is_object_id(row_id) or _second(row_id) == 0


def _seconds(row_ids: Collection[str]) -> list[int]:
    return sorted(_second(row_id) for row_id in row_ids if is_object_id(row_id))


def _second(row_id: str) -> int:
    return int(row_id[SECOND], 16)
