"""A module without an app."""
