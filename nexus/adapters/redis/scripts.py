"""The Lua scripts of the ledger and the outbox: each is one step for all clients (contract §1.5).

Times are those of Redis, in milliseconds.
"""

from typing import Final

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# KEYS: request, outbox order where it is in the same slot. ARGV: token, fingerprint, lease_ms, announced_again_ms,
# known_ms (lease included), waited_ms.
CLAIM: Final = (
    _NOW
    + """
local fingerprint, token, lease_until, attempts, asked, topic, answer, said_ms, said_to = unpack(redis.call(
  'HMGET', KEYS[1],
  'fingerprint', 'token', 'lease_until', 'attempts', 'asked_ms', 'topic', 'answer', 'said_ms', 'said_to'))
if fingerprint and fingerprint ~= ARGV[2] then return {'conflict'} end
if answer then
  if now - ARGV[6] - said_ms < tonumber(ARGV[4]) and said_to ~= ARGV[1] then return {'announced'} end
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
