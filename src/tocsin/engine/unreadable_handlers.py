"""Unread: the handlers of whose jobs this worker could not read some records lately.

It lacks a package, a zone, or what a newer version knows. Others may be able to read them and get them first:
this worker leaves what is parked of these handlers alone for some seconds after its time has come. Otherwise a fleet
in which most workers fail would try less and less often, and the few that can read the records would hardly get them.
"""

from __future__ import annotations

from collections.abc import Callable

# Since its last failure. Longer than the longest wait for another try.
LATELY_S = 600.0
# The first failure of a worker says nothing about the others: the next one may try soon.
NEXT_TRY_S = 1.0


class UnreadableHandlers:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # Until when each digest counts.
        self._until: dict[bytes, float] = {}

    def note(self, record: bytes) -> float:
        """It could not be read. Seconds until another try; 0: for a while that grows with each failure."""
        digest, now = record[19:23], self._monotonic()
        known = self._until.get(digest, now) > now
        self._until[digest] = now + LATELY_S
        return 0.0 if known else NEXT_TRY_S

    def digests(self) -> bytes:
        """As claim scripts want them."""
        if not self._until:
            return b""
        now = self._monotonic()
        self._until = {digest: until for digest, until in self._until.items() if until > now}
        return b"".join(self._until)
