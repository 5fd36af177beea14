-- Returns a value's header, or nil, and marks the value as recently used.
-- KEYS: the value, and the area's indexes, as in commit.lua. ARGV: the least lifetime that it gets, in ms.
local value, used, sizes, expiry, tenants = unpack(KEYS)
local lifetime = tonumber(ARGV[1])
local header = redis.call('HGET', value, 'header')
if not header then
  return nil
end
local used_by_tenant = used .. ':' .. string.match(value, ':([^:]*):[^:]*$')
local time = redis.call('TIME')
local microseconds = time[1] * 1000000 + time[2]
local now = math.floor(microseconds / 1000)
redis.call('ZADD', used_by_tenant, 'XX', microseconds, value)
if redis.call('PTTL', value) < lifetime then
  redis.call('PEXPIRE', value, lifetime)
  redis.call('ZADD', expiry, 'XX', now + lifetime, value)
  for _, index in ipairs({ used_by_tenant, sizes, expiry, tenants }) do
    if redis.call('PTTL', index) < lifetime then
      redis.call('PEXPIRE', index, lifetime + 60000)
    end
  end
end
return header
