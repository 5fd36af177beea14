-- Removes a value. Returns whether it existed (1 or 0).
-- KEYS: the value, the area's indexes, what was announced, with its times, and the clock.
-- ARGV: what replicas are told was removed (may be empty), how long they are told, in ms, whether they are told even if it did
-- not exist (1 or 0), and the latest time that the caller knows.
local value, indexes, removals = KEYS[1], { KEYS[2], KEYS[3], KEYS[4], KEYS[5] }, KEYS[6]
local existed = drop(value, indexes)
if ARGV[1] ~= '' and (existed == 1 or ARGV[3] == '1') then
  local now = next_time(KEYS[7], ARGV[4])
  redis.call('ZADD', removals, now, ARGV[1])
  redis.call('ZREMRANGEBYSCORE', removals, '-inf', now - 1000 * tonumber(ARGV[2]))
  redis.call('PEXPIRE', removals, ARGV[2])
end
return existed
