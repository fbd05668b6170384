"""Unreadable handlers: those whose records this worker failed to read lately.

It lacks a package, a zone, or what a newer version knows. Other workers may be able to read them, so this worker leaves
parked jobs of these handlers alone for some seconds after their time. Otherwise, in a fleet in which most workers fail,
tries would become rare, and the few workers that can read the records would hardly get them.
"""

from __future__ import annotations

from collections.abc import Callable

from tocsin.model.record import HANDLER

# How long a handler counts after its last failure. Longer than the longest wait for another try.
LATELY_S = 600.0
# The first failure on one worker says nothing about the others: the next one may try soon.
NEXT_TRY_S = 1.0


class UnreadableHandlers:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # Until when each digest counts.
        self._until: dict[bytes, float] = {}

    def note(self, record: bytes) -> float:
        """This record could not be read. Seconds until another try; 0: a wait that grows with each failure."""
        digest, now = record[HANDLER], self._monotonic()
        known = self._until.get(digest, now) > now
        self._until[digest] = now + LATELY_S
        return 0.0 if known else NEXT_TRY_S

    def digests(self) -> bytes:
        """Packed as claim scripts take them."""
        if not self._until:
            return b""
        now = self._monotonic()
        self._until = {digest: until for digest, until in self._until.items() if until > now}
        return b"".join(self._until)
