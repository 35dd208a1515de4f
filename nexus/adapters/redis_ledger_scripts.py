"""The scripts of the request ledger and the journal: each is one step for everybody (CONTRACT §1.5).

Times are those of Redis: milliseconds, and microseconds for versions, which are moments that never run back, so that
none ever comes again, whatever Redis forgets or fails over to.
"""

from typing import Final

from nexus.adapters.redis_multiplexed import Script

# As digits, microseconds and milliseconds: most are only written, and Redis takes longest over numbers.
_NOW = """
local time = redis.call('TIME')
local us = time[1] .. string.sub('00000' .. time[2], -6)
local now = string.sub(us, 1, -4)
"""
# Of an owner whose version is `before`, false for none, to one that is known for `lasts` milliseconds.
_MOVE = """
local function move(key, before, lasts)
  local after = us
  if before and before - us >= 0 then after = string.format('%.0f', before + 1) end
  redis.call('SET', key, after, 'PX', lasts)
  return before or '', after
end
"""
# What is kept under a key: of an answer that is kept as such only where that is.
_KEPT = """
local function kept_under(key)
  local found = redis.call('GET', key)
  if found and string.sub(found, 1, 1) == '@' then return redis.call('HGET', string.sub(found, 2), 'answer') end
  return found
end
"""
# How things are with an owner. `wanted` is '1' where what is kept is to be told.
_LOOK = """
local function look(versions, journal, kept, known, lasts, wanted)
  local version = redis.call('GETEX', versions, 'PX', lasts)
  if not version then
    version = us
    redis.call('SET', versions, version, 'PX', lasts)
  end
  local rows = version ~= known and redis.call('HVALS', journal)
  local found = wanted == '1' and kept_under(kept)
  return version, us - version, found, rows, rows and #rows or redis.call('HLEN', journal)
end
"""
# `argv`: token, fingerprint, lease_ms, said_again_ms, known_ms (lease included), waited_ms.
_CLAIM = """
local function known_of(request)
  local known, found = {}, redis.call('HGETALL', request)
  for number = 1, #found, 2 do known[found[number]] = found[number + 1] end
  return known
end
-- Why the request is not to be had; else nil, the attempts with this one, and when it was asked.
local function refused(request, known, argv)
  if known.fingerprint and known.fingerprint ~= argv[2] then return {'conflict'} end
  if known.answer then
    if now - argv[6] - known.said_ms < tonumber(argv[4]) and known.said_to ~= argv[1] then return {'announced'} end
    redis.call('HSET', request, 'said_ms', now, 'said_to', argv[1])
    return {'answered', known.topic, known.answer}
  end
  local mine = known.token == argv[1]
  if known.token and not mine and known.lease_until - now > 0 then return {'busy'} end
  return nil, (known.attempts or 0) + (mine and 0 or 1), tonumber(known.asked_ms) or (now - argv[6])
end
local function acquire(request, argv, attempts, asked)
  redis.call('HSET', request, 'fingerprint', argv[2], 'token', argv[1], 'lease_until', now + argv[3],
    'attempts', attempts, 'asked_ms', asked)
  redis.call('PEXPIRE', request, argv[5])
end
"""
# KEYS: request; to have the owner looked at: version, journal, kept. ARGV: those of `_CLAIM`; further: known version,
# version_lasts_ms, '1' to tell what is kept.
BEGIN: Final = Script(
    _NOW
    + _KEPT
    + _LOOK
    + _CLAIM
    + """
local no, attempts, asked = refused(KEYS[1], known_of(KEYS[1]), ARGV)
if no then return no end
acquire(KEYS[1], ARGV, attempts, asked)
if not KEYS[2] then return {'acquired', us, attempts, asked} end
return {'acquired', us, attempts, asked, look(KEYS[2], KEYS[3], KEYS[4], ARGV[7], ARGV[8], ARGV[9])}
"""
)
# KEYS: version, journal, kept. ARGV: known version, version_lasts_ms, '1' to tell what is kept.
STANDING: Final = Script(
    _NOW
    + _KEPT
    + _LOOK
    + """
return {look(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3])}
"""
)
# KEYS: request. ARGV: token, lease_ms, known_ms (lease included).
RENEW: Final = Script(
    _NOW
    + """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'answer') == 1 then return 0 end
redis.call('HSET', KEYS[1], 'lease_until', now + ARGV[2])
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""
)
# KEYS: request. ARGV: token, asked_known_ms. The attempt is taken back; of a first one stays only when it was asked.
RELEASE: Final = Script("""
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'answer') == 1 then return 0 end
if redis.call('HINCRBY', KEYS[1], 'attempts', -1) > 0 then
  return redis.call('HDEL', KEYS[1], 'token', 'lease_until')
end
local asked = redis.call('HGET', KEYS[1], 'asked_ms')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'asked_ms', asked)
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
""")
# `keys`: request, version, journal, unwritten, kept; the last four are not touched where nothing is journaled or kept.
# `argv`: token, fingerprint, answer, keep_ms, topic, name of the row among the unwritten or '', id of the row, row,
# version_lasts_ms, what is kept ('=' for the answer, '' for nothing), kept_ms. `token` says whose answer is kept.
# `version`: the owner's, false for none; not looked at where nothing is journaled. `publish` is one of those below.
_CONCLUDE = """
local function kept_otherwise(first, argv)
  return first and first ~= (argv[10] == '=' and argv[3] or argv[10])
end
local function conclude(keys, argv, version)
  if argv[10] ~= '' then
    redis.call('SET', keys[5], argv[10] == '=' and '@' .. keys[1] or argv[10], 'PX', argv[11])
  end
  local before, after = '', ''
  if argv[6] ~= '' then
    redis.call('HSET', keys[3], argv[7], argv[8])
    redis.call('ZADD', keys[4], now, argv[6])
    before, after = move(keys[2], version, argv[9])
  end
  redis.call('HSET', keys[1], 'fingerprint', argv[2], 'token', argv[1], 'topic', argv[5], 'answer', argv[3],
    'said_ms', now)
  redis.call('PEXPIRE', keys[1], argv[4])
  return publish(keys, argv), before, after
end
"""
# `argv`, further: channel.
_TO_CHANNEL = """
local function publish(keys, argv)
  return redis.call('PUBLISH', argv[12], argv[3])
end
"""
# `keys`, further: the stream of the answer, that of the request. `argv`, further: group, entry or '', how long a stream
# that belongs to one requester lasts without a further answer, or 0. A requester whose stream is none hears nothing;
# what was done before is not undone by Redis, so the rest is done too.
_TO_STREAM = """
local function publish(keys, argv)
  local added = redis.pcall('XADD', keys[6], '*', 'message', argv[3])
  local heard = type(added) == 'string' and 1 or 0
  if heard == 1 and argv[14] ~= '0' then redis.call('PEXPIRE', keys[6], argv[14]) end
  if argv[13] ~= '' then redis.call('XACK', keys[7], argv[12], argv[13]) end
  return heard
end
"""
_FINISH = (
    _CONCLUDE
    + """
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'token', 'answer')
local foreign = known[1] and known[1] ~= ARGV[2]
if known[3] or foreign then
  if known[2] == ARGV[1] and not foreign then return {1} end
  return {-1}
end
local first = ARGV[10] ~= '' and kept_under(KEYS[5])
if kept_otherwise(first, ARGV) then return {-2, first} end
return {conclude(KEYS, ARGV, ARGV[6] ~= '' and redis.call('GET', KEYS[2]))}
"""
)
# KEYS: as for `_CONCLUDE`. ARGV: those of BEGIN, within_ms, sent_ms or 0, most_journaled; of what was read: since when
# in microseconds, or '' where the version is known, for how many a row stays in the journal, how many rows of that were
# read; those of `_CONCLUDE`, and the ids of the rows that were read. The request is not acquired before it is
# concluded: nobody sees it in between.
_ANSWER = (
    _LOOK
    + _CLAIM
    + _CONCLUDE
    + """
-- Whether the answer has all that has moved the owner's version by now, and the journal room for one more row.
local function has_all(version)
  if ARGV[13] == '' then return version == ARGV[7] and redis.call('HLEN', KEYS[3]) < tonumber(ARGV[12]) end
  local since = tonumber(ARGV[13])
  local age = us - since
  if age < 0 or age >= tonumber(ARGV[14]) or version and version - since >= 0 then return false end
  local journaled = redis.call('HKEYS', KEYS[3])
  if #journaled >= tonumber(ARGV[12]) then return false end
  local read = {}
  for number = #ARGV - ARGV[15] + 1, #ARGV do read[ARGV[number]] = true end
  for number = 1, #journaled do
    if not read[journaled[number]] then return false end
  end
  return true
end
local known = known_of(KEYS[1])
if known.answer and known.token == ARGV[1] then return {'concluded', us, 1, '', ''} end
local no, attempts, asked = refused(KEYS[1], known, ARGV)
if no then return no end
local answer = {unpack(ARGV, 16)}
local since, sent = asked, tonumber(ARGV[11])
if sent > 0 and sent < since then since = sent end
if attempts == 1 and now - since <= tonumber(ARGV[10]) and not kept_otherwise(kept_under(KEYS[5]), answer) then
  local version = redis.call('GET', KEYS[2])
  if has_all(version) then return {'concluded', us, conclude(KEYS, answer, version)} end
end
acquire(KEYS[1], ARGV, attempts, asked)
return {'acquired', us, attempts, asked, look(KEYS[2], KEYS[3], KEYS[5], ARGV[7], ARGV[8], ARGV[9])}
"""
)
FINISH_PUBSUB: Final = Script(_NOW + _KEPT + _MOVE + _TO_CHANNEL + _FINISH)
FINISH_STREAMS: Final = Script(_NOW + _KEPT + _MOVE + _TO_STREAM + _FINISH)
ANSWER_PUBSUB: Final = Script(_NOW + _KEPT + _MOVE + _TO_CHANNEL + _ANSWER)
ANSWER_STREAMS: Final = Script(_NOW + _KEPT + _MOVE + _TO_STREAM + _ANSWER)
# KEYS: version, last row. ARGV: id of the row, version_lasts_ms. What the last row has moved it does not move again and
# replies the same: what has moved the version since is not known to whoever asks.
MOVED: Final = Script(
    _NOW
    + _MOVE
    + """
local version, last = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
if last and version then
  local row, before, after = string.match(last, '^(.*) (%d*) (%d+)$')
  if row == ARGV[1] then return {before, after} end
end
local before, after = move(KEYS[1], version, ARGV[2])
redis.call('SET', KEYS[2], ARGV[1] .. ' ' .. before .. ' ' .. after, 'PX', ARGV[2])
return {before, after}
"""
)
# KEYS: unwritten, journals. ARGV: for each journal the name of its row among the unwritten, and the id of the row.
WRITTEN: Final = Script("""
for number = 2, #KEYS do
  redis.call('ZREM', KEYS[1], ARGV[number * 2 - 3])
  redis.call('HDEL', KEYS[number], ARGV[number * 2 - 2])
end
return #KEYS - 1
""")
# KEYS: unwritten. ARGV: older_than_ms, limit, what the names of journals begin with. Nothing of this is for a cluster,
# so the journals need not be named beforehand.
UNWRITTEN: Final = Script(
    _NOW
    + """
local rows = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[1], 'LIMIT', 0, ARGV[2])) do
  local owner, id = string.match(name, '^(.-):(.*)$')
  local row = redis.call('HGET', ARGV[3] .. owner, id)
  if row then rows[#rows + 1] = row else redis.call('ZREM', KEYS[1], name) end
end
return rows
"""
)
