-- tenant_check: whether an entry of `tenants` is one. The layout is in tenant_state.lua.
local function is_tenant_state(raw) return #raw == 52 end
