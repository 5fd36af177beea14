-- Refuses requests without a valid token or certificate, before anything of them reaches the server, and says whose they are.
--
-- The tenant of a request comes from a JWT that the filter before this one has verified, or from the client's certificate. The
-- header that names it was removed from the request before any filter ran. API keys are for the server to judge.

local TENANT = "x-glimpse-tenant"

-- Load balancers have no credentials.
local OPEN = "^/grpc%.health%.v1%.Health/"

-- Returns the tenant of the client's certificate: its first URI, else its first DNS name.
local function certificate_tenant(handle)
  local connection = handle:streamInfo():downstreamSslConnection()
  if not connection or not connection:peerCertificateValidated() then return nil end
  return connection:uriSanPeerCertificate()[1] or connection:dnsSansPeerCertificate()[1]
end

local function tenant_of(handle)
  return handle:headers():get(TENANT) or handle:filterContext():get("certificates") and certificate_tenant(handle)
end

function envoy_on_request(handle)
  if handle:headers():get(":path"):find(OPEN) then return end
  -- Envoy would let the request pass if the script failed.
  local passed, tenant = pcall(tenant_of, handle)
  if not passed then
    handle:logErr(tenant)
    handle:respond({ [":status"] = "500" }, "The gateway could not check the request.")
  elseif not tenant then
    local message = "The request has no valid credential; send `Authorization: Bearer TOKEN`."
    handle:respond({ [":status"] = "401", ["www-authenticate"] = "Bearer" }, message)
  else
    handle:headers():replace(TENANT, tenant)
  end
end
