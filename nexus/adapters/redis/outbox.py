"""The outbox on Redis: rows that the document store has not taken yet.

`<prefix>nexus:{outbox}:order` is a sorted set of all rows by the millisecond in which they came, `…:size` their bytes,
and `…:rows:<owner>` a hash of one owner's rows by id, where `<owner>` is a hash of the owner's key. On a Redis Cluster
all of them share a slot.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis

from nexus.adapters.redis.errors import repeated
from nexus.adapters.redis.scripts import OUTBOX_PUT, OUTBOX_READ, OUTBOX_REMOVE
from nexus.core.ports import OutboxRow

# Of all owners. A row is some kilobytes.
MOST_ROWS: Final = 50_000
MOST_BYTES: Final = 64 << 20
# A script keeps all other clients waiting.
_AT_ONCE: Final = 500


class OutboxKeys:
    """The names of what belongs to the outbox."""

    def __init__(self, prefix: str) -> None:
        self._base = f"{prefix}nexus:{{outbox}}"
        self.order = f"{self._base}:order"
        self.size = f"{self._base}:size"

    def rows(self, owner_key: str) -> str:
        """The rows of one owner, whose key may be long and hold anything."""
        return f"{self._base}:rows:{hashlib.sha256(owner_key.encode()).hexdigest()[:32]}"


def member_of(row: OutboxRow) -> str:
    """The member that stands for a row in the order."""
    return json.dumps([row.owner_key, row.id])


class RedisOutbox:
    """`nexus.core.ports.Outbox` on Redis.

    When Redis does not answer, an operation is tried again for `repeated_s` seconds.
    """

    def __init__(
        self,
        client: Redis,
        *,
        prefix: str = "",
        repeated_s: float = 5.0,
        most_rows: int = MOST_ROWS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.keys = OutboxKeys(prefix)
        self._client = client
        self._repeated_s = repeated_s
        self._limits = (most_rows, most_bytes)
        self._put = client.register_script(OUTBOX_PUT)
        self._read = client.register_script(OUTBOX_READ)
        self._remove = client.register_script(OUTBOX_REMOVE)

    def put_arguments(self, row: OutboxRow) -> tuple[list[str], list[str | bytes | int]]:
        """Keys and arguments with which a script puts a row."""
        keys = [self.keys.order, self.keys.size, self.keys.rows(row.owner_key)]
        return keys, [member_of(row), row.id, row.content, *self._limits]

    async def put(self, row: OutboxRow) -> bool:
        """Put a row in a step of its own. False when the outbox is full."""
        return bool(await repeated(self._put, *self.put_arguments(row), for_s=self._repeated_s))

    async def is_waiting(self) -> bool:
        """Whether there are rows."""
        return bool(await repeated(self._client.exists, self.keys.order, for_s=self._repeated_s))

    async def of_owner(self, owner_key: str) -> list[OutboxRow]:
        """The rows of one owner, in no order."""
        found: Any = await repeated(self._client.hgetall, self.keys.rows(owner_key), for_s=self._repeated_s)
        return [OutboxRow(owner_key, row_id.decode(), content) for row_id, content in found.items()]

    async def oldest(self, limit: int) -> list[OutboxRow]:
        """Up to `limit` rows, those that have waited longest first."""
        members: Any = await repeated(self._client.zrange, self.keys.order, 0, limit - 1, for_s=self._repeated_s)
        rows = [OutboxRow(owner_key, row_id, b"") for owner_key, row_id in map(json.loads, members)]
        if not rows:
            return []
        keys, ids = [self.keys.rows(row.owner_key) for row in rows], [row.id for row in rows]
        found: Any = await repeated(self._read, keys, ids, for_s=self._repeated_s)
        # A row without content was evicted, or removed a moment ago.
        await self.remove([row for row, content in zip(rows, found, strict=True) if content is None])
        return [
            OutboxRow(row.owner_key, row.id, content)
            for row, content in zip(rows, found, strict=True)
            if content is not None
        ]

    async def remove(self, rows: Sequence[OutboxRow]) -> None:
        """Take rows out."""
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            keys = [self.keys.order, self.keys.size, *(self.keys.rows(row.owner_key) for row in some)]
            arguments = [part for row in some for part in (member_of(row), row.id)]
            await repeated(self._remove, keys, arguments, for_s=self._repeated_s)
