-- scores: what a score in `waiting` or `working` can be. Ours are epoch milliseconds.
-- Below EARLIEST are the negative ones, and seconds: 10^10 of them reach the year 2286, as milliseconds April 1970.
local EARLIEST, CENTURY = 10000000000, 3155760000000

-- The score of a suspect that stands apart (lib/apart.lua): that of its run.
local function is_suspects(score, claim)
  return is_apart(score) and claim and claim.recoveries > 1 and claim.due == due_apart(score)
end

local function number_of(score) return tonumber(score) or math.huge end
local function is_odd(score, now) return score < EARLIEST or score > now + CENTURY end
