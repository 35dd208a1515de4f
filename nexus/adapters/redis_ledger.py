"""The request ledger on Redis (CONTRACT §1.5, §1.6): one hash a request, changed by scripts, so each step is atomic.

A hash is `fingerprint`, `token` and, when finished, `topic`, `answer`, `said_ms` and `said_to`. While nobody has
answered it lives as long as the lease: a replica that dies leaves nothing behind. A script touches one key, or two of
which one carries the other's name in braces, so a Redis Cluster can hold them.
"""

import hashlib
import uuid
from itertools import chain
from typing import Any, Final

from redis.asyncio import Redis

from nexus.adapters.redis_client import repeated
from nexus.core.ports import Acquired, Answered, Busy, Claim, Conflict, DeadLetter

# An answer is announced again at most this often, however many replicas are asked for it at once.
_SAID_AGAIN_MS: Final = 1_000
_SAME_LETTER_MS: Final = 60_000

# KEYS: request. ARGV: token, fingerprint, lease_ms, said_again_ms.
_BEGIN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'token', 'answer', 'topic', 'said_ms', 'said_to')
if known[1] and known[1] ~= ARGV[2] then return {'conflict'} end
if known[3] then
  if now - tonumber(known[5]) < tonumber(ARGV[4]) and known[6] ~= ARGV[1] then return {'busy'} end
  redis.call('HSET', KEYS[1], 'said_ms', now, 'said_to', ARGV[1])
  return {'answered', known[4], known[3]}
end
if known[2] and known[2] ~= ARGV[1] then return {'busy'} end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'token', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'acquired', now}
"""
# KEYS: request. ARGV: token, lease_ms.
_RENEW = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'answer') == 1 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
# KEYS: request. ARGV: token, fingerprint, channel, answer, keep_ms, topic. `token` says whose answer is kept.
_FINISH = """
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'token', 'answer')
if known[3] then return known[2] == ARGV[1] and 1 or 0 end
if known[1] and known[1] ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'token', ARGV[1], 'topic', ARGV[6], 'answer', ARGV[4],
  'said_ms', now)
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
"""
# KEYS: request. ARGV: token.
_RELEASE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'answer') == 1 then return 0 end
return redis.call('DEL', KEYS[1])
"""
# KEYS: mark, stream. ARGV: how long the mark lasts, most letters, then fields and values.
_BURY = """
if not redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1]) then return 0 end
redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[2], '*', unpack(ARGV, 3))
return 1
"""


class RedisLedger:
    """`nexus.core.ports.RequestLedger` on Redis.

    When Redis does not answer, an operation is tried again for `repeated_s` seconds: a restart of Redis fits in.
    """

    def __init__(
        self, client: Redis, *, prefix: str = "", dead_letter_max: int = 10_000, repeated_s: float = 5.0
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._dead_letter_max = dead_letter_max
        self._repeated_s = repeated_s
        self._begin = client.register_script(_BEGIN)
        self._renew = client.register_script(_RENEW)
        self._finish = client.register_script(_FINISH)
        self._release = client.register_script(_RELEASE)
        self._bury = client.register_script(_BURY)

    async def begin(self, key: str, fingerprint: str, lease_ms: int) -> Claim:
        """Ask for a request."""
        token = uuid.uuid4().hex
        arguments = [token, fingerprint, lease_ms, _SAID_AGAIN_MS]
        reply = await self._run(self._begin, [self._request(key)], arguments)
        match reply:
            case [b"acquired", now_ms]:
                return Acquired(key, fingerprint, token, int(now_ms))
            case [b"answered", topic, answer]:
                return Answered(topic.decode(), answer)
            case [b"conflict"]:
                return Conflict()
            case _:
                return Busy()

    async def renew(self, claim: Acquired, lease_ms: int) -> bool:
        """Hold a request for longer."""
        return bool(await self._run(self._renew, [self._request(claim.key)], [claim.token, lease_ms]))

    async def finish(self, claim: Acquired, topic: str, answer: bytes, keep_ms: int) -> bool:
        """Keep the answer and publish it, in one step."""
        arguments = [claim.token, claim.fingerprint, self._prefix + topic, answer, keep_ms, topic]
        return bool(await self._run(self._finish, [self._request(claim.key)], arguments))

    async def release(self, claim: Acquired) -> None:
        """Give a request back."""
        await self._run(self._release, [self._request(claim.key)], [claim.token])

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

    async def bury(self, letter: DeadLetter) -> None:
        """Keep a dead letter."""
        stream = f"{self._prefix}nexus:dead-letters"
        reason = hashlib.sha256(letter.reason.encode("utf-8", "replace")).hexdigest()
        mark = f"{self._prefix}nexus:dead-letter:{{{stream}}}:{letter.sha256}:{reason[:16]}"
        fields: dict[str, Any] = {
            "topic": letter.topic,
            "reason": letter.reason,
            "deliveries": letter.deliveries,
            "sha256": letter.sha256,
            "size": letter.size,
        }
        if letter.body is not None:
            fields["body"] = letter.body
        arguments = [_SAME_LETTER_MS, self._dead_letter_max, *chain.from_iterable(fields.items())]
        await self._run(self._bury, [mark, stream], arguments)

    def _request(self, key: str) -> str:
        return f"{self._prefix}nexus:request:{key}"

    def _kept(self, key: str) -> str:
        return f"{self._prefix}nexus:kept:{key}"

    async def _run(self, script: Any, keys: list[str], arguments: list[Any]) -> Any:
        async def call() -> Any:
            return await script(keys=keys, args=arguments)

        return await repeated(call, for_s=self._repeated_s)
