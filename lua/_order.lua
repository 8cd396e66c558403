-- The order of ids, byte by byte as in a sorted set: Lua's own `<` follows the locale that the server was started under.
local function id_below(one, other)
  for i = 1, math.min(#one, #other) do
    local left, right = string.byte(one, i), string.byte(other, i)
    if left ~= right then return left < right end
  end
  return #one < #other
end
