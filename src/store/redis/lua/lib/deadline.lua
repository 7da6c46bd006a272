-- deadline(): when the key expires, and by how many milliseconds that may be off. -1 for never, -2 without a
-- key; Redis's error if it refused.
local function deadline()
    local at = redis.pcall('PEXPIRETIME', KEYS[1])
    if type(at) == 'number' then return at, 0 end
    local now = redis.pcall('TIME')
    if now.err then return now end
    local ttl = redis.pcall('PTTL', KEYS[1])
    if type(ttl) ~= 'number' or ttl < 0 then return ttl, 0 end
    return now[1] * 1000 + math.floor(now[2] / 1000) + ttl, 1
end
