-- Returns a value's header, or nil, and marks the value as recently used.
-- KEYS: the value, and the area's times of use, sizes and times of expiry. ARGV: the least lifetime that it gets, in ms.
local value, used, sizes, expiry = unpack(KEYS)
local lifetime = tonumber(ARGV[1])
local header = redis.call('HGET', value, 'header')
if not header then
  return nil
end
local time = redis.call('TIME')
local microseconds = time[1] * 1000000 + time[2]
local now = math.floor(microseconds / 1000)
redis.call('ZADD', used, 'XX', microseconds, value)
if redis.call('PTTL', value) < lifetime then
  redis.call('PEXPIRE', value, lifetime)
  redis.call('ZADD', expiry, 'XX', now + lifetime, value)
  for _, index in ipairs({ used, sizes, expiry }) do
    if redis.call('PTTL', index) < lifetime then
      redis.call('PEXPIRE', index, lifetime + 60000)
    end
  end
end
return header
