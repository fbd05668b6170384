"""Data, errors, records, msgpack and the clock. Nothing here talks to anything."""
