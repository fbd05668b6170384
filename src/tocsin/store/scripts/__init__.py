"""The Lua scripts, and how they are loaded and called."""
