-- Makes a value visible, after removing what expired and what exceeds a limit: of the tenant that has most, or of the value's
-- own tenant if that exceeds its own limit, the least recently used values.
-- KEYS: the staged chunks, the value, the area's indexes, and the values that it refers to. These are not removed for lack of
-- room any more, but with the last value that refers to them.
-- ARGV: the header, the size in bytes, the lifetime in ms, the area's limit in bytes, the tenant's, whether chunks are staged
-- (1 or 0), and the value's order: it replaces no later value; 0 if it has none.
-- Returns 1, or 0 if the value alone exceeds a limit or there is a later one, or -1 if the staged chunks have expired, or -2 if
-- more must be removed: then run it again, or -3 if it refers to a value that is not there. Redis does nothing else meanwhile, so that a single run removes few values.
local staged, value, indexes = KEYS[1], KEYS[2], { KEYS[3], KEYS[4], KEYS[5], KEYS[6] }
local used, sizes, expiry, shares = unpack(indexes)
local header, size, lifetime, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local own_limit, is_staged, order = tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
local time = redis.call('TIME')
local microseconds = time[1] * 1000000 + time[2]
local now = math.floor(microseconds / 1000)
local own, removals = tenant_of(value), 256

-- Returns the tenant that has to lose a value, if any has.
local function loser()
  local own_bytes = tonumber(redis.call('ZSCORE', shares, own) or 0)
  if own_bytes + size > own_limit then
    return own
  end
  if tonumber(redis.call('HGET', sizes, 'total') or 0) + size > limit then
    local largest, bytes = unpack(redis.call('ZREVRANGE', shares, 0, 0, 'WITHSCORES'))
    return own_bytes > 0 and own_bytes + size > tonumber(bytes) and own or largest
  end
end

if is_staged and redis.call('EXISTS', staged) == 0 then
  return -1
end
if order > 0 and tonumber(redis.call('HGET', value, 'order') or 0) > order then
  redis.call('DEL', staged)
  return 0
end
for _, expired in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, removals)) do
  drop(expired, indexes)
  removals = removals - 1
end
drop(value, indexes)
if size > math.min(limit, own_limit) then
  redis.call('DEL', staged)
  return 0
end
local tenant = loser()
while tenant do
  if removals == 0 then
    return -2
  end
  local oldest = redis.call('ZRANGE', used .. ':' .. tenant, 0, 0)[1]
  if not oldest then
    break
  end
  drop(oldest, indexes)
  removals = removals - 1
  tenant = loser()
end
local others = { unpack(KEYS, 7) }
for _, other in ipairs(others) do
  if redis.call('EXISTS', other) == 0 then
    redis.call('DEL', staged)
    return -3
  end
end
for _, other in ipairs(others) do
  redis.call('HINCRBY', sizes, 'referring:' .. other, 1)
  redis.call('ZREM', used .. ':' .. own, other)
  if redis.call('PTTL', other) < lifetime then
    redis.call('PEXPIRE', other, lifetime)
    redis.call('ZADD', expiry, now + lifetime, other)
  end
end
if #others > 0 then
  redis.call('HSET', sizes, 'refers to:' .. value, table.concat(others, '\n'))
end
if is_staged then
  redis.call('RENAME', staged, value)
end
redis.call('HSET', value, 'header', header, 'order', ARGV[7])
redis.call('PEXPIRE', value, lifetime)
redis.call('ZADD', used .. ':' .. own, microseconds, value)
redis.call('HSET', sizes, value, size)
redis.call('HINCRBY', sizes, 'total', size)
redis.call('ZINCRBY', shares, size, own)
redis.call('ZADD', expiry, now + lifetime, value)
keep(value, indexes, lifetime)
return 1
