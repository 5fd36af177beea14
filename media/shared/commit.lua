-- Makes a value visible, after removing what expired and, least recently used first, what exceeds the area's limit.
-- KEYS: the staged chunks, the value, and the area's indexes: times of use, sizes, times of expiry.
-- ARGV: the header, the size in bytes, the lifetime in ms, the area's limit in bytes, whether chunks are staged (1 or 0).
-- Returns 1, or 0 if the value alone exceeds the limit, or -1 if the staged chunks have expired.
local staged, value, used, sizes, expiry = unpack(KEYS)
local header, size, lifetime, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local microseconds = time[1] * 1000000 + time[2]
local now = math.floor(microseconds / 1000)

local function drop(key)
  local bytes = redis.call('HGET', sizes, key)
  redis.call('DEL', key)
  redis.call('ZREM', used, key)
  redis.call('ZREM', expiry, key)
  redis.call('HDEL', sizes, key)
  if bytes then
    redis.call('HINCRBY', sizes, 'total', -tonumber(bytes))
  end
end

if ARGV[5] == '1' and redis.call('EXISTS', staged) == 0 then
  return -1
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, 1000)) do
  drop(key)
end
drop(value)
if size > limit then
  redis.call('DEL', staged)
  return 0
end
while tonumber(redis.call('HGET', sizes, 'total') or 0) + size > limit do
  local oldest = redis.call('ZRANGE', used, 0, 0)[1]
  if not oldest then
    break
  end
  drop(oldest)
end
if ARGV[5] == '1' then
  redis.call('RENAME', staged, value)
end
redis.call('HSET', value, 'header', header)
redis.call('PEXPIRE', value, lifetime)
redis.call('ZADD', used, microseconds, value)
redis.call('HSET', sizes, value, size)
redis.call('HINCRBY', sizes, 'total', size)
redis.call('ZADD', expiry, now + lifetime, value)
-- The indexes outlive the values.
for _, index in ipairs({ used, sizes, expiry }) do
  if redis.call('PTTL', index) < lifetime then
    redis.call('PEXPIRE', index, lifetime + 60000)
  end
end
return 1
