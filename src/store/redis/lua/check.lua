-- Returns the holder, or the error if the user may not lock, even while another token holds the lock. The
-- empty SETRANGE changes nothing, and fails for a user without write access.
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
local try = redis.pcall('SETRANGE', KEYS[1], 0, '')
if type(try) == 'table' and try.err then
    for _, words in ipairs({'READONLY', 'NOPERM', 'ACL failure', 'user executing the script'}) do
        if string.find(try.err, words, 1, true) then return try end
    end
end
if not holder then return false end
local ttl = redis.pcall('PTTL', KEYS[1])
if type(ttl) == 'table' then return ttl end
return {string.sub(holder, 1, 257), ttl}
