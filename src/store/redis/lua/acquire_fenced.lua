-- ARGV: token, lease, expected deadline, floor of the fence, and the deadline with which the token already has
-- a fence (returned as 0), or nothing, and "only longer" as in acquire.lua. KEYS: the lock, the fence counter. As acquire.lua, with a fence; without a
-- fence there is no grant.
-- include deadline
-- include expires_at
-- include lease_anew
-- include next_fence
-- include shortens
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.ok then
    local fence = next_fence(ARGV[4])
    local at = deadline()
    if type(fence) == 'number' and type(at) == 'number' then return {at, fence, 1} end
    redis.pcall('DEL', KEYS[1])
    if type(fence) ~= 'number' then return fence end
    return at
end
if set and not string.find(set.err, 'OOM', 1, true) then return set end
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if not holder then return set end
if holder ~= ARGV[1] or shortens(ARGV[2]) then
    return {string.sub(holder, 1, 257), redis.pcall('PTTL', KEYS[1])}
end
local expected = ARGV[3] ~= '' and expires_at(ARGV[3])
local fence = (ARGV[5] or '') ~= '' and expires_at(ARGV[5]) and 0 or next_fence(ARGV[4])
if type(fence) ~= 'number' then return fence end
local at = lease_anew(ARGV[2])
if type(at) ~= 'table' or at.err then return at end
return {at[1], fence, expected and 1 or 0}
