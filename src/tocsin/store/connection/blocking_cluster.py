"""A blocking client of a cluster, for the heart: all keys of a beat are in one slot.

It is a client of one node at a time, and goes where a redirection sends it. A node that does not answer, or answers as
one that may have lost its place, is left: the next call asks another, which knows where the slot is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import redis
from redis import exceptions

from tocsin.store.connection.demoted import BlockingParser

# How often a call is sent on, and how long it waits where the keys of a slot are on their way.
REDIRECTIONS = 16
TRY_AGAIN_S = 0.05
BETWEEN_NODES = "a slot is on its way to another node, and neither of the two would serve it"

_MAY_BE_REPLACED = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.ReadOnlyError,
)
Place = tuple[str, int]


class BlockingCluster(redis.Redis):
    def __init__(self, seeds: Sequence[Place], **options: Any) -> None:
        self._seeds = list(seeds)
        # Every node that a node has named, replicas too; and whether they are to be asked for again.
        self._named: set[Place] = set()
        self._stale = True
        self._at = self._seeds[0]
        super().__init__(*self._at, **options)
        # Redis() takes no parser, only its connections do.
        self.connection_pool.connection_kwargs["parser_class"] = BlockingParser

    def execute_command(self, *args: Any, **options: Any) -> Any:
        for _ in range(REDIRECTIONS):
            try:
                if self._stale:
                    self._ask_for_names()
                return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            except exceptions.MovedError as moved:
                # A node that does not know its own address leaves it out.
                self._go_to((moved.host or self._at[0], moved.port))
            except exceptions.AskError as ask:
                return self._ask_at((ask.host or self._at[0], ask.port), args)
            except exceptions.TryAgainError:
                time.sleep(TRY_AGAIN_S)
            except _MAY_BE_REPLACED:
                self._leave()
                raise
        raise exceptions.ClusterError(BETWEEN_NODES)

    def _ask_for_names(self) -> None:
        slots = super().execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
        nodes = [node for _, _, *nodes in slots for node in nodes]
        self._named = {(bytes(node[0] or b"").decode() or self._at[0], int(node[1])) for node in nodes}
        self._stale = False

    def _go_to(self, place: Place) -> None:
        pool = self.connection_pool
        options = {**pool.connection_kwargs, "host": place[0], "port": place[1]}
        self.connection_pool = type(pool)(connection_class=pool.connection_class, **options)
        pool.disconnect()
        self._at = place

    def _leave(self) -> None:
        """For any other node. The addresses that were given count too: they may lead to other nodes by now."""
        others = sorted({*self._named, *self._seeds} - {self._at})
        self._go_to(random.choice(others) if others else self._at)
        self._stale = True

    def _ask_at(self, place: Place, args: Sequence[Any]) -> Any:
        """Of a slot that is on its way there. ASKING counts for the next command on the same connection."""
        options = {**self.connection_pool.connection_kwargs, "host": place[0], "port": place[1]}
        pool = type(self.connection_pool)(connection_class=self.connection_pool.connection_class, **options)
        with redis.Redis(connection_pool=pool) as there, there.pipeline(transaction=False) as pipe:
            pipe.execute_command("ASKING")
            pipe.execute_command(*args)
            answer = pipe.execute()[1]
        pool.disconnect()
        return answer
