-- Returns the value of the last key, or the error if the user may not write it. The empty SETRANGE changes nothing,
-- and creates no key.
local before = redis.pcall('GET', KEYS[#KEYS])
if type(before) == 'table' then return before end
local try = redis.pcall('SETRANGE', KEYS[#KEYS], 0, '')
if type(try) == 'table' then return try end
return before
