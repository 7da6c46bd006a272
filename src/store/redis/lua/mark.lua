-- ARGV: run id, replication id, 1 if the latter may change without a loss of data, milliseconds,
-- whether to begin the grace where this Redis has no mark, to extend it, or to look, and the most
-- milliseconds that a mark is believed. Returns how many milliseconds are left.
local selected = redis.pcall('SELECT', '0')
if selected.err then return selected end
local mark = redis.pcall('GET', KEYS[1])
if type(mark) == 'table' then return mark end
local time = redis.pcall('TIME')
if time.err then return time end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run, replication, till = string.match(mark or '', '^(%w+) (%w*) (%d+)$')
local same = run == ARGV[1] and (replication == ARGV[2] or ARGV[3] == '1')
local left = same and math.max(0, tonumber(till) - now) or 0
local length = tonumber(ARGV[4])
if ARGV[5] == 'look' or (ARGV[5] == 'begin' and same) then
  return math.min(left, tonumber(ARGV[6]))
end
left = math.max(left, length)
local text = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. string.format('%.0f', now + left)
local set = redis.pcall('SET', KEYS[1], text)
if set.err then return set end
return left
