"""Keeping the streams of a prefix short, and seeing how much waits in them.

An entry's age is that of its id, which is the time at which Redis took it: unless somebody chose the id. After one that
lies in the future Redis gives all others ids after it, none of which ever seems old. The end of such a stream is
remembered, and once it has been known for long enough, what lies before it is old.
"""

from dataclasses import dataclass
from typing import Any, Final

import anyio
import structlog
from redis.asyncio import Redis

from nexus.adapters.redis_group_scripts import TRIM

_log = structlog.get_logger(__name__)

# A consumer with nothing pending that has not been heard of for so long is gone.
_GONE_MS: Final = 600_000
_BEGINNING: Final = b"0-0"


@dataclass(frozen=True, slots=True)
class _End:
    """Where a stream ended at a moment by this process's own clock."""

    entry: bytes
    seen_at: float


class Upkeep:
    """Of the streams that a group reads, and of others."""

    def __init__(self, client: Redis, prefix: str, group: str, keep_ms: int) -> None:
        self._client = client
        self._prefix = prefix
        self._group = group
        self._keep_ms = keep_ms
        self._trim = client.register_script(TRIM)
        self._ends: dict[str, _End] = {}

    async def trim(self, topic: str) -> None:
        """Shorten the stream of a topic by what is old and every group has done with; forget consumers that are gone.

        Raises:
            RedisError, OSError: it may or may not have been done.
        """
        end = self._ends.get(topic)
        now = anyio.current_time()
        is_old = end is not None and now - end.seen_at >= self._keep_ms / 1_000
        old = end.entry if end and is_old else _BEGINNING
        arguments: list[bytes | str | int] = [self._group, self._keep_ms, _GONE_MS, old]
        in_the_future = await self._trim(keys=[self._prefix + topic], args=arguments)
        if not in_the_future:
            self._ends.pop(topic, None)
        elif end is None or is_old:
            if end is None:
                _log.warning("entry_from_the_future", topic=topic, entry=in_the_future.decode())
            self._ends[topic] = _End(in_the_future, now)

    async def backlog(self, topic: str) -> int:
        """How many entries of a topic the group has not been given yet.

        Raises:
            RedisError, OSError: Redis did not say.
        """
        groups: list[dict[str, Any]] = await self._client.xinfo_groups(self._prefix + topic)
        for group in groups:
            if group["name"].decode() == self._group:
                return int(group["lag"] or 0)
        return 0
