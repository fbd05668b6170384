"""The fleet: the workers of a namespace, their heartbeats, their bells and their mail."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.exceptions import RedisError

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.model.errors import StoreError
from tocsin.store.connection.client import (
    BlockingClient,
    leave_former_primary,
    open_blocking_client,
    open_waiting_client,
)
from tocsin.store.connection.errors import is_wrong_type, translate
from tocsin.store.keys import TYPES
from tocsin.store.numbers import whole
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.views import wrong_types

# A worker is late after so many times the pause between two beats.
LATE_BEATS = 1.25
# Every so many beats, ask the sentinels whether the primary has changed.
RENEW_EVERY = 5


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker says about itself with each beat."""

    host: str
    pid: int
    started: Millis
    queues: list[str]
    handlers: list[str]
    concurrency: int
    running: int = 0
    finished: int = 0
    stuck: int = 0
    state: str = "running"
    # The state that upkeep/health.py found, with its reasons and the signals of the watchdogs.
    health: str = ""
    reasons: list[str] = []
    signals: list[str] = []
    # The states of breakers that are not closed, by name.
    breakers: dict[str, str] = {}
    # The name of the set of agents that it declares (declared_agents.py); None: it does not say.
    agents: str | None = None


# The state of a worker whose info cannot be read.
UNREADABLE = "unreadable"
_NOTHING = WorkerInfo(host="?", pid=0, started=0, queues=[], handlers=[], concurrency=0, state=UNREADABLE)


class WorkerRecord(msgspec.Struct, frozen=True):
    """A worker as others see it. `age`: how long ago it last beat, on the server's clock; None if that is not known."""

    id: str
    counter: int | bytes
    about: WorkerInfo
    age: Millis | None = None

    @property
    def shown(self) -> str:
        """Its id as text that can be printed, even if it is garbage."""
        return _key(self.id).decode(errors="replace")


class History(msgspec.Struct, frozen=True):
    """Which history of writes a server's data has. The server gets a new `name` when it is a replica that takes over,
    and keeps the name of its primary as `former`; also when it starts without knowing whose data it has."""

    name: str
    former: str
    replicas: int


class HeartbeatReply(msgspec.Struct, frozen=True):
    """The answer to one beat. `before`: the last counter of ours that the server has, None when we join."""

    accepted: bool
    now: Millis
    # By worker, the counters of those that are late by the server's clock.
    late: dict[str, bytes] = {}
    # Dead workers whose runs no worker brings back yet.
    buried: list[str] = []
    # How many workers there are.
    workers: int = 1
    # By how many ms the server's clock was set in all, as far as workers noticed; and the steps that still count, for
    # run_recover.
    stepped: int = 0
    steps: bytes = b""
    before: int | None = None
    history: History | None = None
    # By how many ms it was set since the beat before, as this worker saw it.
    step: float = 0.0


_about_decoder = msgspec.msgpack.Decoder(WorkerInfo)


def _name(raw: bytes) -> str:
    """Garbage must survive the way back to the server: a garbled name is buried like a dead worker."""
    return raw.decode(errors="surrogateescape")


def _key(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _counter(raw: bytes) -> int | bytes:
    return int(raw) if raw.isdigit() and len(raw) < 20 and b"%d" % int(raw) == raw else raw


def _about(raw: bytes) -> WorkerInfo:
    try:
        return _about_decoder.decode(raw)
    except msgpack.UNREADABLE:
        return _NOTHING


def _message(raw: bytes) -> dict[str, Any]:
    try:
        return dict(msgpack.decode(raw))
    except msgpack.UNREADABLE:
        return {}


def _partition(raw: bytes) -> int | None:
    """None for garbage."""
    return int(raw) if raw.isdigit() and len(raw) < 10 else None


class Fleet:
    """The workers of a namespace, their bells and their mail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys.fleet()

    async def workers(self) -> list[WorkerRecord]:
        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                pipe.hgetall(self._keys["workers"])
                pipe.hgetall(self._keys["beats"])
                pipe.zrange(self._keys["pulses"], 0, -1, withscores=True)
                return await pipe.execute()

        abouts, beats, pulses = await self._store.run_repeatable(ask)
        now = await self._store.now()
        ages = {name: max(now - int(at), 0) for name, at in pulses if -math.inf < at < math.inf}
        return [
            WorkerRecord(_name(name), _counter(beats.get(name, b"0")), _about(raw), ages.get(name))
            for name, raw in sorted(abouts.items())
        ]

    async def declare_dead(self, worker: str, counter: bytes, patience: Millis) -> Millis:
        """Declare a worker dead, unless its counter moved. Returns until when the caller has to bring back its runs; 0:
        it has not."""
        return int(
            await self._store.run_fleet_script(script("worker_bury"), self._now(), _key(worker), counter, patience)
        )

    async def take_burial(self, worker: str, held: Millis, patience: Millis) -> Millis:
        """Take over bringing back the runs of a dead worker, or go on with it. Returns until when the caller has to do
        it; 0: it has not."""
        return int(await self._store.run_fleet_script(script("burial_take"), self._now(), _key(worker), held, patience))

    async def leave(self, worker: str) -> None:
        await self._store.run_fleet_script(script("worker_leave"), _key(worker))
        await self._store.run_repeatable(lambda c: c.delete(_key(self._store.keys.mail(worker))))

    async def ring(self, queue: OpenQueue, partition: int) -> None:
        await self.ring_all([(queue.name, partition)])

    async def ring_all(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Partitions as (queue, partition); at most a thousand."""
        bells = [self._store.keys.bell(name) for name, _ in partitions]
        items = msgpack.encode([str(partition) for _, partition in partitions])
        await self._store.run_repeatable(lambda c: script("bell_ring")(c, bells, [items]))

    async def post(self, worker: str, message: dict[str, Any]) -> None:
        """Send a worker a message about something that it would otherwise learn later. Mail that it does not fetch soon
        is lost."""
        post, key = script("mail_post"), _key(self._store.keys.mail(worker))
        await self._store.run_repeatable(lambda c: post(c, [key], [msgpack.encode(message)]))

    async def zones(self) -> str | None:
        """The version of the zone database by which jobs were planned; None: not known."""
        found = await self._store.run_repeatable(lambda c: c.get(self._keys["zones"]))
        return None if found is None else found.decode(errors="replace")

    async def set_zone_version(self, version: str) -> None:
        await self._store.run_fleet_script(script("zones_note"), version)

    def _now(self) -> Millis | str:
        now = self._store.clock.override()
        return "" if now is None else now


class BellReader:
    """Listens for the bells of some queues and for a worker's mail, on a connection of its own."""

    def __init__(self, store: Store, worker: str, queues: list[str]) -> None:
        self._store = store
        self._client = open_waiting_client(store.address, store.connections)
        self._mail = store.keys.mail(worker).encode()
        self._bells = {store.keys.bell(name).encode(): name for name in queues}
        self._keys = [store.keys.bell(name) for name in queues]
        self._names = queues
        self._take = script("bell_take")

    async def listen(self, seconds: float, bells: bool = True) -> tuple[str, int] | dict[str, Any] | None:
        """Wait for a bell, as (queue, partition), or a message; None when nothing came. Garbage is an empty message.
        Raises StoreUnavailable."""
        keys = [self._mail, *(self._bells if bells else ())]
        try:
            heard = await self._client.blpop(keys, timeout=seconds)
        except (RedisError, OSError) as error:
            if is_wrong_type(error):
                await self._set_aside(keys)
            raise translate(error, self._store.address) from error
        if heard is None:
            return None
        key, value = bytes(heard[0]), bytes(heard[1])  # type: ignore[arg-type]
        if key == self._mail:
            return _message(value)
        partition = _partition(value)
        return {} if partition is None else (self._bells[key], partition)

    async def take(self) -> list[tuple[str, int]]:
        """All bells that ring now, as (queue, partition). Raises StoreUnavailable."""
        if not self._names:
            return []
        heard = await self._store.run_repeatable(lambda c: self._take(c, self._keys, []))
        rang = [(self._names[which - 1], _partition(value)) for which, value in zip(*[iter(heard)] * 2, strict=True)]
        return [(queue, partition) for queue, partition in rang if partition is not None]

    async def _set_aside(self, keys: list[bytes]) -> None:
        """Bells and mail are only hints, so keys of another type are moved away, and the others can ring."""
        names = dict.fromkeys((key.decode() for key in keys), TYPES["bell"])
        for name in await self._store.run_repeatable(lambda c: wrong_types.misused(c, names)):
            await self._store.run_repeatable(lambda c, n=name: wrong_types.set_aside(c, n, TYPES["bell"]))  # type: ignore[misc]

    async def close(self) -> None:
        await self._client.aclose()


class HeartbeatSender:
    """Sends heartbeats, blocking, from a thread of its own."""

    def __init__(self, store: Store, worker: str) -> None:
        self._store = store
        self._worker = worker
        self._client: BlockingClient | None = None
        self._script = script("worker_beat")
        keys = store.keys.fleet()
        self._keys = [keys[key] for key in self._script.keys]
        self.cluster = store.address.kind == "cluster"

    def beat(
        self, counter: int, about: WorkerInfo, joins: bool, late: Millis, step: Millis | None = None, stepped: int = 0
    ) -> HeartbeatReply:
        """`step`: by how much this worker saw the server's clock set, when all steps added up to `stepped`. Raises
        StoreUnavailable, or another StoreError."""
        now = self._store.clock.override()
        args = ["" if now is None else now, self._worker, counter, msgpack.encode(about), "1" if joins else ""]
        args += [late, "" if step is None else step, stepped]
        if self._client is None:
            self._client = open_blocking_client(self._store.address, self._store.connections)
        try:
            if counter % RENEW_EVERY == 0:
                leave_former_primary(self._client)
            answer = self._script.blocking(self._client, self._keys, args)
        except (RedisError, OSError) as error:
            if is_wrong_type(error):
                # Each beat writes all of these keys again, so move away the ones that hold another type.
                with contextlib.suppress(RedisError, OSError):
                    for base, key in zip(self._script.keys, self._keys, strict=True):
                        wrong_types.set_aside_blocking(self._client, key, TYPES[base])
            raise translate(error, self._store.address) from error
        if not answer[0]:
            return HeartbeatReply(False, int(answer[1]))
        _, now, flat, buried, workers, stepped, steps, counted = answer
        silent = {_name(raw): counter for raw, counter in zip(*[iter(flat)] * 2, strict=True)}
        before = whole(counted) if counted else None
        left = [*map(_name, buried)]
        return HeartbeatReply(True, int(now), silent, left, workers, int(stepped), steps, before, self._history())

    def _history(self) -> History | None:
        """None if the server does not say. The beat counts all the same."""
        assert self._client is not None
        try:
            info = self._client.info("replication")
        except (RedisError, OSError):
            return None
        return History(info.get("master_replid", ""), info.get("master_replid2", ""), info.get("connected_slaves", 0))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class BellRinger:
    """Rings after puts, without making the caller wait: at once, then at most once per ms and partition."""

    _SPACING_S = 0.001

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._wanted: dict[tuple[str, int], None] = {}
        self._task: asyncio.Task[None] | None = None

    def ring(self, queue: OpenQueue, partition: int) -> None:
        self._wanted[queue.name, partition] = None
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._ring_all())

    async def quiet(self) -> None:
        """Wait until all bells have rung that were asked for."""
        if self._task is not None:
            await self._task

    async def _ring_all(self) -> None:
        while self._wanted:
            wanted, self._wanted = list(self._wanted), {}
            for first in range(0, len(wanted), LARGEST_BATCH):
                # A bell is only a hint. If it is lost, the next poll finds the work.
                with contextlib.suppress(StoreError):
                    await self._fleet.ring_all(wanted[first : first + LARGEST_BATCH])
            await asyncio.sleep(self._SPACING_S)
