-- shortens(lease): whether the request is to leave a longer lease alone ("only longer", the last argument), and the key has
-- one.
local function shortens(lease)
    if ARGV[#ARGV] ~= 'only longer' then return false end
    local ttl = redis.pcall('PTTL', KEYS[1])
    return type(ttl) == 'number' and ttl > tonumber(lease)
end
