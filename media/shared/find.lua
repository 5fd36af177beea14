-- Returns a value's header, or nil, and marks the value as recently used.
-- KEYS: the value, and the area's indexes. ARGV: the least lifetime that it gets, in ms.
local value, indexes = KEYS[1], { KEYS[2], KEYS[3], KEYS[4], KEYS[5] }
local used, _, expiry = unpack(indexes)
local lifetime = tonumber(ARGV[1])
local header = redis.call('HGET', value, 'header')
if not header then
  return nil
end
local time = redis.call('TIME')
local microseconds = time[1] * 1000000 + time[2]
redis.call('ZADD', used .. ':' .. tenant_of(value), 'XX', microseconds, value)
if redis.call('PTTL', value) < lifetime then
  redis.call('PEXPIRE', value, lifetime)
  redis.call('ZADD', expiry, 'XX', math.floor(microseconds / 1000) + lifetime, value)
  keep(value, indexes, lifetime)
end
return header
