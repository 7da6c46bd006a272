-- expires_at(moment): whether the key expires at exactly that moment.
local function expires_at(moment)
    local at, off = deadline()
    return type(at) == 'number' and math.abs(at - moment) <= off
end
