"""What `redis_group` has Redis do in one step. The same on Redis 7.0 and newer and on Valkey.

`lag`, how many entries a group has not been given, is nil where Redis cannot tell: after an XDEL, until the group has
read past it. Then nothing is taken for surplus.
"""

from typing import Final

# KEYS: stream. ARGV: group, consumer, most that may wait, most to take. What is above goes to this consumer.
SHED: Final = """
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local about = {}
  for i = 1, #group, 2 do about[group[i]] = group[i + 1] end
  if about['name'] == ARGV[1] then
    local surplus = (tonumber(about['lag'] or 0) or 0) - ARGV[3]
    if surplus < 1 then return false end
    return redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', math.min(surplus, ARGV[4]),
      'STREAMS', KEYS[1], '>')
  end
end
return redis.error_reply('NOGROUP')
"""
# KEYS: stream. ARGV: group, consumer, count, idle_ms, then entries that this consumer knows of. Others that have been
# pending for so long go to this consumer, only its own where idle_ms is 0; with how often they have been handed out.
FETCH: Final = """
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
# KEYS: stream. ARGV: group, consumer, then entries. Those that are this consumer's have been heard of just now.
HOLD: Final = """
local held = 0
for i = 3, #ARGV do
  if redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
    held = held + 1
  end
end
return held
"""
# KEYS: stream. ARGV: group, consumer, idle_ms. What is pending here can be taken over at once, as if never handed out.
GIVE_BACK: Final = """
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
TRIM: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local function less(a, b) return #a < #b or (#a == #b and a < b) end
local function before(a, b)
  local a_ms, a_number = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_number = string.match(b, '^(%d+)-(%d+)$')
  return less(a_ms, b_ms) or (a_ms == b_ms and less(a_number, b_number))
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local floor = string.format('%.0f-0', math.max(now - ARGV[2], 0))
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
last = last and last[1] or '0-0'
-- A stream that ends before that entry has been made anew.
if before(floor, ARGV[4]) and not before(last, ARGV[4]) then floor = ARGV[4] end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local about = {}
  for i = 1, #group, 2 do about[group[i]] = group[i + 1] end
  local needed = about['last-delivered-id']
  if about['pending'] > 0 then needed = redis.call('XPENDING', KEYS[1], about['name'])[2] end
  if before(needed, floor) then floor = needed end
  if about['name'] == ARGV[1] then
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
      local known = {}
      for i = 1, #consumer, 2 do known[consumer[i]] = consumer[i + 1] end
      if known['pending'] == 0 and known['idle'] > tonumber(ARGV[3]) then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], known['name'])
      end
    end
  end
end
redis.call('XTRIM', KEYS[1], 'MINID', floor)
return before(string.format('%.0f-0', now + 60000), last) and last
"""
