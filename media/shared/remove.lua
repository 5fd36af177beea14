-- Removes a value. Returns whether it existed (1 or 0).
-- KEYS: the value, the area's indexes, as in commit.lua, and what was announced, with its times.
-- ARGV: what replicas are told was removed (may be empty), how long they are told, in ms, and whether they are told even if
-- it did not exist (1 or 0).
local value, used, sizes, expiry, tenants, removals = unpack(KEYS)
local tenant = string.match(value, ':([^:]*):[^:]*$')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bytes = redis.call('HGET', sizes, value)
if bytes then
  redis.call('HDEL', sizes, value)
  redis.call('HINCRBY', sizes, 'total', -tonumber(bytes))
  if redis.call('HINCRBY', tenants, tenant, -tonumber(bytes)) <= 0 then
    redis.call('HDEL', tenants, tenant)
  end
end
redis.call('ZREM', used .. ':' .. tenant, value)
redis.call('ZREM', expiry, value)
local existed = redis.call('DEL', value)
if ARGV[1] ~= '' and (existed == 1 or ARGV[3] == '1') then
  redis.call('ZADD', removals, now, ARGV[1])
  redis.call('ZREMRANGEBYSCORE', removals, '-inf', now - tonumber(ARGV[2]))
  redis.call('PEXPIRE', removals, ARGV[2])
end
return existed
