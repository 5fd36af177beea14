-- Makes a value visible, after removing what expired and what exceeds a limit: of the tenant that has most, or of the value's
-- own tenant if that exceeds its own limit, the least recently used values.
-- KEYS: the staged chunks, the value, and the area's indexes: times of use (of each tenant: a colon and the tenant follow),
-- sizes, times of expiry, tenants' sizes.
-- ARGV: the header, the size in bytes, the lifetime in ms, the area's limit in bytes, the tenant's, whether chunks are staged
-- (1 or 0).
-- Returns 1, or 0 if the value alone exceeds a limit, or -1 if the staged chunks have expired.
local staged, value, used, sizes, expiry, tenants = unpack(KEYS)
local header, size, lifetime, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local own_limit, is_staged = tonumber(ARGV[5]), ARGV[6] == '1'
local time = redis.call('TIME')
local microseconds = time[1] * 1000000 + time[2]
local now = math.floor(microseconds / 1000)

local function tenant_of(key)
  return string.match(key, ':([^:]*):[^:]*$')
end

local function drop(key)
  local bytes = redis.call('HGET', sizes, key)
  local tenant = tenant_of(key)
  redis.call('DEL', key)
  redis.call('ZREM', used .. ':' .. tenant, key)
  redis.call('ZREM', expiry, key)
  redis.call('HDEL', sizes, key)
  if bytes then
    redis.call('HINCRBY', sizes, 'total', -tonumber(bytes))
    if redis.call('HINCRBY', tenants, tenant, -tonumber(bytes)) <= 0 then
      redis.call('HDEL', tenants, tenant)
    end
  end
end

local function drop_oldest(tenant)
  local oldest = redis.call('ZRANGE', used .. ':' .. tenant, 0, 0)[1]
  if oldest then
    drop(oldest)
  end
  return oldest
end

local own = tenant_of(value)

local function largest()
  local most, found = -1, nil
  local all = redis.call('HGETALL', tenants)
  for first = 1, #all, 2 do
    local tenant, bytes = all[first], tonumber(all[first + 1])
    if tenant == own then
      bytes = bytes + size
    end
    if bytes > most then
      most, found = bytes, tenant
    end
  end
  return found
end

if is_staged and redis.call('EXISTS', staged) == 0 then
  return -1
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, 1000)) do
  drop(key)
end
drop(value)
if size > math.min(limit, own_limit) then
  redis.call('DEL', staged)
  return 0
end
while tonumber(redis.call('HGET', tenants, own) or 0) + size > own_limit and drop_oldest(own) do
end
while tonumber(redis.call('HGET', sizes, 'total') or 0) + size > limit do
  local tenant = largest()
  if not (tenant and drop_oldest(tenant)) then
    break
  end
end
if is_staged then
  redis.call('RENAME', staged, value)
end
redis.call('HSET', value, 'header', header)
redis.call('PEXPIRE', value, lifetime)
redis.call('ZADD', used .. ':' .. own, microseconds, value)
redis.call('HSET', sizes, value, size)
redis.call('HINCRBY', sizes, 'total', size)
redis.call('HINCRBY', tenants, own, size)
redis.call('ZADD', expiry, now + lifetime, value)
-- The indexes outlive the values.
for _, index in ipairs({ used .. ':' .. own, sizes, expiry, tenants }) do
  if redis.call('PTTL', index) < lifetime then
    redis.call('PEXPIRE', index, lifetime + 60000)
  end
end
return 1
