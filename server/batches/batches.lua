-- Changes batches, atomically. KEYS: what all their keys begin with. ARGV: what to do, and then what it takes.
local prefix, what = KEYS[1], ARGV[1]
local totals, open, ends = prefix .. 'totals', prefix .. 'open', prefix .. 'ends'
local parts = { 'input', 'output', 'error' }

local function of(id, part)
  return prefix .. id .. (part and ':' .. part or '')
end

local function of_tenant(namespace)
  return prefix .. 'of:' .. namespace
end

-- Counts bytes of a part of a batch.
local function count(id, part, bytes)
  local change = string.format('%d', bytes)
  redis.call('HINCRBY', of(id), part .. '_bytes', change)
  redis.call('HINCRBY', totals, 'bytes', change)
end

local function drop(id, part)
  count(id, part, -tonumber(redis.call('HGET', of(id), part .. '_bytes') or 0))
  redis.call('UNLINK', of(id, part))
end

local function remove(id)
  for _, part in ipairs(parts) do
    drop(id, part)
  end
  redis.call('ZREM', open, id)
  redis.call('ZREM', ends, id)
  redis.call('ZREM', of_tenant(redis.call('HGET', of(id), 'namespace') or ''), id)
  redis.call('DEL', of(id))
end

local function has_room(bytes, most)
  return tonumber(redis.call('HGET', totals, 'bytes') or 0) + bytes <= tonumber(most)
end

-- Stores a batch. Returns 1; 0 if there is no room for it; -1 if what was staged has expired.
local function add(id, namespace, created, last, record, staged, bytes, most)
  if redis.call('EXISTS', staged) == 0 then
    return -1
  end
  if not has_room(tonumber(bytes), most) then
    redis.call('DEL', staged)
    return 0
  end
  redis.call('RENAME', staged, of(id, 'input'))
  redis.call('PERSIST', of(id, 'input'))
  redis.call('HSET', of(id), 'namespace', namespace, 'record', record, 'version', 1)
  redis.call('ZADD', open, created, id)
  redis.call('ZADD', ends, last, id)
  redis.call('ZADD', of_tenant(namespace), created, id)
  count(id, 'input', tonumber(bytes))
  return 1
end

-- Replaces the record that has this version. Returns 1, or 0 if there is no such one.
local function change(id, version, record, is_open, last)
  if redis.call('HGET', of(id), 'version') ~= version then
    return 0
  end
  redis.call('HSET', of(id), 'record', record)
  redis.call('HINCRBY', of(id), 'version', 1)
  redis.call('ZADD', ends, last, id)
  if is_open == '0' then
    redis.call('ZREM', open, id)
    drop(id, 'input')
  end
  return 1
end

-- Stores the result of a line that has none. Returns 1; 0 if there is no room for it; -1 if the batch is not open.
local function put(id, line, part, data, most)
  if not redis.call('ZSCORE', open, id) then
    return -1
  end
  if not has_room(#data, most) then
    return 0
  end
  if redis.call('HEXISTS', of(id, 'output'), line) == 0 and redis.call('HEXISTS', of(id, 'error'), line) == 0 then
    redis.call('HSET', of(id, part), line, data)
    redis.call('HINCRBY', of(id), part, 1)
    if tonumber(line) > tonumber(redis.call('HGET', of(id), 'last_line') or 0) then
      redis.call('HSET', of(id), 'last_line', line)
    end
    count(id, part, #data)
  end
  return 1
end

if what == 'add' then
  return add(unpack(ARGV, 2))
elseif what == 'change' then
  return change(unpack(ARGV, 2))
elseif what == 'put' then
  return put(unpack(ARGV, 2))
elseif what == 'drop' then
  if redis.call('EXISTS', of(ARGV[2])) == 1 then
    drop(ARGV[2], ARGV[3])
  end
elseif what == 'remove ended' then
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', ARGV[2], 'LIMIT', 0, 16)) do
    remove(id)
  end
elseif what == 'purge' then
  for _, id in ipairs(redis.call('ZRANGE', of_tenant(ARGV[2]), 0, -1)) do
    remove(id)
  end
end
return 0
