-- Answers the gateway's own question: by which key is this request routed? The body is the beginning of a request's body,
-- JSON or a gRPC frame; the answer is the header KEY. It is `prompt_cache_key` or, without one, the key of the stored
-- response that the request is about or goes on from, or a digest of what the turns of a conversation share: the salt, the
-- system text, and the first media of the first other message, or its text if it has no media. A request without any has
-- the key NONE.

local KEY, NONE = "x-prompt-cache-key", "-"

-- A key is sent as it is if the server's clients could send it in a header. Others are sent as their digest.
local MAX_KEY_CHARACTERS = 128

-- Of a text or a media part. Longer ones rarely differ only after it; if they do, they merely share a replica.
local DIGESTED_BYTES = 8192

-- Bounds the time for a body that consists of many small values.
local MAX_STEPS = 50000
local steps

local function step()
  steps = steps - 1
  if steps < 0 then error("too many values", 0) end
end

local function digest(number, text)
  for position = 1, #text do
    number = (number * 257 + text:byte(position) + 1) % 4294967291
  end
  return number
end

local function key_or_digest(key)
  if #key <= MAX_KEY_CHARACTERS and key:find("^[!-~]+$") and not key:find("\\", 1, true) and key ~= NONE then return key end
  return string.format("key-%.0f-%d", digest(0, key), #key)
end

-- The server ends the ids of responses with their keys (server/dialects/responses/stored.py).
local function key_of_response(id)
  return id and id:match("^resp_.*%-%-([%w-]+)$")
end

local BACKSLASH = ("\\"):byte()

-- JSON. Positions are those of a first character. A text that ends too early ends every loop.

local function past_space(json, position)
  return json:find("[^ \t\r\n]", position) or #json + 1
end

-- Returns the position of the quote that ends the string whose quote is at `start`.
local function string_end(json, start)
  local position = start
  repeat
    step()
    position = json:find('"', position + 1, true)
    if not position then return nil end
    local before = position
    while json:byte(before - 1) == BACKSLASH do before = before - 1 end
  until (position - before) % 2 == 0
  return position
end

local function read_string(json, start)
  if json:sub(start, start) ~= '"' then return nil end
  local last = string_end(json, start)
  return last and json:sub(start + 1, last - 1)
end

local function value_end(json, start)
  local first = json:sub(start, start)
  if first == '"' then return string_end(json, start) end
  if first ~= "{" and first ~= "[" then
    local after = json:find("[,}%]]", start)
    return after and after - 1
  end
  local depth, position = 0, start
  repeat
    step()
    local mark = json:sub(position, position)
    if mark == '"' then
      position = string_end(json, position)
      if not position then return nil end
    else
      depth = depth + ((mark == "{" or mark == "[") and 1 or -1)
    end
    if depth == 0 then return position end
    position = json:find('["%[%]{}]', position + 1)
  until not position
end

-- Returns the beginning of a value's JSON text.
local function digested(json, start)
  local last = value_end(json, start) or #json
  return json:sub(start, math.min(last, start + DIGESTED_BYTES - 1))
end

-- Iterates over an array's elements, by position.
local function elements(json, start)
  local value, is_first = nil, true
  return function()
    step()
    local last = is_first and (json:sub(start, start) == "[" and start) or value and value_end(json, value)
    if not last then return nil end
    local position = past_space(json, last + 1)
    if not is_first and json:sub(position, position) == "," then position = past_space(json, position + 1) end
    is_first, value = false, position
    local mark = json:sub(position, position)
    if mark == "" or mark == "]" then return nil end
    return position
  end
end

-- Iterates over an object's members: names and positions of values.
local function members(json, start)
  local value, is_first = nil, true
  return function()
    step()
    local last = is_first and (json:sub(start, start) == "{" and start) or value and value_end(json, value)
    if not last then return nil end
    local position = past_space(json, last + 1)
    if not is_first and json:sub(position, position) == "," then position = past_space(json, position + 1) end
    is_first, value = false, nil
    local name_end = json:sub(position, position) == '"' and string_end(json, position)
    if not name_end then return nil end
    local colon = past_space(json, name_end + 1)
    if json:sub(colon, colon) ~= ":" then return nil end
    value = past_space(json, colon + 1)
    return json:sub(position + 1, name_end - 1), value
  end
end

local function first_media_in_json(json, content)
  for part in elements(json, content) do
    local is_text = false
    for name in members(json, part) do
      if name == "text" then is_text = true break end
    end
    if not is_text then return digested(json, part) end
  end
end

-- In the JSON of REST, and in protobuf's.
local SYSTEM_ROLES = { system = true, developer = true, ROLE_SYSTEM = true, ROLE_DEVELOPER = true }

-- Anthropic's and the Responses API's documents have the system text beside the messages, and the latter's may be a text.
local function json_beginning(json, found)
  local number, num_read = digest(0, found.salt or ""), 0
  if found.system then number = digest(number, digested(json, found.system)) end
  if json:sub(found.messages, found.messages) == '"' then return digest(number, digested(json, found.messages)) end
  for message in elements(json, found.messages) do
    local role, content
    for name, value in members(json, message) do
      if name == "role" then role = read_string(json, value) end
      if name == "content" then content = value end
    end
    if content then
      num_read = num_read + 1
      local is_system = SYSTEM_ROLES[role]
      number = digest(number, is_system and digested(json, content) or first_media_in_json(json, content) or digested(json, content))
      if not is_system then break end
    end
  end
  return num_read > 0 and number
end

local function find_members(json, found)
  for name, value in members(json, past_space(json, 1)) do
    if name == "messages" or name == "input" then found.messages = value end
    if name == "system" or name == "instructions" then found.system = value end
    if name == "cache_salt" or name == "cacheSalt" then found.salt = read_string(json, value) end
    if name == "prompt_cache_key" or name == "promptCacheKey" then found.key = read_string(json, value) end
    if name == "previous_response_id" then found.previous = key_of_response(read_string(json, value)) end
  end
end

local function json_key(json)
  local found = {}
  -- After too many values the rest is not read, as if the text ended there.
  pcall(find_members, json, found)
  if found.key and found.key ~= "" then return key_or_digest(found.key) end
  if found.previous then return found.previous end
  steps = MAX_STEPS
  local number = found.messages and json_beginning(json, found)
  return number and string.format("json-%.0f", number)
end

-- Protobuf. The numbers of fields come from the API's descriptors.

local function varint(data, position)
  local value, factor = 0, 1
  while true do
    local byte = data:byte(position)
    if not byte then return nil end
    value, position = value + byte % 128 * factor, position + 1
    if byte < 128 then return value, position end
    factor = factor * 128
  end
end

-- Iterates over a message's fields: number, and either the range of its bytes or its number as the third value.
local function fields(data, first, last)
  local position = first
  return function()
    step()
    if not position or position > last then return nil end
    local tag, length
    tag, position = varint(data, position)
    if not tag then return nil end
    local kind, start = tag % 8, nil
    if kind == 0 then
      local value
      value, position = varint(data, position)
      return (tag - kind) / 8, nil, value
    end
    length = kind == 1 and 8 or kind == 5 and 4 or nil
    if kind == 2 then length, position = varint(data, position) end
    if not length then return nil end
    start, position = position, position + length
    return (tag - kind) / 8, start, math.min(position - 1, last)
  end
end

local function digested_range(data, first, last)
  return data:sub(first, math.min(last, first + DIGESTED_BYTES - 1))
end

-- Returns a message's role, its first media and the beginning of all its content.
local function read_message(data, first, last, numbers)
  local role, media, content = nil, nil, ""
  for number, start, value in fields(data, first, last) do
    if number == numbers.role then role = value end
    if number == numbers.content and start then
      if #content < DIGESTED_BYTES then content = content .. digested_range(data, start, value) end
      if not media then
        local is_text = false
        for part in fields(data, start, value) do is_text = is_text or part == numbers.text end
        media = not is_text and digested_range(data, start, value) or nil
      end
    end
  end
  return role, media, content
end

local function grpc_beginning(data, messages, number, numbers)
  for _, message in ipairs(messages) do
    local role, media, content = read_message(data, message[1], message[2], numbers)
    local is_system = role == numbers.system or role == numbers.developer
    number = digest(number, is_system and content or media or content)
    if not is_system then break end
  end
  return #messages > 0 and number
end

local function grpc_key(data, numbers)
  -- A frame has a flag, 1 if it is compressed, and a length of four bytes.
  if data:byte(1) ~= 0 then return nil end
  -- Connect's JSON. No message begins with this byte.
  if data:sub(6, 6) == "{" then return json_key(data:sub(6)) end
  local salt, messages = "", {}
  for number, start, last in fields(data, 6, #data) do
    if start and number == numbers.prompt_cache_key and last >= start then
      return key_or_digest(data:sub(start, last))
    elseif start and number == numbers.cache_salt then
      salt = data:sub(start, last)
    elseif start and number == numbers.messages then
      messages[#messages + 1] = { start, last }
    end
  end
  local number = grpc_beginning(data, messages, digest(0, salt), numbers)
  return number and string.format("grpc-%.0f", number)
end

function envoy_on_request(handle)
  steps = MAX_STEPS
  local path = handle:headers():get(":path")
  local numbers = handle:filterContext():get(path)
  local body = handle:body()
  local data = body and body:getBytes(0, body:length()) or ""
  -- Any failure means a body that the server will refuse, or one without a key.
  local found, key = pcall(numbers and grpc_key or json_key, data, numbers)
  key = found and key or key_of_response(path:match("/responses/([^/?]+)")) or NONE
  handle:respond({ [":status"] = "200", [KEY] = key }, "")
end
