-- lease_anew(lease): sets the expiry to that much from now, and at least 3 ms from the old deadline, so a
-- client that knows the old deadline can tell the two apart. A third lease in the same moment must not end
-- where the first did either. These shifts can add up to 100 ms, so the deadline only moves back if the new
-- lease ends at least 100 ms earlier.
local function lease_anew(lease)
    local before, off = deadline()
    if type(before) ~= 'number' then return before end
    local set = redis.pcall('PEXPIRE', KEYS[1], lease)
    if type(set) ~= 'number' then return set end
    local after = deadline()
    if after < before + 3 + off and after > before - 100 then
        redis.pcall('PEXPIREAT', KEYS[1], before + 3 + off)
        after = deadline()
    end
    if type(after) ~= 'number' then return after end
    return {after}
end
