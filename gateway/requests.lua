-- Checks and cleans the headers of every request before any other filter sees them.

-- The server accepts the same ids (server/rpc/context.py).
local MAX_ID_CHARACTERS = 128

-- Holds the caller's id, so that Envoy generates one in any case.
local CALLERS_ID = "x-glimpse-callers-request-id"

local LOCAL_HOSTS = { ["localhost"] = true, ["127.0.0.1"] = true, ["[::1]"] = true }

-- Returns "[::1]" for "[::1]:8080".
local function host_of(authority)
  return (authority:lower():gsub(":%d*$", ""))
end

-- Names below localhost are this machine's too: applications made with Tauri have http://tauri.localhost.
local function is_local(host)
  return LOCAL_HOSTS[host] or host:find("^[%w.-]+%.localhost$") ~= nil
end

local function contains(list, value)
  for _, each in ipairs(list or {}) do
    if each == value then return true end
  end
  return false
end

local function is_allowed_origin(checks, origin, authority)
  if checks:get("any_origin") or contains(checks:get("origins"), origin) then return true end
  local host = origin:match("^https?://([^/]+)$")
  if not host then return contains(checks:get("app_schemes"), origin:match("^([%w-]+)://")) end
  return host == authority or (checks:get("local_origins") and is_local(host_of(host)))
end

-- Restores the caller's id if the server would accept it too. Otherwise the generated one stays.
local function choose_request_id(headers)
  local id = headers:get(CALLERS_ID)
  headers:remove(CALLERS_ID)
  if id and #id <= MAX_ID_CHARACTERS and id:find("^[!-~]+$") then headers:replace("x-request-id", id) end
end

-- gRPC metadata is ASCII. The server's gRPC library would log other values, which may be secret.
local function remove_other_than_ascii(headers)
  local names = {}
  for name, value in pairs(headers) do
    if value:find("[^ -~\t]") then names[#names + 1] = name end
  end
  for _, name in ipairs(names) do
    if name:sub(1, 1) ~= ":" then headers:remove(name) end
  end
end

local CONNECT_TYPES = {
  ["application/proto"] = "proto", ["application/connect+proto"] = "proto",
  ["application/json"] = "json", ["application/connect+json"] = "json",
}

-- Completes a request in Connect's protocol. The server cannot see content types: a header says how its messages are encoded
-- (server/rpc/json_messages.py), and errors.lua reads it from the metadata. Unary requests need a version, which other
-- programs than Connect's leave out.
local function complete_connect(handle, headers)
  local content_type = (headers:get("content-type") or ""):match("^[^;%s]*")
  local codec = CONNECT_TYPES[content_type]
  if not codec or not headers:get(":path"):find("^/glimpse%.v1%.") then return end
  headers:replace("content-type", content_type)
  if not content_type:find("+", 1, true) then headers:replace("connect-protocol-version", "1") end
  headers:replace("x-glimpse-codec", codec)
  handle:streamInfo():dynamicMetadata():set("glimpse.connect", "codec", codec)
end

-- OpenAI's and Anthropic's APIs have paths in common. Anthropic's clients say which version of it they speak, and write lists
-- with brackets.
local function choose_dialect(headers)
  local path = headers:get(":path")
  local name = path:match("^/v1/(%l+)") or path:match("^/(%l+)")
  if headers:get("anthropic-version") and (name == "models" or name == "files") then
    headers:replace(":path", "/anthropic" .. path:gsub("%[%]=", "="):gsub("%%5[Bb]%%5[Dd]=", "="))
  end
end

-- Tells errors.lua whose errors have another form than OpenAI's, and the id of Anthropic's requests; local_replies.py has the
-- same conditions. Requests of typed methods as JSON have the same header too (server/rpc/json_messages.py).
local function mark_form(handle, headers)
  local path, form = headers:get(":path"), nil
  if path:find("^/glimpse/v1/") then
    form = "typed"
    headers:replace("x-glimpse-codec", "http")
  elseif headers:get("anthropic-version") or path:find("^/messages") or path:find("^/v1/messages") or path:find("^/anthropic/") then
    form = "anthropic"
  end
  local metadata = handle:streamInfo():dynamicMetadata()
  if form then metadata:set("glimpse.error", "form", form) end
  if form == "anthropic" then metadata:set("glimpse.error", "request_id", headers:get("x-request-id")) end
end

-- Envoy and the server's gRPC library end an RPC when its deadline passes, within its body: clients would not hear why if the server
-- did so later. They get more time, and the server hears how much.
local GRACE_SECONDS = 3

local MILLISECONDS = { H = 3600000, M = 60000, S = 1000, m = 1, u = 0.001, n = 0.000001 }

local function extend_deadline(headers, timeout)
  local milliseconds = math.ceil(tonumber(timeout:sub(1, -2)) * MILLISECONDS[timeout:sub(-1)]) + 1000 * GRACE_SECONDS
  if milliseconds < 100000000 then
    headers:replace("grpc-timeout", string.format("%dm", milliseconds))
    headers:replace("x-glimpse-deadline-grace", tostring(GRACE_SECONDS))
  end
end

-- Headers of REST requests that the server or its gRPC library could only misread.
local function check_rest(headers)
  local encoding, timeout = headers:get("content-encoding"), headers:get("grpc-timeout")
  if encoding and encoding:lower() ~= "identity" then
    return 415, "'Content-Encoding': expected a body that is not compressed, got '" .. encoding:sub(1, 100) .. "'"
  end
  if timeout and not (#timeout <= 9 and timeout:find("^%d+[HMSmun]$")) then
    return 400, "'grpc-timeout': expected 1 to 8 digits and a unit (H, M, S, m, u or n), got '" .. timeout:sub(1, 100) .. "'"
  end
  if timeout then extend_deadline(headers, timeout) end
end

-- Returns the status and the message of a refusal.
local function check(handle)
  local headers, checks = handle:headers(), handle:filterContext()
  choose_request_id(headers)
  remove_other_than_ascii(headers)
  complete_connect(handle, headers)
  choose_dialect(headers)
  mark_form(handle, headers)
  local authority = headers:get(":authority") or ""
  local host, origin = host_of(authority), headers:get("origin")
  if checks:get("hosts") and not contains(checks:get("hosts"), host) then
    return 403, "'Host': expected a name of this machine, got '" .. host:sub(1, 100) .. "'; allow it with --allowed-host"
  end
  if origin and not is_allowed_origin(checks, origin, authority) then
    return 403, "'Origin': expected an allowed origin, got '" .. origin:sub(1, 100) .. "'; allow it with --allow-origin"
  end
  local content_type = headers:get("content-type") or ""
  local is_grpc = content_type == "application/grpc" or content_type:find("^application/grpc[+;]")
  if is_grpc and handle:streamInfo():protocol():find("^HTTP/1") then
    -- Envoy turns it into the gRPC status UNIMPLEMENTED.
    return 404, "gRPC requires HTTP/2. Over HTTP/1.1 use grpc-web or REST."
  end
  local codec = headers:get("x-glimpse-codec") or "http"
  if not content_type:find("^application/grpc") and codec == "http" then return check_rest(headers) end
end

function envoy_on_request(handle)
  -- Envoy would let the request pass if the script failed.
  local passed, status, message = pcall(check, handle)
  if not passed then
    handle:logErr(status)
    status, message = 500, "The gateway could not check the request."
  end
  if status then handle:respond({ [":status"] = tostring(status) }, message) end
end
