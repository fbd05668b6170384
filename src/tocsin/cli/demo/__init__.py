"""`tocsin demo`: the command, its jobs, and what it shows."""
