"""The request ledger on Redis (CONTRACT §1.5): one hash a request, changed by scripts, so that each step is atomic.

A hash is `fingerprint`, `attempts`, `asked_ms`, `token` and `lease_until` while somebody is at the request, and, when
it is finished, `topic`, `answer`, `said_ms` and `said_to`. Times are those of Redis.

Two ways of publishing an answer: on pub/sub, where a script touches the one hash; on streams, where the stream of the
answer and that of the request are written in the same step, so that on a Redis Cluster the three share a slot.

What else is done in the same step belongs to an owner (see `redis_journal`), and has a slot of its own on a cluster. So
there it is not done.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final, overload

from redis.asyncio import Redis

from nexus.adapters.redis.cluster import ClusterRedis
from nexus.adapters.redis.ledger import RedisLedger as PlainLedger
from nexus.adapters.redis.ledger import RedisStreamsLedger as PlainStreamsLedger
from nexus.adapters.redis.ledger import is_of_one_requester
from nexus.adapters.redis_clock import Asked, RedisTime
from nexus.adapters.redis_journal import VERSION_LASTS_MS, JournalKeys, looking, short, standing_of
from nexus.adapters.redis_ledger_scripts import (
    ANSWER_PUBSUB,
    ANSWER_STREAMS,
    BEGIN,
    FINISH_PUBSUB,
    FINISH_STREAMS,
)
from nexus.adapters.redis_multiplexed import Argument
from nexus.adapters.redis_pipeline import Pipelined
from nexus.adapters.redis_scripts import OnClient, Repeated, Runner
from nexus.core.ports import (
    MOST_JOURNALED,
    THE_ANSWER,
    Acquired,
    Announced,
    Answered,
    Answering,
    Asking,
    Busy,
    Claim,
    Concluded,
    Conflict,
    Delivery,
    Ending,
    KeptBefore,
    Look,
    Moved,
    OutboxRow,
)
from nexus.core.topics import Topics

# An answer is announced again at most this often, however many replicas are asked for it at once.
_SAID_AGAIN_MS: Final = 1_000
# How long a request without an answer is known after its lease, so that its attempts are counted.
_KNOWN_MS: Final = 600_000
# Before the name of the key that an answer is kept under as such. Nothing else that is kept begins so.
_POINTER: Final = b"@"
# What stands in the arguments for what was read, where a version is asked for.
_BY_VERSION: Final[tuple[Argument, ...]] = ("", 0, 0)
# What a script says instead of how many heard.
_KEPT_BEFORE: Final = -2


class RedisLedger:
    """`nexus.core.ports.RequestLedger` on Redis, with answers on pub/sub.

    When Redis does not answer, an operation is tried again for `repeated_s` seconds: a restart of Redis fits in.

    Args:
        client: of a server, of the master that Sentinel watches, or of a cluster.
        prefix: goes before every key and channel.
        repeated_s: see above.
        runner: what runs scripts on that; the client's own connections where none is given.
    """

    def __init__(
        self, client: Redis, *, prefix: str = "", repeated_s: float = 5.0, runner: Runner | None = None
    ) -> None:
        self._plain = self._make_plain(client, prefix, repeated_s)
        self.outbox = self._plain.outbox
        self._redis = Repeated(runner or OnClient(client), repeated_s)
        self._time = RedisTime(runner if isinstance(runner, Pipelined) else None)
        self._prefix = prefix
        self._keys = JournalKeys(prefix)
        # Keys of an owner and of a request are in different slots, and a node counts those who hear it alone.
        self._one_server = not isinstance(client, ClusterRedis)
        self._begin = BEGIN
        self._finish = FINISH_PUBSUB
        self._answer = ANSWER_PUBSUB

    def _make_plain(self, client: Redis, prefix: str, repeated_s: float) -> PlainLedger:
        return PlainLedger(client, prefix=prefix, repeated_s=repeated_s)

    async def claim(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        return await self._plain.claim(key, fingerprint, lease_ms, waited_ms)

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold a request for longer."""
        return await self._plain.renew(claim, lease_ms)

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        await self._plain.release(claim)

    async def begin(
        self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0, look: Look | None = None
    ) -> Claim:
        """Ask for a request."""
        asking = Asking(key, fingerprint, lease_ms, waited_ms, look)
        token = secrets.token_hex(16)
        keys: list[Argument] = [self._request(key)]
        arguments = _asked(asking, token)
        if look and self._one_server:
            keys += self._keys.looked_at(look)
            arguments += looking(look)
        asked = self._time.asked()
        return self._heard(await self._redis.run(self._begin, keys, arguments), asked, asking, token)

    async def finish(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None = None
    ) -> int | None:
        """Keep the answer, publish it, and acknowledge the request's entry where there is one, in one step."""
        done = await self.conclude(claim, topic, answer, keep_ms, delivery, Ending())
        return done.heard if isinstance(done, Concluded) else None

    @overload
    async def conclude(
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | None = None,
    ) -> int | None: ...

    @overload
    async def conclude(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None, outbox: Ending
    ) -> Concluded | KeptBefore | None: ...

    async def conclude(  # noqa: PLR0917  # of the port
        self,
        claim: Acquired,
        topic: str,
        answer: bytes,
        keep_ms: int,
        delivery: Delivery | None = None,
        outbox: OutboxRow | Ending | None = None,
    ) -> int | Concluded | KeptBefore | None:
        """`finish`, and in the same step what `ending` says."""
        if not isinstance(outbox, Ending):
            return await self._plain.conclude(claim, topic, answer, keep_ms, delivery, outbox)
        keys, arguments = self._concluded(claim, topic, answer, keep_ms, delivery, outbox)
        heard, *rest = await self._redis.run(self._finish, keys, arguments)
        if heard == _KEPT_BEFORE:
            return KeptBefore(rest[0])
        return self._done(delivery, heard, *rest) if heard >= 0 else None

    async def begin_and_conclude(self, asking: Asking, answering: Answering) -> Claim | Concluded:
        """`begin`, and where nothing stands in the way `conclude`."""
        token, look, delivery = secrets.token_hex(16), asking.look, answering.delivery
        read = answering.read
        since_us = self._time.earliest_us(read.began_at) if read else None
        if not (look and answering.ending.row and self._one_server) or (read and since_us is None):
            return await self.begin(asking.key, asking.fingerprint, asking.lease_ms, asking.waited_ms, look)
        claim = Acquired(asking.key, asking.fingerprint, token, 0)
        arguments = [*_asked(asking, token), *looking(look)]
        arguments += [answering.within_ms, delivery.sent_ms if delivery else 0, MOST_JOURNALED]
        keys, concluding = self._concluded(
            claim, answering.topic, answering.answer, answering.keep_ms, delivery, answering.ending
        )
        if not answering.ending.kept:
            # What is kept is looked at also where nothing is to be.
            keys[4] = self._keys.kept(look.kept)
        asked = self._time.asked()
        by_version = [*arguments, *_BY_VERSION, *concluding]
        if read and since_us is not None:
            arguments += [since_us, read.lasts_us, len(read.journaled), *concluding, *read.journaled]
            # Asked again it may be of another server, whose time is another: there it is not taken for the newest.
            reply = await self._redis.run_with_others(self._answer, keys, arguments, by_version)
        else:
            reply = await self._redis.run(self._answer, keys, by_version)
        if reply[0] != b"concluded":
            return self._heard(reply, asked, asking, token)
        self._time.heard(int(reply[1]), asked)
        return self._done(delivery, *reply[2:])

    def _heard(self, reply: Any, asked: Asked, asking: Asking, token: str) -> Claim:
        """What a script has said of a request, and with it of the time."""
        if reply[0] == b"acquired":
            self._time.heard(int(reply[1]), asked)
        return _claim_of(reply, asking, token)

    def _concluded(  # noqa: PLR0917  # those of `conclude`
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None, ending: Ending
    ) -> tuple[list[Argument], list[Argument]]:
        """Keys and arguments of the script that concludes."""
        row = ending.row
        owner = short(row.owner_key) if row else ""
        request = self._request(claim.key)
        # A cluster wants to know the slot also of what is not touched.
        of_owner = (
            [self._keys.version(owner), self._keys.journal(owner), self._keys.unwritten] if row else [request] * 3
        )
        keys: list[Argument] = [request, *of_owner, self._keys.kept(ending.kept_key) if ending.kept else request]
        if ending.kept == THE_ANSWER:
            keep_ms = max(keep_ms, ending.keep_ms)
        arguments: list[Argument] = [claim.token, claim.fingerprint, answer, keep_ms, topic]
        arguments += [f"{owner}:{row.id}", row.id, row.content] if row else ["", "", ""]
        arguments += [VERSION_LASTS_MS, ending.kept, ending.keep_ms]
        more_keys, more_arguments = self._publishing(topic, delivery)
        return keys + more_keys, arguments + more_arguments

    def _done(self, delivery: Delivery | None, heard: int, before: bytes = b"", after: bytes = b"") -> Concluded:
        self._acknowledge(delivery)
        return Concluded(self._hearers(heard), Moved(before.decode(), after.decode()))

    def _publishing(self, topic: str, _delivery: Delivery | None) -> tuple[list[Argument], list[Argument]]:
        """The further keys and arguments of the script that publishes."""
        return [], [self._prefix + topic]

    def _hearers(self, counted: int) -> int:
        return counted if self._one_server else max(counted, 1)

    def _acknowledge(self, _delivery: Delivery | None) -> None:
        """Take note of what the script has acknowledged: pub/sub keeps nothing that could be."""

    def _request(self, key: str) -> str:
        return f"{self._prefix}nexus:request:{key}"

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value unless there is one; returns the one that is kept."""
        name = self._keys.kept(key)
        before = await self._redis.execute("SET", name, value, "NX", "GET", "PX", keep_ms)
        if before is not None and (first := await self._resolved(before)) is not None:
            return first
        if before is not None:
            # It was an answer that is not there any more.
            await self._redis.execute("SET", name, value, "PX", keep_ms)
        return value

    async def kept(self, key: str) -> bytes | None:
        """What is kept."""
        found = await self._redis.execute("GET", self._keys.kept(key))
        return None if found is None else await self._resolved(found)

    async def _resolved(self, found: bytes) -> bytes | None:
        """What is kept where this was found: of an answer, that is where it is."""
        if not found.startswith(_POINTER):
            return bytes(found)
        answer = await self._redis.execute("HGET", found[len(_POINTER) :], "answer")
        return None if answer is None else bytes(answer)


class RedisStreamsLedger(RedisLedger):
    """`nexus.core.ports.RequestLedger` on Redis, with answers on streams.

    Args:
        client, prefix, repeated_s, runner: as for `RedisLedger`.
        group: the consumer group whose entries are acknowledged.
        reply_keep_ms: how long the stream of one requester (`….<reply_to>`) is kept after its last answer.
        acknowledged: told of each delivery that a `finish` has acknowledged.
    """

    def __init__(
        self,
        client: Redis,
        *,
        group: str,
        reply_keep_ms: int,
        acknowledged: Callable[[Delivery], None],
        prefix: str = "",
        repeated_s: float = 5.0,
        runner: Runner | None = None,
    ) -> None:
        self._group = group
        self._reply_keep_ms = reply_keep_ms
        self._acknowledged = acknowledged
        super().__init__(client, prefix=prefix, repeated_s=repeated_s, runner=runner)
        self._finish = FINISH_STREAMS
        self._answer = ANSWER_STREAMS

    def _make_plain(self, client: Redis, prefix: str, repeated_s: float) -> PlainLedger:
        return PlainStreamsLedger(
            client,
            group=self._group,
            reply_keep_ms=self._reply_keep_ms,
            acknowledged=self._acknowledged,
            prefix=prefix,
            repeated_s=repeated_s,
        )

    def _publishing(self, topic: str, delivery: Delivery | None) -> tuple[list[Argument], list[Argument]]:
        topic_of_request, entry = (delivery.topic, delivery.entry) if delivery else (Topics.CONTEXT_BUILD_REQUEST, "")
        keep_reply = self._reply_keep_ms if is_of_one_requester(topic) else 0
        return [self._prefix + topic, self._prefix + topic_of_request], [self._group, entry, keep_reply]

    def _hearers(self, counted: int) -> int:
        # An entry is there for whoever reads it.
        return counted

    def _acknowledge(self, delivery: Delivery | None) -> None:
        if delivery:
            self._acknowledged(delivery)


def _asked(asking: Asking, token: str) -> list[Argument]:
    """The first arguments of a script that claims."""
    known_ms = asking.lease_ms + _KNOWN_MS
    return [token, asking.fingerprint, asking.lease_ms, _SAID_AGAIN_MS, known_ms, asking.waited_ms]


def _claim_of(reply: Any, asking: Asking, token: str) -> Claim:
    """What a script has said of a request that was asked for with this token."""
    match reply:
        case [b"acquired", now_us, attempts, asked_ms, *rest]:
            standing, now_ms = standing_of(*rest) if rest else None, int(now_us) // 1_000
            return Acquired(asking.key, asking.fingerprint, token, now_ms, int(attempts), int(asked_ms), standing)
        case [b"answered", topic, answer]:
            return Answered(topic.decode(), answer)
        case [b"announced"]:
            return Announced()
        case [b"conflict"]:
            return Conflict()
        case _:
            return Busy()
