"""Failures: their classes, the wait after them, and circuit breakers. All are pure functions of (data, now)."""
