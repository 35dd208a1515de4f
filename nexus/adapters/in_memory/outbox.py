"""The outbox within one process (contract §1.5, mode `memory`)."""

from collections.abc import Sequence
from typing import Final

from nexus.core.ports import OutboxRow

_MOST_ROWS: Final = 50_000
_MOST_BYTES: Final = 64 << 20


class MemoryOutbox:
    """`nexus.core.ports.Outbox` within one process."""

    def __init__(self, *, most_rows: int = _MOST_ROWS, most_bytes: int = _MOST_BYTES) -> None:
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._bytes = 0
        # In the order in which they came.
        self._rows: dict[tuple[str, str], OutboxRow] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether there are rows."""
        return bool(self._rows)

    def put(self, row: OutboxRow) -> bool:
        """Put a row. False when the outbox is full."""
        if (row.owner_key, row.id) in self._rows:
            return True
        if len(self._rows) >= self._most_rows or self._bytes + len(row.content) > self._most_bytes:
            return False
        self._rows[row.owner_key, row.id] = row
        self._bytes += len(row.content)
        return True

    async def of_owner(self, owner_key: str) -> list[OutboxRow]:
        """The rows of one owner."""
        return [row for row in self._rows.values() if row.owner_key == owner_key]

    async def oldest(self, limit: int) -> list[OutboxRow]:
        """Up to `limit` rows, those that have waited longest first."""
        return list(self._rows.values())[:limit]

    async def remove(self, rows: Sequence[OutboxRow]) -> None:
        """Take rows out."""
        for row in rows:
            removed = self._rows.pop((row.owner_key, row.id), None)
            self._bytes -= len(removed.content) if removed else 0
