"""The journal within one process (CONTRACT §1.5, mode `memory`)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from nexus.core.ports import JournalRow, Look, Moved, Standing, StoreRead

# Versions are forgotten, all at once, when so many owners have one.
_MOST_OWNERS: Final = 10_000


@dataclass(slots=True)
class _Waiting:
    content: bytes
    since: float


@dataclass(slots=True)
class _Owner:
    version: int
    moved_by: str = ""
    moved: Moved = field(default_factory=Moved)
    rows: dict[str, _Waiting] = field(default_factory=dict)


class MemoryJournal:
    """`nexus.core.ports.Journal` within one process.

    Args:
        clock: seconds that never run back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = 0
        self._owners: dict[str, _Owner] = {}

    def look(self, look: Look, kept: bytes | None) -> Standing:
        """How things are with an owner."""
        owner = self._owner(look.owner_key)
        same = str(owner.version) == look.version
        rows = None if same else tuple(waiting.content for waiting in owner.rows.values())
        return Standing(str(owner.version), self._now_us() - owner.version, rows, kept, len(owner.rows))

    def is_current(self, owner_key: str, read: StoreRead) -> bool:
        """Whether what was read has all that was recorded of the owner by now."""
        since, owner = int(read.began_at * 1_000_000), self._owners.get(owner_key)
        if self._now_us() - since >= read.lasts_us:
            return False
        return owner is None or (owner.version < since and owner.rows.keys() <= {*read.journaled})

    def knows(self, owner_key: str) -> bool:
        """Whether the owner has a version."""
        return owner_key in self._owners

    @property
    def epoch(self) -> int:
        """What is in this process never goes back."""
        return 0

    async def standing(self, look: Look) -> Standing:
        """How things are with an owner now."""
        return self.look(look, None)

    def put(self, row: JournalRow) -> Moved:
        """Put a row into the journal."""
        owner = self._owner(row.owner_key)
        owner.rows[row.id] = _Waiting(row.content, self._clock())
        return self._move(owner)

    async def moved(self, owner_key: str, row_id: str) -> Moved:
        """Have the version move because of a row that is in the store now."""
        owner = self._owner(owner_key)
        if owner.moved_by != row_id:
            owner.moved_by, owner.moved = row_id, self._move(owner)
        return owner.moved

    async def written(self, rows: Sequence[JournalRow]) -> None:
        """Take rows out that the store has."""
        for row in rows:
            self._owner(row.owner_key).rows.pop(row.id, None)

    async def unwritten(self, older_than_ms: int, limit: int) -> list[bytes]:
        """Rows that have been in the journal for so long."""
        until = self._clock() - older_than_ms / 1_000
        waiting = [row for owner in self._owners.values() for row in owner.rows.values() if row.since <= until]
        return [row.content for row in sorted(waiting, key=lambda row: row.since)[:limit]]

    def _owner(self, owner_key: str) -> _Owner:
        if owner_key not in self._owners:
            if len(self._owners) >= _MOST_OWNERS:
                self._owners = {key: owner for key, owner in self._owners.items() if owner.rows}
            self._owners[owner_key] = _Owner(self._next())
        return self._owners[owner_key]

    def _move(self, owner: _Owner) -> Moved:
        before, owner.version = owner.version, self._next()
        return Moved(str(before), str(owner.version))

    def _next(self) -> int:
        self._last = max(self._now_us(), self._last + 1)
        return self._last

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)
