-- turns_heap: turns that were served and come again, in a heap: the first has the smallest tag.
local function goes_before(a, b) return a.tag < b.tag or (a.tag == b.tag and a.tenant < b.tenant) end

local function sift_down(heap)
  local at, size, item = 1, #heap, heap[1]
  while true do
    local child = at * 2
    if child > size then break end
    if child < size and goes_before(heap[child + 1], heap[child]) then child = child + 1 end
    if not goes_before(heap[child], item) then break end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = item
end

local function sift_up(heap)
  local at, item = #heap, heap[#heap]
  while at > 1 do
    local parent = math.floor(at / 2)
    if not goes_before(item, heap[parent]) then break end
    heap[at] = heap[parent]
    at = parent
  end
  heap[at] = item
end
