-- Quotas of one tenant, counted over all servers: token buckets, each as large as what grows back in a minute.
-- KEYS: the tenant's buckets, a hash: what is used of each, and when that was calculated, in microseconds; and its requests
-- in progress on one server, a sorted set by when they stop to count unless they are renewed, in microseconds.
-- ARGV: the most requests in progress (0: they are not counted), the request's name, for how long it counts, in
-- milliseconds; then for each bucket its name, what grows back in a minute, how much must be left, and how much is used.
-- Uses all amounts and counts the request if each bucket has left what it must and a request may run; otherwise nothing.
-- Returns an empty array, or the position of the first bucket that has too little, from 1, and the microseconds until it
-- has enough; 0 and 0 if too many requests run.
local buckets, running = KEYS[1], KEYS[2]
local most, request, milliseconds = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local minute = 60000000
if most > 0 then
  redis.call('ZREMRANGEBYSCORE', running, '-inf', now)
  if redis.call('ZCARD', running) >= most then
    return { 0, 0 }
  end
end
local changes, full_in = {}, 0
for first = 4, #ARGV, 4 do
  local name = ARGV[first]
  local per_minute, needed, amount = tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3])
  local found = redis.call('HMGET', buckets, name, name .. '-time')
  local used, since = tonumber(found[1] or 0), tonumber(found[2] or now)
  used = math.max(0, used - math.max(0, now - since) * per_minute / minute)
  local missing = used + math.min(needed, per_minute) - per_minute
  if needed > 0 and missing > 0 then
    return { first / 4, math.ceil(missing * minute / per_minute) }
  end
  for _, change in ipairs({ name, used + amount, name .. '-time', now }) do
    table.insert(changes, change)
  end
  full_in = math.max(full_in, math.ceil((used + amount) * 60000 / per_minute))
end
if most > 0 then
  redis.call('ZADD', running, now + 1000 * milliseconds, request)
  redis.call('PEXPIRE', running, milliseconds)
end
-- A bucket that is full need not be known.
if full_in == 0 then
  return {}
end
redis.call('HSET', buckets, unpack(changes))
if redis.call('PTTL', buckets) < full_in + 1000 then
  redis.call('PEXPIRE', buckets, full_in + 1000)
end
return {}
