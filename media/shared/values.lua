-- What the scripts share: it precedes each of them. `indexes` are an area's: times of use (of each tenant: a colon and the
-- tenant follow), sizes, times of expiry, and tenants by their sizes.

local function tenant_of(value)
  return string.match(value, ':([^:]*):[^:]*$')
end

-- Removes a value, and those that it alone refers to. Returns whether it existed (1 or 0).
local function drop(value, indexes)
  local used, sizes, expiry, shares = unpack(indexes)
  local tenant, bytes = tenant_of(value), redis.call('HGET', sizes, value)
  if bytes then
    redis.call('HDEL', sizes, value)
    redis.call('HINCRBY', sizes, 'total', -tonumber(bytes))
    if tonumber(redis.call('ZINCRBY', shares, -tonumber(bytes), tenant)) <= 0 then
      redis.call('ZREM', shares, tenant)
    end
  end
  redis.call('ZREM', used .. ':' .. tenant, value)
  redis.call('ZREM', expiry, value)
  local others = redis.call('HGET', sizes, 'refers to:' .. value)
  redis.call('HDEL', sizes, 'refers to:' .. value, 'referring:' .. value)
  for other in string.gmatch(others or '', '[^\n]+') do
    if redis.call('HINCRBY', sizes, 'referring:' .. other, -1) <= 0 then
      drop(other, indexes)
    end
  end
  return redis.call('DEL', value)
end

-- Makes the indexes outlive a value.
local function keep(value, indexes, lifetime)
  local used, sizes, expiry, shares = unpack(indexes)
  for _, index in ipairs({ used .. ':' .. tenant_of(value), sizes, expiry, shares }) do
    if redis.call('PTTL', index) < lifetime then
      redis.call('PEXPIRE', index, lifetime + 60000)
    end
  end
end

-- Returns the store's time in microseconds, which rises with each call: also where Redis lost what it had or has another clock
-- now. `least` is the latest time that the caller knows.
local function next_time(clock, least)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last, ahead = unpack(redis.call('HMGET', clock, 'last', 'ahead'))
  last, ahead = math.max(tonumber(last or 0), tonumber(least)), tonumber(ahead or 0)
  if now + ahead <= last then
    ahead = last + 1 - now
  end
  redis.call('HSET', clock, 'last', string.format('%.0f', now + ahead), 'ahead', string.format('%.0f', ahead))
  redis.call('EXPIRE', clock, 60 * 24 * 3600)
  return now + ahead
end
