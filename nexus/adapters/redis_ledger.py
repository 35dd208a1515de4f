"""The request ledger on Redis (CONTRACT §1.5): one hash a request, changed by scripts, so that each step is atomic.

A hash is `fingerprint`, `attempts`, `asked_ms`, `token` and `lease_until` while somebody is at the request, and, when
it is finished, `topic`, `answer`, `said_ms` and `said_to`. Times are those of Redis.

Two ways of publishing an answer: on pub/sub, where a script touches the one hash; on streams, where the stream of the
answer and that of the request are written in the same step, so that on a Redis Cluster the three share a slot.
"""

import uuid
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio import Redis

from nexus.adapters.redis_client import repeated
from nexus.adapters.redis_cluster import hearers
from nexus.core.ports import Acquired, Announced, Answered, Busy, Claim, Conflict, Delivery
from nexus.core.topics import Topics

# An answer is announced again at most this often, however many replicas are asked for it at once.
_SAID_AGAIN_MS: Final = 1_000
# How long a request without an answer is known after its lease, so that its attempts are counted.
_KNOWN_MS: Final = 600_000
# How long it is known when a request was asked that was given back: longer than any deadline.
_ASKED_KNOWN_MS: Final = 120_000

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# KEYS: request. ARGV: token, fingerprint, lease_ms, said_again_ms, known_ms, waited_ms.
_BEGIN = (
    _NOW
    + """
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'token', 'answer', 'topic', 'said_ms', 'said_to',
  'lease_until', 'attempts', 'asked_ms')
if known[1] and known[1] ~= ARGV[2] then return {'conflict'} end
if known[3] then
  if now - ARGV[6] - known[5] < tonumber(ARGV[4]) and known[6] ~= ARGV[1] then return {'announced'} end
  redis.call('HSET', KEYS[1], 'said_ms', now, 'said_to', ARGV[1])
  return {'answered', known[4], known[3]}
end
local mine = known[2] == ARGV[1]
if known[2] and not mine and tonumber(known[7]) > now then return {'busy'} end
local attempts = tonumber(known[8] or 0) + (mine and 0 or 1)
local asked = tonumber(known[9]) or (now - ARGV[6])
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'token', ARGV[1], 'lease_until', now + ARGV[3],
  'attempts', attempts, 'asked_ms', asked)
redis.call('PEXPIRE', KEYS[1], ARGV[3] + ARGV[5])
return {'acquired', now, attempts, asked}
"""
)
# KEYS: request. ARGV: token, lease_ms, known_ms.
_RENEW = (
    _NOW
    + """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'answer') == 1 then return 0 end
redis.call('HSET', KEYS[1], 'lease_until', now + ARGV[2])
return redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
"""
)
# KEYS: request. ARGV: token, asked_known_ms. The attempt is taken back; of a first one stays only when it was asked.
_RELEASE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'answer') == 1 then return 0 end
if redis.call('HINCRBY', KEYS[1], 'attempts', -1) > 0 then
  return redis.call('HDEL', KEYS[1], 'token', 'lease_until')
end
local asked = redis.call('HGET', KEYS[1], 'asked_ms')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'asked_ms', asked)
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
# KEYS: request. ARGV: token, fingerprint, answer, keep_ms, topic. `token` says whose answer is kept. What is appended
# to it publishes, and returns how many heard.
_KEEP = (
    _NOW
    + """
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'token', 'answer')
local foreign = known[1] and known[1] ~= ARGV[2]
if known[3] or foreign then
  if known[2] == ARGV[1] and not foreign then return 1 end
  return -1
end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'token', ARGV[1], 'topic', ARGV[5], 'answer', ARGV[3],
  'said_ms', now)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
"""
)
# ARGV, further: channel.
_FINISH_PUBSUB = (
    _KEEP
    + """
return redis.call('PUBLISH', ARGV[6], ARGV[3])
"""
)
# KEYS, further: the stream of the answer, that of the request. ARGV, further: group, entry or '', how long a stream
# that belongs to one requester lasts without a further answer, or 0. A requester whose stream is none hears nothing;
# what was done before is not undone by Redis, so the rest is done too.
_FINISH_STREAMS = (
    _KEEP
    + """
local added = redis.pcall('XADD', KEYS[2], '*', 'message', ARGV[3])
local heard = type(added) == 'string' and 1 or 0
if heard == 1 and ARGV[8] ~= '0' then redis.call('PEXPIRE', KEYS[2], ARGV[8]) end
if ARGV[7] ~= '' then redis.call('XACK', KEYS[3], ARGV[6], ARGV[7]) end
return heard
"""
)


class RedisLedger:
    """`nexus.core.ports.RequestLedger` on Redis, with answers on pub/sub.

    When Redis does not answer, an operation is tried again for `repeated_s` seconds: a restart of Redis fits in.
    """

    def __init__(self, client: Redis, *, prefix: str = "", repeated_s: float = 5.0) -> None:
        self._client = client
        self._prefix = prefix
        self._repeated_s = repeated_s
        self._begin = client.register_script(_BEGIN)
        self._renew = client.register_script(_RENEW)
        self._release = client.register_script(_RELEASE)
        self._finish = client.register_script(_FINISH_PUBSUB)

    async def begin(self, key: str, fingerprint: str, lease_ms: int, waited_ms: int = 0) -> Claim:
        """Ask for a request."""
        token = uuid.uuid4().hex
        arguments = [token, fingerprint, lease_ms, _SAID_AGAIN_MS, _KNOWN_MS, waited_ms]
        reply = await self._run(self._begin, [self._request(key)], arguments)
        match reply:
            case [b"acquired", now_ms, attempts, asked_ms]:
                return Acquired(key, fingerprint, token, int(now_ms), int(attempts), int(asked_ms))
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
        return bool(await self._run(self._renew, [self._request(claim.key)], [claim.token, lease_ms, _KNOWN_MS]))

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        await self._run(self._release, [self._request(claim.key)], [claim.token, _ASKED_KNOWN_MS])

    async def finish(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None = None
    ) -> int | None:
        """Keep the answer and publish it, in one step."""
        del delivery  # pub/sub keeps nothing that could be done with
        arguments = [claim.token, claim.fingerprint, answer, keep_ms, topic, self._prefix + topic]
        heard = int(await self._run(self._finish, [self._request(claim.key)], arguments))
        return None if heard < 0 else hearers(self._client, heard)

    async def keep_first(self, key: str, value: bytes, keep_ms: int) -> bytes:
        """Keep a value unless there is one; returns the one that is kept."""

        async def keep() -> Any:
            return await self._client.set(self._kept(key), value, nx=True, get=True, px=keep_ms)

        before = await repeated(keep, for_s=self._repeated_s)
        return value if before is None else bytes(before)

    async def kept(self, key: str) -> bytes | None:
        """What is kept."""

        async def get() -> Any:
            return await self._client.get(self._kept(key))

        found = await repeated(get, for_s=self._repeated_s)
        return None if found is None else bytes(found)

    def _request(self, key: str) -> str:
        return f"{self._prefix}nexus:request:{key}"

    def _kept(self, key: str) -> str:
        return f"{self._prefix}nexus:kept:{key}"

    async def _run(self, script: Any, keys: list[str], arguments: list[Any]) -> Any:
        async def call() -> Any:
            return await script(keys=keys, args=arguments)

        return await repeated(call, for_s=self._repeated_s)


class RedisStreamsLedger(RedisLedger):
    """`nexus.core.ports.RequestLedger` on Redis, with answers on streams.

    Args:
        client, prefix, repeated_s: as for `RedisLedger`.
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
    ) -> None:
        super().__init__(client, prefix=prefix, repeated_s=repeated_s)
        self._group = group
        self._reply_keep_ms = reply_keep_ms
        self._acknowledged = acknowledged
        self._finish = client.register_script(_FINISH_STREAMS)

    async def finish(
        self, claim: Acquired, topic: str, answer: bytes, keep_ms: int, delivery: Delivery | None = None
    ) -> int | None:
        """Keep the answer, publish it and acknowledge the request's entry, in one step."""
        topic_of_request, entry = (delivery.topic, delivery.entry) if delivery else (Topics.CONTEXT_BUILD_REQUEST, "")
        keys = [self._request(claim.key), self._prefix + topic, self._prefix + topic_of_request]
        keep_reply = self._reply_keep_ms if is_of_one_requester(topic) else 0
        arguments = [claim.token, claim.fingerprint, answer, keep_ms, topic, self._group, entry, keep_reply]
        heard = int(await self._run(self._finish, keys, arguments))
        if heard < 0:
            return None
        if delivery:
            self._acknowledged(delivery)
        return heard


def is_of_one_requester(topic: str) -> bool:
    """Whether it is the stream of one requester's answers (`reply_to`), which nobody reads when that one is gone."""
    return topic.startswith(f"{Topics.CONTEXT_BUILD_RESPONSE}.")
