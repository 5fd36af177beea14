-- Returns how many keys of a tenant's values there are in a range, the last used one first, and then the key and the header of
-- each that has not expired.
-- KEYS: the tenant's times of use. ARGV: the first and the last position.
local values = redis.call('ZREVRANGE', KEYS[1], ARGV[1], ARGV[2])
local found = { #values }
for _, value in ipairs(values) do
  local header = redis.call('HGET', value, 'header')
  if header then
    found[#found + 1] = value
    found[#found + 1] = header
  end
end
return found
