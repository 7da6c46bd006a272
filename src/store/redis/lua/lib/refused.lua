-- refused(): Redis's error if it is a replica, whose view of the holder would be stale. An empty SETRANGE
-- changes nothing, and creates no key.
local function refused()
    local try = redis.pcall('SETRANGE', KEYS[1], 0, '')
    return type(try) == 'table' and try.err and string.find(try.err, 'READONLY', 1, true) and try
end
