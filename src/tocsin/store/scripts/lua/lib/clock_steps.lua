-- clock_steps: how the server's clock was set, as 'sum at ahead at ahead…': by how much in all, and of each step that
-- still counts when it was (ms, on the new clock) and how far ahead it went. A deadline that was given before such a
-- step comes too early by that much; one that was given after it is right.
-- What is set back takes away from the steps before it. The oldest steps are added up, so that there are eight at most.
local STEP_MS, MOST_STEPS = 1000, 8

local function read_steps(raw)
  local numbers, list = {}, {}
  for number in string.gmatch(raw or '', '-?%d+') do numbers[#numbers + 1] = tonumber(number) end
  for at = 2, #numbers - 1, 2 do list[#list + 1] = {at = numbers[at], ahead = numbers[at + 1]} end
  return numbers[1] or 0, list
end

local function write_steps(sum, list)
  local texts = {string.format('%.0f', sum)}
  for _, step in ipairs(list) do texts[#texts + 1] = string.format('%.0f %.0f', step.at, step.ahead) end
  return table.concat(texts, ' ')
end

local function take_back(list, by)
  while by > 0 and #list > 0 do
    local last = list[#list]
    local taken = math.min(by, last.ahead)
    last.ahead, by = last.ahead - taken, by - taken
    if last.ahead == 0 then table.remove(list) end
  end
  for _, step in ipairs(list) do step.at = math.min(step.at, now) end
end

local function note_step(list, ahead)
  if ahead < 0 then return take_back(list, -ahead) end
  list[#list + 1] = {at = now, ahead = ahead}
  if #list > MOST_STEPS then
    list[2].ahead = list[2].ahead + list[1].ahead
    table.remove(list, 1)
  end
end

-- How much later than its deadline says a claim ends that was made at `at`.
local function ahead_since(list, at)
  local ahead = 0
  for _, step in ipairs(list) do
    if at < step.at then ahead = ahead + step.ahead end
  end
  return ahead
end
