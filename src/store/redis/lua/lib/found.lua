-- found(holder): the holder and its PTTL; nil if the lock is free.
local function found(holder)
    local try = refused()
    if try then return try end
    return holder and {string.sub(holder, 1, 257), redis.pcall('PTTL', KEYS[1])}
end
