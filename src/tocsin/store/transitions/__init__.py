"""Calls that change what is in Redis; each change is one script."""
