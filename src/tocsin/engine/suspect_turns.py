"""Suspects: runs that several workers died with are claimed one at a time.

If one of them kills this worker, it takes no other such run with it. Partitions take turns to give one.
"""

from __future__ import annotations

from msgspec.structs import replace

from tocsin.engine.claim_planner import PlannedClaim
from tocsin.engine.served_queue import ServedQueue
from tocsin.model.clock import Clock

# A partition that missed its turn keeps it if it will be asked again within this long. Where all that is due is held
# back, the claim script says 100 ms.
MISSED_TURN_MS = 200.0


class SuspectTurns:
    """Decides which claim of a pass may bring a suspect."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # While a pass asks for a suspect; other passes ask meanwhile, and must not be given a second one.
        self.taken = False
        self._turn = 0
        # The partition whose turn came while another pass was asking for a suspect.
        self._missed: tuple[ServedQueue, int] | None = None

    def allow_one(self, requests: list[PlannedClaim]) -> bool:
        """Let one of these claims bring a suspect; False if none may.

        Passes may keep step, so that one always comes while another asks for a suspect: the partition that missed its
        turn is then next."""
        asked = [(served, request.partition) for served, request in requests]
        if self.taken:
            self._missed = self._missed or asked[self._turn % len(asked)]
            return False
        self._turn += 1
        at, missed = self._turn % len(requests), self._missed
        if missed in asked:
            at = asked.index(missed)
        elif missed is not None:
            served, partition = missed
            if served.is_asked_by(partition, self._clock.server_ms() + MISSED_TURN_MS):
                return False
        self._missed = None
        served, request = requests[at]
        requests[at] = (served, replace(request, suspects=1))
        return True
