"""Data, errors, the codec and the clock. Nothing here talks to anything."""
