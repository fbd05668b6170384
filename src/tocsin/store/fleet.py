"""The fleet: who is alive, who rings, who is to be told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.exceptions import RedisError

from tocsin.model import codec
from tocsin.model.durations import Millis
from tocsin.model.errors import StoreError
from tocsin.store.connect import BlockingClient, open_blocking_client, open_waiting_client, translate
from tocsin.store.scripts import script
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store


class About(msgspec.Struct, frozen=True):
    """What a worker says of itself with each beat."""

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
    # As health.py says it, with its reasons and the signals of the watchdogs.
    health: str = ""
    reasons: list[str] = []
    signals: list[str] = []
    # Those that are not closed, by name.
    breakers: dict[str, str] = {}


class Worker(msgspec.Struct, frozen=True):
    """A worker as others see it. `age` is how long ago it last beat, on the server's clock; None if its version does
    not say."""

    id: str
    counter: int
    about: About
    age: Millis | None = None


class Beat(msgspec.Struct, frozen=True):
    """What one beat showed."""

    accepted: bool
    now: Millis
    counters: dict[str, int]
    buried: list[str]


_about_decoder = msgspec.msgpack.Decoder(About)


class Fleet:
    """The workers of a namespace, their bells and their mail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys.fleet()

    async def workers(self) -> list[Worker]:
        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                pipe.hgetall(self._keys["workers"])
                pipe.hgetall(self._keys["beats"])
                pipe.hgetall(self._keys["heard"])
                return await pipe.execute()

        abouts, beats, heard = await self._store.read(ask)
        now = await self._store.now()
        ages = {name: max(now - int(at), 0) for name, at in heard.items()}
        return [
            Worker(name.decode(), int(beats.get(name, 0)), _about_decoder.decode(raw), ages.get(name))
            for name, raw in sorted(abouts.items())
        ]

    async def bury(self, worker: str, counter: int) -> bool:
        """Declare it dead, unless its counter moved."""
        return bool(await self._store.fleet(script("worker_bury"), self._now(), worker, counter))

    async def leave(self, worker: str) -> None:
        await self._store.fleet(script("worker_leave"), worker)
        await self._store.read(lambda c: c.delete(self._store.keys.mail(worker)))

    async def ring(self, queue: OpenQueue, partition: int) -> None:
        await self.ring_all([(queue.name, partition)])

    async def ring_all(self, partitions: Sequence[tuple[str, int]]) -> None:
        """The partitions by queue; at most a thousand."""
        bells = [self._store.keys.bell(name) for name, _ in partitions]
        items = codec.encode([str(partition) for _, partition in partitions])
        await self._store.read(lambda c: script("bell_ring")(c, bells, [items]))

    async def post(self, worker: str, message: dict[str, Any]) -> None:
        """Tell a worker something it would otherwise learn later. Mail that nobody fetches is not kept."""
        post, key = script("mail_post"), self._store.keys.mail(worker)
        await self._store.read(lambda c: post(c, [key], [codec.encode(message)]))

    async def zones(self) -> str | None:
        """The version of the zone database by which jobs were planned; None: nobody has said."""
        found = await self._store.read(lambda c: c.get(self._keys["zones"]))
        return None if found is None else found.decode(errors="replace")

    async def planned_by(self, version: str) -> None:
        await self._store.fleet(script("zones_note"), version)

    def _now(self) -> Millis | str:
        now = self._store.clock.override()
        return "" if now is None else now


class Ear:
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
        """(queue, partition) of a bell, a message, or None when nothing came. Raises StoreUnavailable."""
        keys = [self._mail, *(self._bells if bells else ())]
        try:
            heard = await self._client.blpop(keys, timeout=seconds)
        except (RedisError, OSError) as error:
            raise translate(error, self._store.address) from error
        if heard is None:
            return None
        key, value = bytes(heard[0]), bytes(heard[1])  # type: ignore[arg-type]
        if key == self._mail:
            return dict(codec.decode(value))
        return self._bells[key], int(value)

    async def take(self) -> list[tuple[str, int]]:
        """All bells that ring now, as (queue, partition). Raises StoreUnavailable."""
        if not self._names:
            return []
        heard = await self._store.read(lambda c: self._take(c, self._keys, []))
        return [(self._names[which - 1], int(value)) for which, value in zip(*[iter(heard)] * 2, strict=True)]

    async def close(self) -> None:
        await self._client.aclose()


class Pulse:
    """The blocking side of a worker's heart, for a thread of its own."""

    def __init__(self, store: Store, worker: str) -> None:
        self._store = store
        self._worker = worker
        self._client: BlockingClient | None = None
        self._script = script("worker_beat")
        keys = store.keys.fleet()
        self._keys = [keys[key] for key in self._script.keys]

    def beat(self, counter: int, about: About, joins: bool) -> Beat:
        """Raises StoreUnavailable, or another StoreError."""
        now = self._store.clock.override()
        args = ["" if now is None else now, self._worker, counter, codec.encode(about), "1" if joins else ""]
        if self._client is None:
            self._client = open_blocking_client(self._store.address, self._store.connections)
        try:
            answer = self._script.blocking(self._client, self._keys, args)
        except (RedisError, OSError) as error:
            raise translate(error, self._store.address) from error
        if not answer[0]:
            return Beat(False, int(answer[1]), {}, [])
        flat = answer[2]
        counters = {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}
        return Beat(True, int(answer[1]), counters, [name.decode() for name in answer[3]])

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class Ringer:
    """Rings after puts without making the caller wait: at once, then once a millisecond per partition at most."""

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
        """Wait until all that was asked for has rung."""
        if self._task is not None:
            await self._task

    async def _ring_all(self) -> None:
        while self._wanted:
            wanted, self._wanted = list(self._wanted), {}
            for first in range(0, len(wanted), LARGEST_BATCH):
                # A hint that could not be given is found by the next poll.
                with contextlib.suppress(StoreError):
                    await self._fleet.ring_all(wanted[first : first + LARGEST_BATCH])
            await asyncio.sleep(self._SPACING_S)
