-- score_parts: take a score of `waiting` apart. What is in one is said in score.lua.
--@include score

-- Due time and place, also of a suspect that stands apart.
local function split_score(score)
  if score <= LAST_APART then
    score = (score + 4503599627370496) % 281474976710656
    -- The remainder of -inf, which somebody wrote by hand, is no number.
    if score ~= score then score = 0 end
  end
  local due = math.floor(score)
  return due, (score - due) * 4096
end

-- Due time and place as a claim can hold them: somebody may have written another score below 0.
local function due_and_place(score)
  local due, place = split_score(score)
  if due < 0 then return 0, 0 end
  return due, place
end
