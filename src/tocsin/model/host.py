"""The host of an address: the unit that limits and circuit breakers count by."""

from __future__ import annotations

from functools import lru_cache

# Cached answers of a worker. Splitting another address takes a microsecond or two.
MOST_KNOWN = 4096

_PORTS = {
    "http": 80,
    "https": 443,
    "redis": 6379,
    "rediss": 6379,
    "kafka": 9092,
    "amqp": 5672,
    "amqps": 5671,
    "nats": 4222,
}


@lru_cache(MOST_KNOWN)
def host_of(url: str) -> str:
    """scheme://host:port in lower case, without the login. A list of several brokers counts as one host."""
    scheme, _, rest = url.partition("://")
    end = min((at for c in "/?#" if (at := rest.find(c)) >= 0), default=len(rest))
    scheme, host = scheme.lower(), rest[:end].rpartition("@")[2].lower()
    port = _PORTS.get(scheme)
    if host and port is not None and not host.rpartition(":")[2].isdigit():
        host = f"{host.rstrip(':')}:{port}"
    return f"{scheme}://{host}"
