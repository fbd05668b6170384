"""When jobs are due: pure functions of (data, now)."""
