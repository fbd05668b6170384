"""Giving a live queue another number of partitions, or none."""
