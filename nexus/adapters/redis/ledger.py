"""The request ledger on Redis (contract §1.5): one hash a request, changed by scripts, so that each step is atomic.

The hash `<prefix>nexus:request:<key>` holds `fingerprint`, `attempts`, `asked_ms`, `token` and `lease_until` while a
replica has the request, and, once it is concluded, `topic`, `answer`, `said_ms` and `said_to`.

On pub/sub a script touches the one hash and the outbox. On streams it also writes the stream of the answer and
acknowledges the entry of the request, so on a Redis Cluster their keys share a slot. There the outbox is touched by
commands of its own, a row being put before the answer is published: a script with keys of two kinds would have to wait
while their slot moves to another node.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import structlog
from redis.asyncio import Redis

from nexus.adapters.redis.cluster import ClusterRedis, subscriber_count
from nexus.adapters.redis.errors import repeated
from nexus.adapters.redis.outbox import RedisOutbox
from nexus.adapters.redis.scripts import CLAIM, CONCLUDE_PUBSUB, CONCLUDE_STREAMS, RELEASE, RENEW
from nexus.core.models import Topics
from nexus.core.ports import Acquired, Announced, Answered, Busy, Claim, Conflict, Delivery, OutboxRow

_log = structlog.get_logger(__name__)

_Argument: TypeAlias = str | bytes | int

# An answer is announced again at most this often, however many replicas are asked for it at once.
_ANNOUNCED_AGAIN_MS: Final = 1_000
# How long a request without an answer is known after its lease, so that its attempts are counted.
_KNOWN_MS: Final = 600_000
# How long it is known when a released request was asked for: longer than any deadline.
_ASKED_KNOWN_MS: Final = 120_000


class RedisLedger:
    """`nexus.core.ports.RequestLedger` on Redis, with answers on pub/sub.

    When Redis does not answer, an operation is tried again for `repeated_s` seconds: a restart of Redis fits in.

    Args:
        client: of a server, of the master that Sentinel watches, or of a cluster.
        prefix: goes before every key and channel.
        repeated_s: see above.
        outbox: of the same Redis; by default one of its own.

    Attributes:
        outbox: where `conclude` puts rows.
    """

    _conclude_text = CONCLUDE_PUBSUB

    def __init__(
        self, client: Redis, *, prefix: str = "", repeated_s: float = 5.0, outbox: RedisOutbox | None = None
    ) -> None:
        self.outbox = outbox or RedisOutbox(client, prefix=prefix, repeated_s=repeated_s)
        self._client = client
        self._prefix = prefix
        self._repeated_s = repeated_s
        self._one_server = not isinstance(client, ClusterRedis)
        self._claim = client.register_script(CLAIM)
        self._renew = client.register_script(RENEW)
        self._release = client.register_script(RELEASE)
        self._conclude = client.register_script(self._conclude_text)

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        token = secrets.token_hex(16)
        keys = [self._request(key), *([self.outbox.keys.order] if self._one_server else [])]
        known_ms = lease_ms + _KNOWN_MS
        arguments: list[_Argument] = [token, fingerprint, lease_ms, _ANNOUNCED_AGAIN_MS, known_ms, waited_ms]
        match await repeated(self._claim, keys, arguments, for_s=self._repeated_s):
            case [b"acquired", now_ms, attempts, asked_ms, waiting]:
                outbox_waiting = bool(waiting) if self._one_server else await self.outbox.is_waiting()
                return Acquired(key, fingerprint, token, now_ms, attempts, int(asked_ms), outbox_waiting=outbox_waiting)
            case [b"answered", topic, answer]:
                return Answered(topic.decode(), answer)
            case [b"announced"]:
                return Announced()
            case [b"conflict"]:
                return Conflict()
            case _:
                return Busy()

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
        if outbox and self._one_server:
            outbox_keys, outbox_arguments = self.outbox.put_arguments(outbox)
        elif outbox and not await self.outbox.put(outbox):
            self._tell_full(outbox)
        more_keys, more_arguments = self._publishing(topic, delivery)
        keys = [request, *outbox_keys, *more_keys]
        arguments = [claim.token, claim.fingerprint, answer, keep_ms, topic, *outbox_arguments, *more_arguments]
        received, taken = await repeated(self._conclude, keys, arguments, for_s=self._repeated_s)
        if outbox and not taken:
            self._tell_full(outbox)
        if received < 0:
            return None
        if delivery:
            self._acknowledged(delivery)
        return self._counted(received)

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value unless there is one; returns the one that is kept."""

        async def keep() -> Any:
            return await self._client.set(self._kept(key), value, px=keep_ms, nx=True, get=True)

        first = _kept_value(await repeated(keep, for_s=self._repeated_s))
        return value if first is None else first

    async def kept(self, key: str) -> bytes | None:
        """What is kept."""
        return _kept_value(await repeated(self._client.get, self._kept(key), for_s=self._repeated_s))

    def _publishing(self, topic: str, _delivery: Delivery | None) -> tuple[list[str], list[_Argument]]:
        """The further keys and arguments of the script that concludes."""
        return [], [self._prefix + topic]

    def _counted(self, received: int) -> int:
        return subscriber_count(self._client, received)

    def _acknowledged(self, _delivery: Delivery) -> None:
        """Do nothing: pub/sub has no entries to acknowledge."""

    def _tell_full(self, row: OutboxRow) -> None:
        _log.error("outbox_full", message_id=row.id, size=len(row.content))

    def _request(self, key: str) -> str:
        return f"{self._prefix}nexus:request:{key}"

    def _kept(self, key: str) -> str:
        return f"{self._prefix}nexus:kept:{key}"


def _kept_value(found: Any) -> bytes | None:
    # Release 0.1 kept some values as a reference to an answer, "@" and its key; they last an hour at most.
    return None if found is None or found.startswith(b"@") else bytes(found)


class RedisStreamsLedger(RedisLedger):
    """`nexus.core.ports.RequestLedger` on Redis, with answers on streams.

    Args:
        client, prefix, repeated_s, outbox: as for `RedisLedger`.
        group: the consumer group whose entries are acknowledged.
        reply_keep_ms: how long the stream of one requester (`….<reply_to>`) is kept after its last answer.
        acknowledged: called with each delivery that `conclude` has acknowledged.
    """

    _conclude_text = CONCLUDE_STREAMS

    def __init__(
        self,
        client: Redis,
        *,
        group: str,
        reply_keep_ms: int,
        acknowledged: Callable[[Delivery], None],
        prefix: str = "",
        repeated_s: float = 5.0,
        outbox: RedisOutbox | None = None,
    ) -> None:
        super().__init__(client, prefix=prefix, repeated_s=repeated_s, outbox=outbox)
        self._group = group
        self._reply_keep_ms = reply_keep_ms
        self._on_acknowledged = acknowledged

    def _publishing(self, topic: str, delivery: Delivery | None) -> tuple[list[str], list[_Argument]]:
        topic_of_request, entry = (delivery.topic, delivery.entry) if delivery else (Topics.CONTEXT_BUILD_REQUEST, "")
        keep_reply = self._reply_keep_ms if is_of_one_requester(topic) else 0
        return [self._prefix + topic, self._prefix + topic_of_request], [self._group, entry, keep_reply]

    def _counted(self, received: int) -> int:
        # An entry is there for any reader.
        return received

    def _acknowledged(self, delivery: Delivery) -> None:
        self._on_acknowledged(delivery)


def is_of_one_requester(topic: str) -> bool:
    """Whether it is the stream of one requester's answers (`reply_to`), unread once that requester is gone."""
    return topic.startswith(f"{Topics.CONTEXT_BUILD_RESPONSE}.")
