-- outcome_counters: the fields of `meta` that count runs by how they ended.
--@include outcome
local COUNTERS = {[FAILED] = 'failed', [SUCCEEDED] = 'succeeded', [SKIPPED] = 'skipped', [CANCELLED] = 'cancelled'}
