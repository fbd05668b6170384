"""An incarnation: one life of a worker, with a name of its own, a lease and the calls made in that name.

A worker that was silent for too long is declared dead, and its runs go to others. If it was only slow, it goes on under
a new name, so that nothing it still sends can touch those runs. All parts of a worker share one `Incarnation`; `renew`
changes it in place.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from tocsin.store.store import Store
from tocsin.store.transitions.claims import Runs

# The worker looks after claims that its last so many lives left behind.
MOST_NAMES = 10


class Lease(Struct):
    """Until when this life may claim, in ms of the server's clock; 0 before its first heartbeat.

    Each life has a lease of its own: a heartbeat of the last life that is answered late must not extend this one's."""

    until: float = 0.0


class Incarnation:
    """The present life of a worker."""

    def __init__(self, store: Store, handlers: Sequence[int], label: str = "") -> None:
        """`handlers`: the digests of the handlers that this worker has. `label`: the beginning of all its names."""
        self._store = store
        self._handlers = handlers
        self._prefix = f"{label}:" if label else ""
        self._count = 0
        # The names of all lives, the present one last.
        self.names: deque[str] = deque(maxlen=MOST_NAMES)
        self.renew()

    def renew(self) -> None:
        """Begin a new life. Nothing was ever claimed under its name."""
        self._count += 1
        self.name = f"{self._prefix}{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}.{self._count}"
        self.names.append(self.name)
        self.runs = Runs(self._store, self.name, self._handlers)
        self.lease = Lease()

    def current_name(self) -> str:
        return self.name
