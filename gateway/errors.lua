-- Sends the error document of the server, which is the last detail of the google.rpc.Status that the transcoder writes as
-- JSON, and gives the dialect's form to statuses without one. Bodies of other responses pass unchanged; streams are not read.

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
local STOPPED = "The model server is not available."

-- By the form of errors: the `type` of statuses, with those of all others below 500 and from there on; and the document.
local TYPES = {
  openai = {
    [401] = "authentication_error", [403] = "permission_error", [429] = "rate_limit_error", [504] = "timeout_error",
    client = "invalid_request_error", server = "server_error",
  },
  anthropic = {
    [401] = "authentication_error", [403] = "permission_error", [404] = "not_found_error", [413] = "request_too_large",
    [429] = "rate_limit_error", [503] = "overloaded_error", [504] = "timeout_error",
    client = "invalid_request_error", server = "api_error",
  },
}
local DOCUMENTS = {
  openai = '{"error":{"message":"%s","type":"%s","param":null,"code":"%s"}}',
  anthropic = '{"type":"error","error":{"message":"%s","type":"%s","param":null,"code":"%s"}}',
  -- google.rpc.Status, of typed methods.
  typed = '{"code":14,"message":"%s","details":[]}',
}

local function document(form, message, status, code)
  local types = TYPES[form] or {}
  local kind = types[status] or (status < 500 and types.client or types.server)
  return string.format(DOCUMENTS[form], message, kind, code)
end

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
local function error_document(form, json, status, grpc_status)
  local _, document_at = json:find(DOCUMENT, 1, true)
  if document_at then return json:sub(document_at + 1, -#STATUS_END - 1) end
  local code, after_code = json:match('^{"code":(%d+)()')
  local message_at = json:match('^,"message":()', after_code)
  local reason = CODES[tonumber(code or grpc_status)] or "internal_error"
  local message = message_at and read_string(json, message_at) or reason
  return document(form, message, status, reason)
end

local UNAUTHENTICATED = 401

local function remove_grpc(headers)
  for _, name in ipairs(GRPC_HEADERS) do headers:remove(name) end
end

-- The form of errors, if it is not OpenAI's, and the id of Anthropic's requests (requests.lua).
local ERROR = "glimpse.error"

-- Where Anthropic's clients look for the id of their request.
local ANTHROPIC_REQUEST_ID = "request-id"

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
  local connect, found = metadata:get(CONNECT), metadata:get(ERROR) or {}
  local form = found.form or "openai"
  if found.request_id then headers:replace(ANTHROPIC_REQUEST_ID, found.request_id) end
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
  -- Envoy's own errors already have their form.
  if json:find('^{"error":') then return end
  local trailers = handle:trailers()
  headers = handle:headers()
  local status = tonumber(headers:get(HTTP_STATUS) or trailers and trailers:get(HTTP_STATUS) or headers:get(":status"))
  headers:remove(HTTP_STATUS)
  local retry_after = trailers and trailers:get(RETRY_AFTER)
  if retry_after then headers:replace(RETRY_AFTER, retry_after) end
  if trailers then remove_grpc(trailers) end
  local error = form == "typed" and json or error_document(form, json, status, grpc_status)
  if status == CANCELLED then error = document(form, STOPPED, 503, "unavailable") end
  headers:replace(":status", tostring(status == CANCELLED and 503 or status))
  headers:replace("content-type", "application/json")
  if status == UNAUTHENTICATED then headers:replace("www-authenticate", "Bearer") end
  headers:replace("content-length", tostring(handle:body():setBytes(error)))
end
