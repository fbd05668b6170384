"""What keeps a fleet healthy: the dead are buried, their runs brought back."""
