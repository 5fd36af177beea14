-- Refuses a request over HTTP/1.1 once its body has come: a client that sends its whole body before it reads would see a closed
-- connection and no error. Two filters have this script: one that drops what comes, and one after it that waits and answers.

-- Of larger bodies, the rest is kept by the second filter, which has no room for it: Envoy answers 413.
local MAX_BYTES = 134217728

local function drop(handle)
  local num_bytes = 0
  for piece in handle:bodyChunks() do
    num_bytes = num_bytes + piece:length()
    if num_bytes <= MAX_BYTES then piece:setBytes("") end
  end
end

function envoy_on_request(handle)
  -- What is obtained from the handle is invalid after a wait.
  local refusal, waits = handle:filterContext(), handle:streamInfo():protocol():find("^HTTP/1") ~= nil
  local status, allow, body = refusal:get("status"), refusal:get("allow"), refusal:get("body")
  if waits and not status then
    drop(handle)
  elseif status then
    if waits then handle:body() end
    handle:respond({ [":status"] = status, allow = allow }, body)
  end
end
