"""Any sequence of calls, with lost replies, late copies, dead workers and a jumping clock, keeps the invariants."""

from __future__ import annotations

from tests.support.servers import Server
from tests.support.store_calls import Calls, try_any_sequence


def test_any_sequence_of_calls_keeps_the_invariants(valkey: Server):
    class OnServer(Calls):
        server = valkey

    try_any_sequence(OnServer, examples=60, steps=40)
