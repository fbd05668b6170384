"""The embedded server: a Valkey of our own for users who have none."""
