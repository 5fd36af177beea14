-- Sends the error document of the server, which is the last detail of the google.rpc.Status that the transcoder writes as
-- JSON, and gives OpenAI's form to statuses without one. Other responses pass unchanged; streams are not read.

-- What precedes the document. Text of clients has its quotes escaped.
local DOCUMENT = '{"@type":"type.googleapis.com/google.protobuf.Struct","value":'
local STATUS_END = "}]}"

-- Trailing metadata with the HTTP status, for errors whose status does not follow from the gRPC code.
local HTTP_STATUS = "x-http-status"

-- Trailing metadata with the seconds after which a retry makes sense, of errors that pass.
local RETRY_AFTER = "retry-after"

-- Of gRPC, for gRPC clients and for Envoy. Removed from REST responses.
local GRPC_HEADERS = {
  "grpc-accept-encoding", "grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-retry-pushback-ms",
  "endpoint-load-metrics-bin",
}

local CODES = {
  [2] = "unknown", [3] = "invalid_argument", [4] = "deadline_exceeded", [5] = "not_found",
  [6] = "already_exists", [7] = "permission_denied", [8] = "resource_exhausted", [9] = "failed_precondition",
  [10] = "aborted", [11] = "out_of_range", [12] = "unimplemented", [13] = "internal", [14] = "unavailable",
  [15] = "data_loss", [16] = "unauthenticated",
}

-- The transcoder's for CANCELLED. The client is still there: the server cancelled the call, because it stops.
local CANCELLED = 499
local STOPPED = '{"error":{"message":"The model server is not available.","type":"server_error","param":null,"code":"unavailable"}}'

-- The same for typed methods, whose errors are google.rpc.Status.
local STOPPED_STATUS = '{"code":14,"message":"The model server is not available.","details":[]}'

local TYPES = { [401] = "authentication_error", [403] = "permission_error", [429] = "rate_limit_error", [504] = "timeout_error" }

-- Returns the string that begins with the quote at `start`, without quotes, and the position after it.
local function read_string(json, start)
  local position = start + 1
  while true do
    local mark = json:find('["\\]', position)
    if not mark then return nil, #json + 1 end
    if json:sub(mark, mark) == '"' then return json:sub(start + 1, mark - 1), mark + 1 end
    position = mark + 2
  end
end

-- Returns the document of the server, or the words of a status that has none: of the gRPC library, or of Envoy.
local function openai_error(json, status, grpc_status)
  local _, document_at = json:find(DOCUMENT, 1, true)
  if document_at then return json:sub(document_at + 1, -#STATUS_END - 1) end
  local code, after_code = json:match('^{"code":(%d+)()')
  local message_at = json:match('^,"message":()', after_code)
  local reason = CODES[tonumber(code or grpc_status)] or "internal_error"
  local message = message_at and read_string(json, message_at) or reason
  local kind = TYPES[status] or (status < 500 and "invalid_request_error" or "server_error")
  return string.format('{"error":{"message":"%s","type":"%s","param":null,"code":"%s"}}', message, kind, reason)
end

local UNAUTHENTICATED = 401

local function remove_grpc(headers)
  for _, name in ipairs(GRPC_HEADERS) do headers:remove(name) end
end

-- Of typed methods as JSON (requests.lua).
local TYPED = "glimpse.typed"

-- Of requests in Connect's protocol: how their messages are encoded (requests.lua).
local CONNECT = "glimpse.connect"

local CONNECT_CODES = {
  [401] = "unauthenticated", [403] = "permission_denied", [404] = "not_found", [408] = "deadline_exceeded",
  [413] = "resource_exhausted", [429] = "resource_exhausted", [431] = "resource_exhausted", [503] = "unavailable",
  [504] = "deadline_exceeded",
}

-- The filter for Connect copies messages, whose encoding is gRPC's, and other metadata.
local function clean_status(headers)
  local message = headers:get("grpc-message")
  if message then
    local text = message:gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)
    headers:replace("grpc-message", (text:gsub("[%z\r\n]", " ")))
  end
  headers:remove("endpoint-load-metrics-bin")
end

-- Gives an error of Envoy's own Connect's form.
local function write_connect_error(handle)
  local status, body = tonumber(handle:headers():get(":status")), handle:body(true)
  local text = body:getBytes(0, body:length())
  local message_at = text:match('"message":()')
  local message = message_at and read_string(text, message_at) or text:gsub('[%c"\\]', " ")
  local code = CONNECT_CODES[status] or (status < 500 and "invalid_argument" or "internal")
  local headers = handle:headers()
  headers:replace("content-type", "application/json")
  local error = string.format('{"code":"%s","message":"%s"}', code, message)
  headers:replace("content-length", tostring(handle:body():setBytes(error)))
end

-- The filter for Connect, which comes after this one, makes Connect's response of gRPC's.
local function prepare_connect(handle, codec)
  local headers = handle:headers()
  if not (headers:get("content-type") or ""):find("^application/grpc") then return write_connect_error(handle) end
  headers:replace("content-type", "application/grpc+" .. codec)
  headers:remove("grpc-accept-encoding")
  clean_status(headers)
  local trailers = handle:trailers()
  if trailers then clean_status(trailers) end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local metadata = handle:streamInfo():dynamicMetadata()
  local connect, is_typed = metadata:get(CONNECT), metadata:get(TYPED) ~= nil
  if connect then return prepare_connect(handle, connect.codec) end
  if (headers:get("content-type") or ""):find("^application/grpc") and headers:get(":status") == "200" then return end
  local grpc_status = headers:get("grpc-status")
  remove_grpc(headers)
  if tonumber(headers:get(":status")) < 400 then
    -- Only the script waits for the trailers; the body passes.
    local trailers = handle:trailers()
    if trailers then remove_grpc(trailers) end
    return
  end

  -- Waits for the whole body and the trailers. Objects obtained from the handle before are invalid afterwards.
  local body = handle:body(true)
  local json = body:getBytes(0, body:length())
  -- Envoy's own errors already have OpenAI's format.
  if json:find('^{"error":') then return end
  local trailers = handle:trailers()
  headers = handle:headers()
  local status = tonumber(headers:get(HTTP_STATUS) or trailers and trailers:get(HTTP_STATUS) or headers:get(":status"))
  headers:remove(HTTP_STATUS)
  local retry_after = trailers and trailers:get(RETRY_AFTER)
  if retry_after then headers:replace(RETRY_AFTER, retry_after) end
  if trailers then remove_grpc(trailers) end
  local error = is_typed and json or openai_error(json, status, grpc_status)
  if status == CANCELLED then error = is_typed and STOPPED_STATUS or STOPPED end
  headers:replace(":status", tostring(status == CANCELLED and 503 or status))
  headers:replace("content-type", "application/json")
  if status == UNAUTHENTICATED then headers:replace("www-authenticate", "Bearer") end
  headers:replace("content-length", tostring(handle:body():setBytes(error)))
end
