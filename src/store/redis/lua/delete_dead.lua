-- ARGV: token, the latest deadline with which it is deleted, or nothing, and a later one with which it is deleted,
-- or nothing.
-- include deadline
-- include refused
-- include found
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if holder == ARGV[1] then
    local at, off = deadline()
    if type(at) ~= 'number' then return at end
    local function is_at(moment) return moment and math.abs(at - moment) <= off end
    if (ARGV[2] or '') == '' or is_at(ARGV[3]) or (at >= 0 and at <= ARGV[2] + off) then
        local deleted = redis.pcall('DEL', KEYS[1])
        if type(deleted) == 'table' then return deleted end
        return false
    end
end
return found(holder)
