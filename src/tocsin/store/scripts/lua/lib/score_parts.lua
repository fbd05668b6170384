-- score_parts: take a score of `waiting` apart. The layout is in score.lua.
-- Apart from that file, because the fast path of run_finish does without.
--@include score

-- Due time and place, also of a suspect that stands apart.
local function split_score(score)
  if score <= LAST_APART then
    score = (score - 2 * LAST_APART) % APART_BAND
    -- The remainder of -inf, which somebody wrote by hand, is no number.
    if score ~= score then score = 0 end
  end
  local due = math.floor(score)
  return due, (score - due) * PLACES_IN_MS
end

-- Due time and place as a claim can hold them: somebody may have written another score below 0.
local function due_and_place(score)
  local due, place = split_score(score)
  if due < 0 then return 0, 0 end
  return due, place
end
