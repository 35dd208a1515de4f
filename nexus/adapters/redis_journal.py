"""The journal on Redis, and the versions of owners (CONTRACT §1.5, §2).

`nexus:version:<owner>` is the microsecond of its last move, `nexus:moved:<owner>` the row that moved it last without
having been in the journal, and `nexus:journal:<owner>` a hash of rows by run and id, where `<owner>` is a hash of the
owner's key; `nexus:unwritten` is a sorted set of the rows in all journals by the millisecond in which they came. A
version that nobody asks for is forgotten after a while, and rows are not.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from nexus.adapters.redis_ledger_scripts import MOVED, STANDING, UNWRITTEN, WRITTEN
from nexus.adapters.redis_multiplexed import Argument
from nexus.adapters.redis_pipeline import Pipelined
from nexus.adapters.redis_scripts import Repeated, Runner
from nexus.core.ports import JournalRow, Look, Moved, Standing

# For how long the version of an owner is known of whom nothing is heard.
VERSION_LASTS_MS: Final = 3_600_000


class JournalKeys:
    """The names of what belongs to an owner."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.unwritten = f"{prefix}nexus:unwritten"

    def version(self, owner: str) -> str:
        """Of the owner's version."""
        return f"{self._prefix}nexus:version:{owner}"

    def last(self, owner: str) -> str:
        """Of what moved it last that was not journaled."""
        return f"{self._prefix}nexus:moved:{owner}"

    def journal(self, owner: str) -> str:
        """Of the owner's rows."""
        return f"{self._prefix}nexus:journal:{owner}"

    def kept(self, key: str) -> str:
        """Of what the ledger keeps."""
        return f"{self._prefix}nexus:kept:{key}"

    def looked_at(self, look: Look) -> list[str]:
        """The keys of a script that tells how things are with an owner; see `looking` and `standing_of`."""
        owner = short(look.owner_key)
        return [self.version(owner), self.journal(owner), self.kept(look.kept)]


def looking(look: Look) -> list[Argument]:
    """The arguments of such a script."""
    return [look.version, VERSION_LASTS_MS, "1" if look.kept else ""]


@lru_cache(maxsize=1_024)
def short(owner_key: str) -> str:
    """What stands for an owner in keys: a key may be long, and hold anything."""
    return hashlib.sha256(owner_key.encode()).hexdigest()[:32]


def standing_of(version: bytes, quiet_us: int, kept: bytes | None, rows: list[bytes] | None, waiting: int) -> Standing:
    """What such a script replies."""
    return Standing(version.decode(), quiet_us, None if rows is None else tuple(rows), kept, waiting)


class RedisJournal:
    """`nexus.core.ports.Journal` on Redis; not on a cluster, where an owner and a request need not share a slot."""

    def __init__(self, runner: Runner, *, prefix: str = "", repeated_s: float = 5.0) -> None:
        self._runner = runner
        self._redis = Repeated(runner, repeated_s)
        self._keys = JournalKeys(prefix)

    @property
    def epoch(self) -> int:
        """Grows whenever a version that was told may be one that Redis knows no more."""
        return self._runner.opened if isinstance(self._runner, Pipelined) else 0

    async def standing(self, look: Look) -> Standing:
        """How things are with an owner now."""
        return standing_of(*await self._redis.run(STANDING, self._keys.looked_at(look), looking(look)))

    async def moved(self, owner_key: str, row_id: str) -> Moved:
        """Have the version move because of a row that is in the store now."""
        owner = short(owner_key)
        keys = [self._keys.version(owner), self._keys.last(owner)]
        before, after = await self._redis.run(MOVED, keys, [row_id, VERSION_LASTS_MS])
        return Moved(before.decode(), after.decode())

    async def written(self, rows: Sequence[JournalRow]) -> None:
        """Take rows out that the store has."""
        owners = [short(row.owner_key) for row in rows]
        keys = [self._keys.unwritten, *map(self._keys.journal, owners)]
        arguments = [part for owner, row in zip(owners, rows, strict=True) for part in (f"{owner}:{row.id}", row.id)]
        await self._redis.run(WRITTEN, keys, arguments)

    async def unwritten(self, older_than_ms: int, limit: int) -> list[bytes]:
        """Rows that have been in the journal for so long."""
        arguments: list[Argument] = [older_than_ms, limit, self._keys.journal("")]
        rows: list[bytes] = await self._redis.run(UNWRITTEN, [self._keys.unwritten], arguments)
        return rows
