"""What Redis keeps of an owner, found and removed (contract §13); outbox and dead letters have adapters of their own.

- Keys say whose they are by their last part, or by the answer in them. Keys are looked through by SCAN, in steps.
- An entry of a stream goes when every group of the stream has acknowledged it. Readers without a group, which wait for
  answers, are not waited for.
"""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from redis.asyncio import Redis

from nexus.adapters.redis.client import repeated
from nexus.adapters.redis.cluster import ClusterRedis
from nexus.adapters.redis.stream_subscription import order_of
from nexus.core.erasure import BusKind, owner_mark
from nexus.core.errors import BusRefusedError
from nexus.core.models import ALL_TOPICS, ANSWER_TOPICS
from nexus.core.wire import owner_of

_KEYS_AT_ONCE: Final = 200
# Payloads may have megabytes.
_ENTRIES_AT_ONCE: Final = 20
_MARKED: Final = re.compile(rb"[:-]([0-9a-f]{32})\Z")
_SPECIAL: Final = re.compile(r"([*?\[\]\\^])")
_READ_WHOLE: Final[Mapping[bytes, Sequence[Any]]] = {
    b"zset": ("zrange", 0, -1),
    b"list": ("lrange", 0, -1),
    b"set": ("smembers",),
}
# Names of the keys whose further parts are ids and hashes.
_FAMILY: Final = re.compile(r"nexus:(?:\{outbox\}:)?[a-z-]+")


class RedisErasure:
    """`nexus.core.ports.BusErasure` on Redis; with `streams` topics are streams.

    When Redis does not answer, an operation is tried again for `repeated_s` seconds.
    """

    def __init__(self, client: Redis, *, prefix: str = "", streams: bool, repeated_s: float = 5.0) -> None:
        self._client: Any = client
        self._prefix = prefix
        self._streams = streams
        self._repeated_s = repeated_s

    async def sweep(self, owner_key: str, *, remove: bool) -> AsyncGenerator[Mapping[BusKind, int]]:
        """Look at everything that is kept, and with `remove` remove what is the owner's."""
        mark, (seconds, microseconds) = owner_mark(owner_key).encode(), await self._ask("time")
        now = seconds * 1_000 + microseconds // 1_000
        async with aclosing(self._keys("nexus:request:*")) as pages:
            async for keys in pages:
                found = Counter[BusKind]()
                for key in keys:
                    kind = await self._kind_of_request(key, owner_key, mark, now)
                    await self._count(found, kind, key, remove=remove)
                yield found
        async with aclosing(self._keys("nexus:kept:*")) as pages:
            async for keys in pages:
                found = Counter[BusKind]()
                for key in keys:
                    marked = _MARKED.search(key)
                    kind = "unknown" if marked is None else "beginnings" if marked[1] == mark else None
                    await self._count(found, kind, key, remove=remove)
                yield found
        if self._streams:
            async with aclosing(self._topics()) as topics:
                async for topic in topics:
                    async with aclosing(self._entries(topic)) as pages:
                        async for entries in pages:
                            yield await self._sweep_entries(topic, entries, owner_key, remove=remove)

    async def find_text(self, forms: Sequence[bytes]) -> AsyncGenerator[tuple[str, int]]:
        """By the beginning of their names, how many of a batch of keys hold one of these byte strings."""
        async with aclosing(self._keys("*")) as pages:
            async for keys in pages:
                for key in keys:
                    yield self._family(key, forms), int(await self._holds(key, forms))

    async def _count(self, found: Counter[BusKind], kind: BusKind | None, key: bytes, *, remove: bool) -> None:
        if kind:
            found[kind] += 1
        if remove and kind in {"answers", "beginnings"}:
            await self._ask("delete", key)

    async def _kind_of_request(self, key: bytes, owner_key: str, mark: bytes, now: int) -> BusKind | None:
        marked = _MARKED.search(key)
        if marked and marked[1] != mark:
            return None
        try:
            answer, lease_until = await self._ask("hmget", key, ["answer", "lease_until"])
        except BusRefusedError:
            # Another program's.
            return "unknown"
        if answer is None:
            return "in_hand" if marked and lease_until and float(lease_until) > now else None
        owner = owner_key if marked else owner_of(answer)
        if owner is None:
            return "unknown"
        return "answers" if owner == owner_key else None

    async def _topics(self) -> AsyncGenerator[bytes]:
        """The keys of all topics, and of the answers to single requesters."""
        for topic in sorted(ALL_TOPICS):
            yield f"{self._prefix}{topic}".encode()
        for topic in ANSWER_TOPICS.values():
            async with aclosing(self._keys(f"{topic}.*")) as pages:
                async for keys in pages:
                    for key in keys:
                        yield key

    async def _entries(self, key: bytes) -> AsyncGenerator[list[tuple[bytes, Mapping[bytes, bytes]]]]:
        """The entries of a stream, some at a time; none of a key that is something else."""
        first = "-"
        while True:
            try:
                page = await self._ask("xrange", key, first, "+", _ENTRIES_AT_ONCE)
            except BusRefusedError:
                return
            # Redis leaves out what an entry held that was deleted since.
            yield [(entry, fields or {}) for entry, fields in page]
            if len(page) < _ENTRIES_AT_ONCE:
                return
            first = f"({page[-1][0].decode()}"

    async def _sweep_entries(
        self, key: bytes, entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]], owner_key: str, *, remove: bool
    ) -> Mapping[BusKind, int]:
        found = Counter[BusKind]()
        own = [entry for entry, fields in entries if owner_of(fields.get(b"message", b"")) == owner_key]
        groups = await self._ask("xinfo_groups", key) if own else []
        for entry in own:
            if any([await self._awaits(key, group, entry) for group in groups]):
                found["pending"] += 1
                continue
            found["entries"] += 1
            if remove:
                await self._ask("xdel", key, entry)
        return found

    async def _awaits(self, key: bytes, group: Mapping[str, Any], entry: bytes) -> bool:
        """Whether the group has not read the entry, or not acknowledged it."""
        if order_of(entry) > order_of(group["last-delivered-id"]):
            return True
        return bool(group["pending"] and await self._ask("xpending_range", key, group["name"], entry, entry, 1))

    async def _keys(self, pattern: str) -> AsyncGenerator[list[bytes]]:
        """The keys of the prefix that match, some at a time; one may come twice."""
        match = _SPECIAL.sub(r"\\\1", self._prefix) + pattern
        nodes = await self._ask("masters") if isinstance(self._client, ClusterRedis) else [self._client]
        for node in nodes:
            cursor = None
            while cursor != 0:
                scan = partial(node.scan, cursor or 0, match=match, count=_KEYS_AT_ONCE)
                cursor, keys = await repeated(scan, for_s=self._repeated_s)
                yield keys

    async def _holds(self, key: bytes, forms: Sequence[bytes]) -> bool:
        if _in(key, forms):
            return True
        async with aclosing(self._parts(key)) as parts:
            async for part in parts:
                if _in(part, forms):
                    return True
        return False

    async def _parts(self, key: bytes) -> AsyncGenerator[bytes | None]:
        """All that a key of any type holds."""
        kind = await self._ask("type", key)
        if kind == b"string":
            yield await self._ask("get", key)
        elif kind == b"hash":
            for item in (await self._ask("hgetall", key)).items():
                for part in item:
                    yield part
        elif kind == b"stream":
            async with aclosing(self._entries(key)) as pages:
                async for entries in pages:
                    for part in (part for _, fields in entries for item in fields.items() for part in item):
                        yield part
        elif kind in _READ_WHOLE:
            command, *bounds = _READ_WHOLE[kind]
            for part in await self._ask(command, key, *bounds):
                yield part

    def _family(self, key: bytes, forms: Sequence[bytes]) -> str:
        """The beginning of a key's name, without ids; a topic as a whole, unless it is itself what is looked for."""
        name = key[len(self._prefix.encode()) :].decode("utf-8", "replace")
        if family := _FAMILY.match(name):
            return family[0]
        return "a key's name" if _in(key, forms) else name

    async def _ask(self, command: str, *arguments: Any) -> Any:
        return await repeated(partial(getattr(self._client, command), *arguments), for_s=self._repeated_s)


def _in(value: bytes | None, forms: Sequence[bytes]) -> bool:
    return value is not None and any(form in value for form in forms)
