-- ARGV: the largest fence granted. Later fences are larger, whatever the clock of Redis shows.
local before = redis.pcall('GET', KEYS[1])
if type(before) == 'table' then return before end
local number = before and (string.match(before, '^%d+$') and tonumber(before) or math.huge) or 0
if number < tonumber(ARGV[1]) then return redis.pcall('SET', KEYS[1], ARGV[1]) end
return 0
