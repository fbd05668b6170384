"""Pure functions of (data, now) that say when a job is due."""
