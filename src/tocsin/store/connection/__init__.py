"""Clients and connections: addresses, pools, clusters, and what the errors of a server mean."""
