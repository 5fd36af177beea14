-- Refuses requests without a valid credential, before anything of them reaches the server, and says whose they are.
--
-- The tenant of a request comes from its API key, from a JWT that the filter before this one has verified, or from the
-- client's certificate. The header that names it was removed from the request before any filter ran.

local TENANT = "x-glimpse-tenant"

local KEY_HEADERS = { "authorization", "x-api-key" }

-- Load balancers have no credentials.
local OPEN = "^/grpc%.health%.v1%.Health/"

-- Seconds after which the file of keys is read again.
local REFRESH_SECONDS = 1

local band, bxor, bnot, ror, rshift, tobit, tohex =
  bit.band, bit.bxor, bit.bnot, bit.ror, bit.rshift, bit.tobit, bit.tohex

-- The constants of SHA-256 (FIPS 180-4): the first 32 bits of the fractions of roots of the first primes.
local function fractions(count, exponent)
  local words, prime = {}, 1
  while #words < count do
    prime = prime + 1
    local is_prime = true
    for divisor = 2, math.floor(math.sqrt(prime)) do is_prime = is_prime and prime % divisor ~= 0 end
    if is_prime then words[#words + 1] = tobit(math.floor(prime ^ exponent % 1 * 2 ^ 32)) end
  end
  return words
end

local ROUNDS, INITIAL = fractions(64, 1 / 3), fractions(8, 1 / 2)

-- Adds the hash of a block of 64 bytes, which begins at `start`, to the eight words of `state`.
local function add_block(state, text, start)
  local words = {}
  for i = 1, 16 do
    local first, second, third, fourth = text:byte(start + 4 * i - 4, start + 4 * i - 1)
    words[i] = tobit(((first * 256 + second) * 256 + third) * 256 + fourth)
  end
  for i = 17, 64 do
    local early, late = words[i - 15], words[i - 2]
    local from_early = bxor(ror(early, 7), ror(early, 18), rshift(early, 3))
    local from_late = bxor(ror(late, 17), ror(late, 19), rshift(late, 10))
    words[i] = tobit(words[i - 16] + from_early + words[i - 7] + from_late)
  end
  local a, b, c, d, e, f, g, h = unpack(state)
  for i = 1, 64 do
    local chosen = bxor(band(e, f), band(bnot(e), g))
    local one = tobit(h + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + chosen + ROUNDS[i] + words[i])
    local majority = bxor(band(a, b), band(a, c), band(b, c))
    local two = bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + majority
    h, g, f, e, d, c, b, a = g, f, e, tobit(d + one), c, b, a, tobit(one + two)
  end
  for i, word in ipairs({ a, b, c, d, e, f, g, h }) do state[i] = tobit(state[i] + word) end
end

local function sha256(text)
  local state, num_bits = { unpack(INITIAL) }, 8 * #text
  local length = string.char(0, 0, 0, 0, math.floor(num_bits / 2 ^ 24) % 256, math.floor(num_bits / 2 ^ 16) % 256,
    math.floor(num_bits / 2 ^ 8) % 256, num_bits % 256)
  local padded = text .. "\128" .. ("\0"):rep((55 - #text) % 64) .. length
  for start = 1, #padded, 64 do add_block(state, padded, start) end
  for i, word in ipairs(state) do state[i] = tohex(word) end
  return table.concat(state)
end

-- Each of Envoy's workers runs a copy of this script and reads the file for itself.
local tenants, contents, read_at = {}, nil, nil

-- Returns the tenants by the hashes of their keys; nil if a line is none that `glimpse key` makes.
local function parse_keys(text)
  local parsed = {}
  for line in text:gmatch("[^\r\n]+") do
    if line:find("%S") and not line:find("^%s*#") then
      local hash, tenant, rest = line:match("^%s*sha256:(%x+)%s+(%S+)%s*(%S*)%s*$")
      if not hash or #hash ~= 64 or (rest ~= "" and rest ~= "admin") then return nil end
      parsed[hash] = tenant
    end
  end
  return parsed
end

-- Reads the file again if it has changed. One that cannot be used leaves the keys as they were.
local function refresh_keys(handle, path)
  local now = os.time()
  if read_at and now - read_at < REFRESH_SECONDS then return end
  read_at = now
  local file = io.open(path, "rb")
  local text = file and file:read("*a")
  if file then file:close() end
  if text == contents then return end
  contents = text
  local parsed = text and parse_keys(text)
  if parsed then
    tenants = parsed
  else
    handle:logErr("the file of API keys cannot be used; the keys read before stay valid")
  end
end

local function api_key(headers)
  for _, name in ipairs(KEY_HEADERS) do
    local value = headers:get(name)
    if value and value:find("%S") then
      local key = value:match("^%s*[Bb][Ee][Aa][Rr][Ee][Rr]%s*$") and "" or value:match("^%s*[Bb][Ee][Aa][Rr][Ee][Rr]%s+(%S+)%s*$")
      return key or value:match("^%s*(.-)%s*$")
    end
  end
end

-- Returns the tenant of the client's certificate: its first URI, else its first DNS name.
local function certificate_tenant(handle)
  local connection = handle:streamInfo():downstreamSslConnection()
  if not connection or not connection:peerCertificateValidated() then return nil end
  return connection:uriSanPeerCertificate()[1] or connection:dnsSansPeerCertificate()[1]
end

-- Returns the tenant of the request; nil and a message if it has none.
local function authenticate(handle, options)
  local headers = handle:headers()
  local verified = headers:get(TENANT)
  if verified then return verified end
  local key = options:get("keys") and api_key(headers)
  if key and key ~= "" then
    refresh_keys(handle, options:get("keys"))
    local tenant = tenants[sha256(key)]
    if tenant then return tenant end
    return nil, "The credential is not valid; send `Authorization: Bearer KEY`, or `x-api-key: KEY`."
  end
  local tenant = options:get("certificates") and certificate_tenant(handle)
  if tenant then return tenant end
  return nil, "The request has no credential; send `Authorization: Bearer KEY`, or `x-api-key: KEY`."
end

function envoy_on_request(handle)
  local options = handle:filterContext()
  if handle:headers():get(":path"):find(OPEN) then return end
  -- Envoy would let the request pass if the script failed.
  local passed, tenant, message = pcall(authenticate, handle, options)
  if not passed then
    handle:logErr(tenant)
    handle:respond({ [":status"] = "500" }, "The gateway could not check the request.")
  elseif not tenant then
    handle:respond({ [":status"] = "401", ["www-authenticate"] = "Bearer" }, message)
  else
    handle:headers():replace(TENANT, tenant)
  end
end
