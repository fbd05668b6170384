"""The embedded server: our own Valkey, for users without a server."""
