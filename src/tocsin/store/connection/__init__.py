"""Clients and connections: addresses, pools, clusters, and the errors of a server."""
