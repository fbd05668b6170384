"""A blocking client of a cluster, for the heartbeat, whose keys are all in one slot.

It is a client of one node at a time and follows redirections. If a node does not answer, or may no longer be the
primary, the next call goes to another node, which knows where the slot is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import redis
from redis import exceptions

from tocsin.store.connection.demoted import BlockingParser

# How many redirections to follow, and how long to wait while the keys of a slot are being moved.
REDIRECTIONS = 16
TRY_AGAIN_S = 0.05
BETWEEN_NODES = "a slot is being moved to another node, and neither of the two would serve it"

_MAY_BE_REPLACED = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.ReadOnlyError,
)
Node = tuple[str, int]


class BlockingCluster(redis.Redis):
    def __init__(self, seeds: Sequence[Node], **options: Any) -> None:
        self._seeds = list(seeds)
        # All nodes that the cluster has listed, with replicas, and whether to fetch the list again.
        self._listed: set[Node] = set()
        self._stale = True
        self._at = self._seeds[0]
        super().__init__(*self._at, **options)
        # Only the connections accept a parser, Redis() does not.
        self.connection_pool.connection_kwargs["parser_class"] = BlockingParser

    def execute_command(self, *args: Any, **options: Any) -> Any:
        for _ in range(REDIRECTIONS):
            try:
                if self._stale:
                    self._list_nodes()
                return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            except exceptions.MovedError as moved:
                # A node that does not know its own address sends none.
                self._go_to((moved.host or self._at[0], moved.port))
            except exceptions.AskError as ask:
                return self._ask_at((ask.host or self._at[0], ask.port), args)
            except exceptions.TryAgainError:
                time.sleep(TRY_AGAIN_S)
            except _MAY_BE_REPLACED:
                self._leave()
                raise
        raise exceptions.ClusterError(BETWEEN_NODES)

    def _list_nodes(self) -> None:
        slots = super().execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
        nodes = [node for _, _, *nodes in slots for node in nodes]
        self._listed = {(bytes(node[0] or b"").decode() or self._at[0], int(node[1])) for node in nodes}
        self._stale = False

    def _go_to(self, node: Node) -> None:
        pool = self.connection_pool
        options = {**pool.connection_kwargs, "host": node[0], "port": node[1]}
        self.connection_pool = type(pool)(connection_class=pool.connection_class, **options)
        pool.disconnect()
        self._at = node

    def _leave(self) -> None:
        """Switch to any other known node. The given addresses count too: they may lead to other nodes now."""
        others = sorted({*self._listed, *self._seeds} - {self._at})
        self._go_to(random.choice(others) if others else self._at)
        self._stale = True

    def _ask_at(self, node: Node, args: Sequence[Any]) -> Any:
        """Send a command to the node that a slot is moving to. ASKING applies to the next command on its connection."""
        options = {**self.connection_pool.connection_kwargs, "host": node[0], "port": node[1]}
        pool = type(self.connection_pool)(connection_class=self.connection_pool.connection_class, **options)
        with redis.Redis(connection_pool=pool) as there, there.pipeline(transaction=False) as pipe:
            pipe.execute_command("ASKING")
            pipe.execute_command(*args)
            answer = pipe.execute()[1]
        pool.disconnect()
        return answer
