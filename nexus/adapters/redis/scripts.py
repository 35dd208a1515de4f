"""The Lua scripts of ledger, outbox, streams and dead letters: each is one step for all clients (contract §1.5).

Times are those of Redis, in milliseconds. The same on Redis 7.0 and newer and on Valkey.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoScriptError


class Script:
    """A script, called by its hash, and sent whole to a server that does not know it.

    redis-py's own loads it first and then calls it: another SCRIPT FLUSH may come in between, and on a cluster its slot
    may move.
    """

    def __init__(self, client: Redis, text: str) -> None:
        self._client: Any = client
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, keys: Sequence[Any] = (), args: Sequence[Any] = ()) -> Any:
        """What the script returns."""
        try:
            return await self._client.evalsha(self._sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self._client.eval(self._text, len(keys), *keys, *args)


# The group through which the replicas share out their work, whichever streams it is in.
GROUP: Final = "nexus"
_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# What XINFO says of one group or consumer, by name.
_NAMED = """
local function named(pairs)
  local values = {}
  for i = 1, #pairs, 2 do values[pairs[i]] = pairs[i + 1] end
  return values
end
"""
# KEYS: request, and on a single server the order of the outbox. ARGV: token, fingerprint, lease_ms, announced_again_ms,
# known_ms (lease included), waited_ms.
CLAIM: Final = (
    _NOW
    + """
local fingerprint, token, lease_until, attempts, asked, topic, answer, announced_ms, announced_to = unpack(redis.call(
  'HMGET', KEYS[1],
  'fingerprint', 'token', 'lease_until', 'attempts', 'asked_ms', 'topic', 'answer', 'said_ms', 'said_to'))
if fingerprint and fingerprint ~= ARGV[2] then return {'conflict'} end
if answer then
  if now - ARGV[6] - announced_ms < tonumber(ARGV[4]) and announced_to ~= ARGV[1] then return {'announced'} end
  redis.call('HSET', KEYS[1], 'said_ms', now, 'said_to', ARGV[1])
  return {'answered', topic, answer}
end
-- The same token again: a claim whose reply was lost.
local repeated = token == ARGV[1]
if token and not repeated and tonumber(lease_until) > now then return {'busy'} end
attempts = (attempts or 0) + (repeated and 0 or 1)
asked = tonumber(asked) or (now - ARGV[6])
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'token', ARGV[1], 'lease_until', now + ARGV[3],
  'attempts', attempts, 'asked_ms', asked)
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {'acquired', now, attempts, asked, KEYS[2] and redis.call('EXISTS', KEYS[2]) or 0}
"""
)
# KEYS: request. ARGV: token, lease_ms, known_ms (lease included).
RENEW: Final = (
    _NOW
    + """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'answer') == 1 then return 0 end
redis.call('HSET', KEYS[1], 'lease_until', now + ARGV[2])
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""
)
# KEYS: request. ARGV: token, asked_known_ms. Takes the attempt back; of a first attempt only `asked_ms` stays.
RELEASE: Final = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'answer') == 1 then return 0 end
if redis.call('HINCRBY', KEYS[1], 'attempts', -1) > 0 then
  return redis.call('HDEL', KEYS[1], 'token', 'lease_until')
end
local asked = redis.call('HGET', KEYS[1], 'asked_ms')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'asked_ms', asked)
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
# Returns 1 where the outbox has the row, 0 where the outbox is full.
_PUT = """
local function put(order, size, rows, member, id, content, most_rows, most_bytes)
  if redis.call('HEXISTS', rows, id) == 1 then return 1 end
  local bytes = (redis.call('GET', size) or 0) + #content
  if redis.call('ZCARD', order) >= tonumber(most_rows) or bytes > tonumber(most_bytes) then return 0 end
  redis.call('HSET', rows, id, content)
  redis.call('ZADD', order, now, member)
  redis.call('SET', size, bytes)
  return 1
end
"""
# KEYS: request, and for a row the order, size and rows of its owner in the outbox; without one the request again.
# ARGV: token, fingerprint, answer, keep_ms, topic, member or '' for no row, id, content, most_rows, most_bytes.
# Returns how many received the answer, -1 where the request has another one; and 0 where the outbox was full.
_CONCLUDE = (
    _NOW
    + _PUT
    + """
local fingerprint, token, answer = unpack(redis.call('HMGET', KEYS[1], 'fingerprint', 'token', 'answer'))
if fingerprint and fingerprint ~= ARGV[2] then return {-1, 1} end
if answer then return {token == ARGV[1] and 1 or -1, 1} end
local taken = 1
if ARGV[6] ~= '' then
  taken = put(KEYS[2], KEYS[3], KEYS[4], ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10])
end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'token', ARGV[1], 'topic', ARGV[5], 'answer', ARGV[3],
  'said_ms', now)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
"""
)
# ARGV, further: channel.
CONCLUDE_PUBSUB: Final = (
    _CONCLUDE
    + """
return {redis.call('PUBLISH', ARGV[11], ARGV[3]), taken}
"""
)
# KEYS, further: the stream of the answer, that of the request. ARGV, further: group, entry or '', how long a stream of
# one requester lasts without a further answer, or 0. A requester whose key is no stream receives nothing; Redis does
# not undo what was done before, so the rest is done too.
CONCLUDE_STREAMS: Final = (
    _CONCLUDE
    + """
local added = redis.pcall('XADD', KEYS[5], '*', 'message', ARGV[3])
local received = type(added) == 'string' and 1 or 0
if received == 1 and ARGV[13] ~= '0' then redis.call('PEXPIRE', KEYS[5], ARGV[13]) end
if ARGV[12] ~= '' then redis.call('XACK', KEYS[6], ARGV[11], ARGV[12]) end
return {received, taken}
"""
)
# KEYS: order, size, rows of the owner. ARGV: member, id, content, most_rows, most_bytes.
OUTBOX_PUT: Final = _NOW + _PUT + "return put(KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))"
# KEYS: the rows of owners. ARGV: one id for each.
OUTBOX_READ: Final = """
local found = {}
for number, rows in ipairs(KEYS) do found[number] = redis.call('HGET', rows, ARGV[number]) end
return found
"""
# KEYS: order, size, the rows of owners. ARGV: for each of these a member and an id.
OUTBOX_REMOVE: Final = """
for number = 3, #KEYS do
  local member, id = ARGV[number * 2 - 5], ARGV[number * 2 - 4]
  local bytes = redis.call('HSTRLEN', KEYS[number], id)
  if redis.call('HDEL', KEYS[number], id) == 1 then redis.call('DECRBY', KEYS[2], bytes) end
  redis.call('ZREM', KEYS[1], member)
end
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('DEL', KEYS[2]) end
return #KEYS - 2
"""
# Whether there is such a group of a stream, and how many entries it has not been given. Its `lag` is nil where Redis
# cannot tell: after an XDEL, until the group has read past it; then there are none. Redis before 7.4.4 may count for
# good what was trimmed before a restart (redis/redis#13957), so it is not asked where the group has been given all.
_BACKLOG = (
    _NAMED
    + """
local function backlog(stream, name)
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local group = named(each)
    if group['name'] == name then
      local next = redis.call('XRANGE', stream, '(' .. group['last-delivered-id'], '+', 'COUNT', 1)
      return true, #next > 0 and tonumber(group['lag'] or 0) or 0
    end
  end
  return false, 0
end
"""
)
# KEYS: stream. ARGV: group, consumer, most that may wait, most to take. What is above goes to this consumer.
GROUP_SHED: Final = (
    _BACKLOG
    + """
local is_there, waiting = backlog(KEYS[1], ARGV[1])
if not is_there then return redis.error_reply('NOGROUP') end
local surplus = waiting - ARGV[3]
if surplus < 1 then return false end
return redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', math.min(surplus, ARGV[4]), 'STREAMS', KEYS[1], '>')
"""
)
# KEYS: stream. ARGV: group. How many entries it has not been given.
GROUP_BACKLOG: Final = (
    _BACKLOG
    + """
local _, waiting = backlog(KEYS[1], ARGV[1])
return waiting
"""
)
# KEYS: stream. ARGV: group, consumer, count, idle_ms, then entries that this consumer knows of. Others that have been
# pending for so long go to this consumer, only its own where idle_ms is 0; with how often they have been handed out.
GROUP_FETCH: Final = """
local known, fetched = {}, {}
for i = 5, #ARGV do known[ARGV[i]] = true end
local query = {'XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[4], '-', '+', ARGV[3] + #ARGV - 4}
if ARGV[4] == '0' then query[#query + 1] = ARGV[2] end
for _, entry in ipairs(redis.call(unpack(query))) do
  if #fetched < tonumber(ARGV[3]) and not known[entry[1]] then
    local deliveries = entry[4] + (entry[2] == ARGV[2] and 0 or 1)
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, entry[1], 'RETRYCOUNT', deliveries)
    if claimed[1] then fetched[#fetched + 1] = {entry[1], claimed[1][2], deliveries} end
  end
end
return fetched
"""
# KEYS: stream. ARGV: group, consumer, then entries. Renews the leases of those that are this consumer's.
GROUP_RENEW: Final = """
local renewed = 0
for i = 3, #ARGV do
  if redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
    renewed = renewed + 1
  end
end
return renewed
"""
# KEYS: stream. ARGV: group, consumer, idle_ms. What is pending here can be taken over at once, as if never handed out.
GROUP_GIVE_BACK: Final = """
local given = 0
local start = '-'
while true do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], start, '+', 100, ARGV[2])
  for _, entry in ipairs(pending) do
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, entry[1], 'IDLE', ARGV[3],
      'RETRYCOUNT', math.max(entry[4] - 1, 0), 'JUSTID')
    given = given + 1
    start = '(' .. entry[1]
  end
  if #pending < 100 then break end
end
if given == 0 then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end
return given
"""
# KEYS: stream. ARGV: group, keep_ms, gone_ms, an entry before which all are known to be old. Trims what is older than
# keep_ms, or known to be, and done with by every group; forgets consumers that are gone. Returns the last entry where
# it lies in the future. The numbers of an entry may be too large to reckon with, so they are compared as text.
STREAM_TRIM: Final = (
    _NOW
    + _NAMED
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local function less(a, b) return #a < #b or (#a == #b and a < b) end
local function before(a, b)
  local a_ms, a_number = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_number = string.match(b, '^(%d+)-(%d+)$')
  return less(a_ms, b_ms) or (a_ms == b_ms and less(a_number, b_number))
end
local floor = string.format('%.0f-0', math.max(now - ARGV[2], 0))
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
last = last and last[1] or '0-0'
-- A stream that ends before that entry has been made anew.
if before(floor, ARGV[4]) and not before(last, ARGV[4]) then floor = ARGV[4] end
for _, each in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = named(each)
  local needed = group['last-delivered-id']
  if group['pending'] > 0 then needed = redis.call('XPENDING', KEYS[1], group['name'])[2] end
  if before(needed, floor) then floor = needed end
  if group['name'] == ARGV[1] then
    for _, one in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
      local consumer = named(one)
      if consumer['pending'] == 0 and consumer['idle'] > tonumber(ARGV[3]) then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
      end
    end
  end
end
redis.call('XTRIM', KEYS[1], 'MINID', floor)
return before(string.format('%.0f-0', now + 60000), last) and last
"""
)
# KEYS: stream, and with `once` its mark. ARGV: payload, how long the mark lasts, how long the stream lasts or 0.
STREAM_PUBLISH: Final = """
if KEYS[2] and not redis.call('SET', KEYS[2], '', 'NX', 'PX', ARGV[2]) then return 1 end
local added = redis.pcall('XADD', KEYS[1], '*', 'message', ARGV[1])
if type(added) == 'table' then
  -- Nothing has been enqueued: the mark must not last.
  if KEYS[2] then redis.call('SET', KEYS[2], '', 'PX', 1) end
  return added
end
if ARGV[3] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
"""
# KEYS: mark, stream. ARGV: how long the mark lasts, most letters, then fields and values.
DEAD_LETTER_ADD: Final = """
if not redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1]) then return 0 end
local added = redis.pcall('XADD', KEYS[2], 'MAXLEN', ARGV[2], '*', unpack(ARGV, 3))
if type(added) == 'table' then
  -- Nothing has been kept: the mark must not last, or trying again would find it and pass for success.
  redis.call('DEL', KEYS[1])
  return added
end
return 1
"""
