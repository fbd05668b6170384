"""Pure functions of (data, now) that say what a failure means, and what to do about it."""
