"""The seeds' own APIs, thin, on the same core."""

from tocsin.patterns.delay_queue import DelayQueue, Item

__all__ = ["DelayQueue", "Item"]
