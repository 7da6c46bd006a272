-- ARGV: from, to, lease, the deadline to insist on, or nothing, and the floor of the fence.
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
-- include deadline
-- include expires_at
-- include lease_anew
-- include refused
-- include found
-- include next_fence
local from = holder == ARGV[1] and (ARGV[4] == '' or expires_at(ARGV[4]))
if not from and holder ~= ARGV[2] then return found(holder) end
local fence = next_fence(ARGV[5])
if type(fence) ~= 'number' then return fence end
if from then
    local set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    if set.err then return set end
    return {(deadline()), fence, 1}
end
local at = lease_anew(ARGV[3])
if type(at) ~= 'table' or at.err then return at end
return {at[1], fence, 0}
