"""Every key that Tocsin uses, with its type.

Per partition of a queue, all under one hash tag, so in one slot of a Redis Cluster:

meta      HASH    epoch, order, partitions, sealed, seq, fence, widest, walk, counters, settings
jobs      HASH    id -> record: header and body (model/record.py)
waiting   ZSET    id -> not before, epoch ms; below the ms, in sixteenths: successes the record lacks (order `due`);
                  suspects that are due: below -2^51, by band and due time (lua/lib/score.lua)
ready0…4  ZSET    by priority band, what is due: id -> due and place; in a fair queue tenant, due, place, id -> 0
turns0…4  ZSET    in a fair queue, the order of turns: tenant -> start tag
tenants   HASH    tenant -> its runs, its rate's time, its finish tags
spots     HASH    id -> its place in `ready`
resting   ZSET    tenant at its cap, or ahead of its rate -> until ms
weights   HASH    tenant -> weight
working   ZSET    id -> deadline ms
claims    HASH    id -> claim (lua/lib/claim.lua), from the first claim to the end of the run
sessions  HASH    session -> seq, time, answer of its last call; in partition 0 also session|epoch, of partitions that
                  were repartitioned since
paused    ZSET    id -> not before ms
parked    ZSET    id -> digest of its handler, by which a worker that knows it finds it, and a half for suspects; or the
                  ms from which on another worker may try to read it
dead      ZSET    id -> since ms
errors    HASH    id -> last failure, until it succeeds
done      ZSET    id -> remembered until ms
results   HASH    id -> outcome, time, result
unnamed   ZSET    id -> ended ms, of jobs in `done` that nobody named: `results.max` bounds them, the oldest go first
blocked   ZSET    id -> not before ms, once it waits for nobody
needs     HASH    id -> which wait this is, its policy, and what it still waits for
watchers  ZSET    jobs that wait for the end of another (lua/lib/outbox.lua)
outbox    ZSET    effects on other partitions that must be carried there (lua/lib/outbox.lua)
events    STREAM  one entry per changing call

For the whole fleet, under one tag of their own:

queues    HASH    queue -> order, partitions, the last change of them and the one under way (store/queue_entry.py)
workers   HASH    worker -> what it says about itself
beats     HASH    worker -> counter
pulses    ZSET    worker -> when it last beat, ms
buried    ZSET    dead worker -> until when a worker brings back its runs, ms
steps     STRING  how the server's clock was set (lua/lib/clock_steps.lua)
declared  HASH    set of agents that some workers declare -> their digests (store/transitions/declared_agents.py)
zones     STRING  the version of the zone database by which jobs are planned
hosts     ZSET    host that fails -> nothing is sent to it before ms
outages   HASH    such a host -> since ms, and the last probe
bell:Q    LIST    partitions of queue Q with work
mail:W    LIST    messages for worker W

For the cleanup, under the tag of the agents' queue and the name that the Redis Priority Scheduler uses:

cleanup-leader  STRING  the worker that leads
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tocsin.model.errors import InvalidConfig
from tocsin.model.queue import AGENTS_QUEUE

PARTITION_KEYS = (
    "meta", "jobs", "waiting", "working", "claims", "sessions", "paused", "parked", "dead", "errors", "done",
    "results", "unnamed", "blocked", "needs", "watchers", "outbox", "events",
    "ready0", "ready1", "ready2", "ready3", "ready4", "turns0", "turns1", "turns2", "turns3", "turns4",
    "tenants", "spots", "resting", "weights",
)  # fmt: skip
_HASHES = ("meta", "jobs", "claims", "sessions", "errors", "results", "needs", "tenants", "spots", "weights")
_FLEET_HASHES = ("queues", "workers", "beats", "declared", "outages")
BANDS = ("ready0", "ready1", "ready2", "ready3", "ready4")
TURNS = ("turns0", "turns1", "turns2", "turns3", "turns4")
FLEET_KEYS = ("queues", "workers", "beats", "pulses", "buried", "steps", "declared", "zones", "hosts", "outages")
LEADER_KEY = "cleanup-leader"
# The type of each key, as Redis names it.
TYPES = (
    dict.fromkeys((*PARTITION_KEYS, "pulses", "buried", "hosts"), "zset")
    | dict.fromkeys((*_HASHES, *_FLEET_HASHES), "hash")
    | {"events": "stream", "zones": "string", "steps": "string", LEADER_KEY: "string", "bell": "list", "mail": "list"}
)
_BASES = (*PARTITION_KEYS, *FLEET_KEYS, LEADER_KEY, "bell", "mail")
# The end of the part before the tag, whatever the prefix: a base, and mostly a queue or worker. If an operator has
# renamed the base, the tag of a partition still ends in its number.
_BEFORE_TAG = re.compile(rf"(?:{'|'.join(_BASES)})[:{{]")
_PARTITION_TAG = re.compile(r":\d+\}\Z")
_FLEET_TAG = "tocsin"
# The keys of receivers, which remember requests in Redis (receive/redis_memory.py): it may be the same Redis.
_RECEIVERS = "tocsin:receive:"
# The counters in `meta`, as lua/*.lua names them.
COUNTERS = ("put", "claimed", "succeeded", "failed", "skipped", "cancelled", "retried", "recovered", "buried")

# The stages that are one sorted set each, in the order in which readers look.
STAGE_KEYS = ("waiting", "working", "blocked", "paused", "parked", "dead")


class Keys:
    """Names of keys, from a prefix and, for Redis Cluster, a hash tag."""

    def __init__(self, prefix: str = "", hash_tag: str = "", names: Mapping[str, str] | None = None) -> None:
        """`names`: an operator's own names of `waiting`, `working` and `cleanup-leader`."""
        self.prefix = prefix
        self.hash_tag = hash_tag
        self._names = dict(names or {})
        for base, name in self._names.items():
            if name != base and name in (*PARTITION_KEYS, *FLEET_KEYS, LEADER_KEY):
                raise InvalidConfig(f"the key {name!r} holds something else already: give {base!r} another name")

    def partition(self, queue: str, partition: int) -> dict[str, str]:
        return {base: self._name(base, queue, partition) for base in PARTITION_KEYS}

    def fleet(self) -> dict[str, str]:
        return {base: f"{self.prefix}{base}{self._fleet_tag()}" for base in FLEET_KEYS}

    def bell(self, queue: str) -> str:
        return f"{self.prefix}bell:{queue}{self._fleet_tag()}"

    def mail(self, worker: str) -> str:
        return f"{self.prefix}mail:{worker}{self._fleet_tag()}"

    def leader(self) -> str:
        return self._name(LEADER_KEY, AGENTS_QUEUE, 0)

    def owns(self, key: str) -> bool:
        """Whether a key of that name is ours, or could become ours."""
        own, _, rest = key.partition(self.prefix) if self.prefix else ("", "", key)
        base, brace, _ = rest.partition("{")
        if own or base.partition(":")[0] not in {*_BASES, *self._names.values()}:
            return False
        return bool(brace) or base in (*PARTITION_KEYS, LEADER_KEY, *self._names.values())

    def types_of_fleet(self) -> dict[str, str]:
        """The type of each key of the whole fleet, except bells and mail."""
        return {key: TYPES[base] for base, key in self.fleet().items()} | {self.leader(): TYPES[LEADER_KEY]}

    def _fleet_tag(self) -> str:
        return f"{{{self.hash_tag or _FLEET_TAG}}}"

    def _name(self, base: str, queue: str, partition: int) -> str:
        base = self._names.get(base, base)
        if queue == AGENTS_QUEUE:
            # The names of the Redis Priority Scheduler, so that its redis-cli commands work.
            return f"{self.prefix}{base}{{{self.hash_tag}}}" if self.hash_tag else f"{self.prefix}{base}"
        return f"{self.prefix}{base}:{queue}{{{self.hash_tag or queue}:{partition}}}"


def is_shaped_like_ours(key: str) -> bool:
    """Whether a Tocsin with any prefix and hash tag, or a receiver, has or could have a key of that name. Keys of the
    agents' queue without a hash tag are plain words, which anybody may use: see `registers_beside`."""
    if key.startswith(_RECEIVERS):
        return True
    head, brace, tag = key.rpartition("{")
    if not brace or not tag.endswith("}"):
        return False
    return _BEFORE_TAG.search(head + brace) is not None or (":" in head and _PARTITION_TAG.search(tag) is not None)


def registers_beside(key: str) -> list[str]:
    """Names of registers, for a key that ends in one of our words: if one of them exists, the key is Tocsin's."""
    prefixes = [key.removesuffix(base) for base in (*PARTITION_KEYS, LEADER_KEY) if key.endswith(base)]
    return [f"{prefix}queues{{{_FLEET_TAG}}}" for prefix in prefixes]
