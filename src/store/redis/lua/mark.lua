-- ARGV: run id, replication id, 1 if the latter may change without a loss of data, milliseconds,
-- whether to begin the grace where this Redis has no mark, to begin it anew, to extend it, or to look, the most
-- milliseconds that a mark is believed, and the milliseconds within which a grace that began is not begun anew.
-- Returns how many milliseconds are left.
local selected = redis.pcall('SELECT', '0')
if selected.err then return selected end
local mark = redis.pcall('GET', KEYS[1])
if type(mark) == 'table' then return mark end
local time = redis.pcall('TIME')
if time.err then return time end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local run, replication, till, begun = string.match(mark or '', '^(%w+) (%w*) (%d+) ?(%d*)$')
local same = run == ARGV[1] and (replication == ARGV[2] or ARGV[3] == '1')
local left = same and math.max(0, tonumber(till) - now) or 0
local recent = same and (tonumber(begun) or 0) > now - tonumber(ARGV[7])
local word = ARGV[5]
if word == 'look' or (word == 'begin' and same) or (word == 'anew' and recent) then
  return math.min(left, tonumber(ARGV[6]))
end
local length = tonumber(ARGV[4])
-- A mark that only replaces a deleted one begins no grace.
if word ~= 'extend' or not same then begun = length > 0 and now or 0 end
left = math.max(left, length)
local text = string.format('%s %s %.0f %.0f', ARGV[1], ARGV[2], now + left, tonumber(begun) or 0)
local set = redis.pcall('SET', KEYS[1], text)
if set.err then return set end
return left
