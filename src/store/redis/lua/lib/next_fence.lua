-- next_fence(floor): a new fence, larger than all before, or Redis's error if it refused. Lua's numbers are
-- exact below 2^53; microseconds since 1970 reach that in the year 2255.
local function next_fence(floor)
    local before = redis.pcall('GET', KEYS[2])
    if type(before) == 'table' then return before end
    local now = redis.pcall('TIME')
    if now.err then return now end
    local fence = math.max(now[1] * 1000000 + now[2], tonumber(floor))
    if before then
        local number = string.match(before, '^%d+$') and tonumber(before)
        if not number or number >= 9007199254740991 then
            return {err = 'ERR the fence counter is not a number below 2^53, delete it: ' .. KEYS[2]}
        end
        fence = math.max(fence, number + 1)
    end
    local set = redis.pcall('SET', KEYS[2], string.format('%.0f', fence))
    if set.err then return set end
    return fence
end
