"""The request ledger and its outbox on Redis (contract §1.5), changed by scripts, so that each step is atomic.

The hash `<prefix>nexus:request:<key>` holds `fingerprint`, `attempts`, `asked_ms`, `token` and `lease_until` while a
replica has the request, and, once it is concluded, `topic`, `answer`, `said_ms` and `said_to`.

The outbox: `<prefix>nexus:{outbox}:order` is a sorted set of all rows by the millisecond in which they came, `…:size`
their bytes, and `…:rows:<owner>` a hash of one owner's rows by id, where `<owner>` is a hash of the owner's key.

On a Redis Cluster the keys of the outbox share one slot and, on streams, those of a request another. There a row is
put into the outbox by a command of its own before the answer is published.
"""

import json
import secrets
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from redis.asyncio import Redis

from nexus.adapters.redis.client import repeated, subscriber_count
from nexus.adapters.redis.cluster import ClusterRedis
from nexus.adapters.redis.scripts import (
    CLAIM,
    CONCLUDE_PUBSUB,
    CONCLUDE_STREAMS,
    GROUP,
    OUTBOX_PUT,
    OUTBOX_READ,
    OUTBOX_REMOVE,
    RELEASE,
    RENEW,
    Script,
)
from nexus.core.erasure import owner_mark
from nexus.core.errors import OutboxFullError
from nexus.core.models import ANSWER_TOPICS, Topics
from nexus.core.ports import Acquired, Announced, Answered, Busy, Claim, Conflict, Delivery, OutboxRow

_Argument: TypeAlias = str | bytes | int

_SEAL_BYTES: Final = 9
# An answer is announced again at most this often, however many replicas are asked for it at once.
_ANNOUNCED_AGAIN_MS: Final = 1_000
# How long a request without an answer is known after its lease, so that its attempts are counted.
_KNOWN_MS: Final = 600_000
# How long it is known when a released request was asked for: longer than any deadline.
_ASKED_KNOWN_MS: Final = 120_000
# Of the outbox, for all owners. A row is some kilobytes.
MOST_ROWS: Final = 50_000
MOST_BYTES: Final = 64 << 20
# A script keeps all other clients waiting.
_AT_ONCE: Final = 500


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
        self._base = f"{prefix}nexus:{{outbox}}"
        self.order_key = f"{self._base}:order"
        self._size_key = f"{self._base}:size"
        self._client = client
        self._repeated_s = repeated_s
        self._limits = (most_rows, most_bytes)
        self._put = Script(client, OUTBOX_PUT)
        self._read = Script(client, OUTBOX_READ)
        self._remove = Script(client, OUTBOX_REMOVE)

    def rows_key(self, owner_key: str) -> str:
        """The key of one owner's rows; an owner's own key may be long and hold anything."""
        return f"{self._base}:rows:{owner_mark(owner_key)}"

    def put_arguments(self, row: OutboxRow) -> tuple[list[str], list[str | bytes | int]]:
        """Keys and arguments with which a script puts a row."""
        keys = [self.order_key, self._size_key, self.rows_key(row.owner_key)]
        return keys, [_member(row), row.id, row.content, *self._limits]

    async def put(self, row: OutboxRow) -> bool:
        """Put a row in a step of its own. False when the outbox is full."""
        return bool(await repeated(self._put, *self.put_arguments(row), for_s=self._repeated_s))

    async def of_owner(self, owner_key: str) -> list[OutboxRow]:
        """The rows of one owner, in no order."""

        async def read() -> list[OutboxRow]:
            found: Any = await self._client.hgetall(self.rows_key(owner_key))
            return [OutboxRow(owner_key, row_id.decode(), content) for row_id, content in found.items()]

        return await repeated(read, for_s=self._repeated_s)

    async def oldest(self, limit: int, offset: int = 0) -> list[OutboxRow]:
        """Up to `limit` rows after the first `offset`, those that have waited longest first."""

        async def read() -> list[OutboxRow]:
            members: Any = await self._client.zrange(self.order_key, offset, offset + limit - 1)
            names = [*map(json.loads, members)]
            if not names:
                return []
            keys, ids = [self.rows_key(owner_key) for owner_key, _ in names], [row_id for _, row_id in names]
            found: Any = await self._read(keys, ids)
            return [OutboxRow(owner, row_id, held or b"") for (owner, row_id), held in zip(names, found, strict=True)]

        rows = await repeated(read, for_s=self._repeated_s)
        # A row without content was evicted, or removed a moment ago.
        await self.remove([row for row in rows if not row.content])
        return [row for row in rows if row.content]

    async def count(self) -> int:
        """How many rows there are."""
        return int(await repeated(self._client.zcard, self.order_key, for_s=self._repeated_s))

    async def remove(self, rows: Sequence[OutboxRow]) -> None:
        """Take rows out."""
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            keys = [self.order_key, self._size_key, *(self.rows_key(row.owner_key) for row in some)]
            arguments = [part for row in some for part in (_member(row), row.id)]
            await repeated(self._remove, keys, arguments, for_s=self._repeated_s)


def _member(row: OutboxRow) -> str:
    """A row's member of the order."""
    return json.dumps([row.owner_key, row.id])


class RedisLedger:
    """`nexus.core.ports.RequestLedger` on Redis, with answers on pub/sub, or on streams where `acknowledged` is given.

    When Redis does not answer, an operation is tried again for `repeated_s` seconds: a restart of Redis fits in. On
    streams `conclude` acknowledges the group's entry and calls `acknowledged` with its delivery; the stream of one
    requester (`….<reply_to>`) is kept for `reply_keep_ms` after its last answer.
    """

    def __init__(
        self,
        client: Redis,
        *,
        prefix: str = "",
        repeated_s: float = 5.0,
        acknowledged: Callable[[Delivery], None] | None = None,
        reply_keep_ms: int = 600_000,
    ) -> None:
        self.outbox = RedisOutbox(client, prefix=prefix, repeated_s=repeated_s)
        self._client = client
        self._prefix = prefix
        self._repeated_s = repeated_s
        self._acknowledged = acknowledged
        self._reply_keep_ms = reply_keep_ms
        self._one_server = not isinstance(client, ClusterRedis)
        self._claim = Script(client, CLAIM)
        self._renew = Script(client, RENEW)
        self._release = Script(client, RELEASE)
        self._conclude = Script(client, CONCLUDE_STREAMS if acknowledged else CONCLUDE_PUBSUB)

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        token = secrets.token_hex(16)
        keys = [self._request(key), *([self.outbox.order_key] if self._one_server else [])]
        known_ms = lease_ms + _KNOWN_MS
        arguments: list[_Argument] = [token, fingerprint, lease_ms, _ANNOUNCED_AGAIN_MS, known_ms, waited_ms]

        async def ask() -> Claim:
            match await self._claim(keys, arguments):
                case [b"acquired", now_ms, attempts, asked_ms, waiting]:
                    outbox_waiting = bool(waiting if self._one_server else await self.outbox.count())
                    return Acquired(
                        key, fingerprint, token, now_ms, attempts, int(asked_ms), outbox_waiting=outbox_waiting
                    )
                case [b"answered", topic, answer]:
                    return Answered(topic.decode(), answer)
                case [b"announced"]:
                    return Announced()
                case [b"conflict"]:
                    return Conflict()
                case _:
                    return Busy()

        return await repeated(ask, for_s=self._repeated_s)

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold a request for longer."""
        arguments: list[_Argument] = [claim.token, lease_ms, lease_ms + _KNOWN_MS]
        return bool(await repeated(self._renew, [self._request(claim.key)], arguments, for_s=self._repeated_s))

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        arguments: list[_Argument] = [claim.token, _ASKED_KNOWN_MS]
        await repeated(self._release, [self._request(claim.key)], arguments, for_s=self._repeated_s)

    async def conclude(  # noqa: PLR0917  # the port's arguments
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | None = None,
    ) -> int | None:
        """Keep the answer, put the row into the outbox, publish, and acknowledge the delivery, in one step."""
        request = self._request(claim.key)
        outbox_keys: list[str] = [request] * 3
        outbox_arguments: list[_Argument] = [""] * 5
        taken = True
        if outbox and self._one_server:
            outbox_keys, outbox_arguments = self.outbox.put_arguments(outbox)
        elif outbox:
            taken = await self.outbox.put(outbox)
        more_keys, more_arguments = self._publishing(topic, delivery)
        keys = [request, *outbox_keys, *more_keys]
        arguments = [claim.token, claim.fingerprint, answer, keep_ms, topic, *outbox_arguments, *more_arguments]

        async def put() -> tuple[int, bool]:
            counted, kept = await self._conclude(keys, arguments)
            return int(counted), bool(kept)

        received, taken_too = await repeated(put, for_s=self._repeated_s)
        if received < 0:
            return None
        if self._acknowledged and delivery:
            self._acknowledged(delivery)
        # An entry of a stream is there for any reader.
        receivers = received if self._acknowledged else subscriber_count(self._client, received)
        if not (taken and taken_too):
            raise OutboxFullError(receivers)
        return receivers

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value unless there is one; returns the one that is kept."""

        async def keep() -> bytes | None:
            return _kept_value(await self._client.set(self._kept(key), _sealed(value), px=keep_ms, nx=True, get=True))

        first = await repeated(keep, for_s=self._repeated_s)
        return value if first is None else first

    async def kept(self, key: str) -> bytes | None:
        """What is kept."""

        async def read() -> bytes | None:
            return _kept_value(await self._client.get(self._kept(key)))

        return await repeated(read, for_s=self._repeated_s)

    def _publishing(self, topic: str, delivery: Delivery | None) -> tuple[list[str], list[_Argument]]:
        """The further keys and arguments of the script that concludes."""
        if self._acknowledged is None:
            return [], [self._prefix + topic]
        topic_of_request, entry = (delivery.topic, delivery.entry) if delivery else (Topics.CONTEXT_BUILD_REQUEST, "")
        keep_reply = self._reply_keep_ms if is_of_one_requester(topic) else 0
        return [self._prefix + topic, self._prefix + topic_of_request], [GROUP, entry, keep_reply]

    def _request(self, key: str) -> str:
        return f"{self._prefix}nexus:request:{key}"

    def _kept(self, key: str) -> str:
        return f"{self._prefix}nexus:kept:{key}"


def _sealed(value: bytes) -> bytes:
    """The value with a checksum, so that one that was spoilt on its way is known: it would be taken for another's."""
    return b"#%08x%b" % (zlib.crc32(value), value)


def _kept_value(found: Any) -> bytes | None:
    """The value in a reply; ValueError, after which it is asked for again, where it is not as it was kept."""
    if found is None:
        return None
    value = bytes(found[_SEAL_BYTES:])
    if found != _sealed(value):
        raise ValueError("a spoilt reply: not what was kept")
    return value


def is_of_one_requester(topic: str) -> bool:
    """Whether it is the stream of one requester's answers (`reply_to`), unread once that requester is gone."""
    return any(topic.startswith(f"{answers}.") for answers in ANSWER_TOPICS.values())
