"""The store: a connection, the opened queues, and how a script is called.

The methods that mean something stand in jobs.py (definitions), runs.py (claims) and fleet.py (workers, bells).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from tocsin.model import codec
from tocsin.model.clock import Clock, ServerClock, monotonic
from tocsin.model.durations import Millis
from tocsin.model.errors import (
    InvalidConfig,
    QueueRepartitioned,
    QueueRepartitioning,
    StoreChanged,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from tocsin.model.queue import AGENTS_QUEUE, Queue
from tocsin.store import queue_directory
from tocsin.store.connection.address import Address, parse
from tocsin.store.connection.client import Client, check_server, open_client, translate
from tocsin.store.connection.pool import ConnectionSettings, SingleServerClient
from tocsin.store.connection.shared_calls import SharedCalls
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.store.keys import Keys
from tocsin.store.numbers import whole
from tocsin.store.open_queue import LARGEST_BATCH, Call, OpenQueue, kept_session
from tocsin.store.scripts.reload import ScriptReloader
from tocsin.store.scripts.script import Script, script
from tocsin.store.sessions import SessionPool
from tocsin.store.transitions.put_batcher import PutBatcher
from tocsin.store.views import wrong_types

__all__ = ["LARGEST_BATCH", "Call", "OpenQueue", "Store"]

# How long a program's call is repeated while the server is away, and how long between two tries.
PATIENCE_S = 5.0
PAUSE_S = 0.05
# How long a program's call waits for a queue that is being repartitioned.
MOVING_PATIENCE_S = 10.0
# How many outcomes of jobs that nobody named are kept of a queue.
RESULTS_MAX = 100_000


class Store:
    """One server, one namespace."""

    def __init__(
        self,
        url: str | EmbeddedServer,
        *,
        prefix: str = "",
        hash_tag: str = "",
        names: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        connections: ConnectionSettings | None = None,
        results_max: int = RESULTS_MAX,
    ) -> None:
        self._embedded = url if isinstance(url, EmbeddedServer) else None
        self.address: Address = parse(url.url if isinstance(url, EmbeddedServer) else url)
        self.keys = Keys(prefix, hash_tag, names)
        self.clock: Clock = clock or ServerClock()
        self.lanes = SessionPool()
        self.connections = connections or ConnectionSettings()
        self._results_max = results_max
        self.client: Client = None  # type: ignore[assignment]  # opened by open()
        # Done once for all who ask at the same time.
        self.shared = SharedCalls()
        self.putter = PutBatcher(self.change)
        self._healing = ScriptReloader(self.address)
        self._queues: dict[str, OpenQueue] = {}
        self._fleet = self.keys.fleet()

    async def open(self) -> None:
        """Connect and refuse what cannot be used. Raises StoreUnavailable or StoreRefused."""
        if self._embedded:
            await asyncio.to_thread(self._embedded.start)
        self.client = open_client(self.address, self.connections)
        self.client.script_reloader = self._healing
        try:
            await check_server(self.client, self.address)
            await self._guard(self._healing.load_all(self.client))
            await self.tend()
        except BaseException:
            await self.client.aclose()
            raise

    async def close(self) -> None:
        if self.client is not None:
            with contextlib.suppress(StoreError, RedisError, OSError):
                await asyncio.wait_for(self._end_sessions(), 2)
            await self.client.aclose()
        if self._embedded and threading.main_thread().is_alive():
            await asyncio.to_thread(self._embedded.close)
        elif self._embedded:
            # At the exit of the interpreter, which starts no more threads by then.
            self._embedded.close()

    async def tend(self) -> None:
        """Reopen idle connections that were lost; for whoever comes by now and then. Raises StoreUnavailable."""
        await self._guard(self.client.refill_idle_connections())

    async def revive_server(self) -> None:
        """Bring an embedded server back that has died; nothing to do for any other."""
        if self._embedded:
            await asyncio.to_thread(self._embedded.ensure)

    # Scripts, as counted since the store was made

    @property
    def scripts_loaded(self) -> int:
        """How many the server took when the store was opened."""
        return self._healing.loaded

    @property
    def scripts_reloaded(self) -> int:
        """How often a script was loaded again that the server had forgotten."""
        return self._healing.reloaded

    @property
    def script_fallbacks(self) -> int:
        """How many calls were sent in full, because loading did not help."""
        return self._healing.fallbacks

    @property
    def script_errors(self) -> int:
        """How many calls failed for another reason than a server that is not available."""
        return self._healing.errors

    # Queues

    async def open_queue(self, queue: Queue) -> OpenQueue:
        """Register the queue, or compare it with what Redis holds. Raises InvalidConfig if they differ."""
        known = self._queues.get(queue.name)
        if known is None:
            self._refuse_tagless_cluster(queue.name)
            declared = ("open", queue.name, queue.order, queue.partitions)
            known = await self.shared.ask(declared, lambda: self._open_patiently(queue))
        return known

    async def _open_patiently(self, queue: Queue) -> OpenQueue:
        opened = await self._while_moving(lambda: self._open(queue))
        # Two that open it at the same time must hold the same: it may change.
        return self._queues.setdefault(queue.name, opened)

    async def _open(self, queue: Queue) -> OpenQueue:
        stored = await self._declare(queue)
        # What an operator has made of the partitions goes before what code declares, as with other settings.
        fixed = queue.partitions_given and not stored.move
        if stored.order != queue.order or (stored.partitions != queue.partitions and fixed):
            raise InvalidConfig(
                f"queue {queue.name!r} has order {stored.order!r} and {stored.partitions} partitions in Redis; "
                f"this program declares {queue.order!r} and {queue.partitions}: declare it the same, "
                f"or run `tocsin queues repartition {queue.name} {queue.partitions}`"
            )
        return await self._open_partitions(queue.name, stored)

    async def find_queue(self, name: str) -> OpenQueue | None:
        """A queue that somebody registered, as it stands; None if nobody did."""
        if name not in self._queues:
            raw = await self.read(lambda c: c.hget(self._fleet["queues"], name))
            if raw is None:
                return None
            await self.open_queue(queue_directory.read(raw).queue(name))
        return self._queues[name]

    def opened(self) -> list[OpenQueue]:
        return list(self._queues.values())

    def forget_queue(self, name: str) -> None:
        """After it was deleted: the next call that names it looks at the register."""
        self._queues.pop(name, None)

    async def queue_names(self) -> list[str]:
        found = await self.read(lambda c: c.hkeys(self._fleet["queues"]))
        return sorted(name.decode(errors="replace") for name in found)

    async def reopen(self, queue: OpenQueue) -> None:
        """After StoreChanged: the partitions and their epochs as they are now, created anew where they were wiped.
        Raises QueueMoving while it is being repartitioned."""
        stored = await self._declare(queue.queue, queue.layout)
        if stored.order != queue.queue.order:
            raise InvalidConfig(f"queue {queue.name!r} was given another order: restart this process")
        queue.follow(stored, (await self._open_partitions(queue.name, stored)).epochs)

    async def catch_up(self, queue: OpenQueue) -> bool:
        """For who found nothing in it, and calls no script that would tell: whether it has other partitions by now."""
        raw = await self.read(lambda c: c.hget(self._fleet["queues"], queue.name))
        entry = queue_directory.QueueEntry("due", 0, queue.layout) if raw is None else queue_directory.read(raw)
        if entry.move == queue.layout and entry.moving is None:
            return False
        await self._while_moving(lambda: self.reopen(queue))
        return True

    async def _while_moving(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Tried again for a while as long as the queue is being repartitioned."""
        give_up = monotonic() + MOVING_PATIENCE_S
        while True:
            try:
                return await attempt()
            except QueueRepartitioning:
                if monotonic() > give_up:
                    raise
                await asyncio.sleep(4 * PAUSE_S)

    def _refuse_tagless_cluster(self, name: str) -> None:
        if name == AGENTS_QUEUE and self.address.kind == "cluster" and not self.keys.hash_tag:
            raise InvalidConfig("redis.scheduler.keys.hash-tag must be set for agents on a Redis Cluster, e.g. to 'ps'")

    async def _declare(self, queue: Queue, layout: str = "") -> queue_directory.QueueEntry:
        settings = queue_directory.written(queue_directory.QueueEntry(queue.order, queue.partitions, layout))
        stored = queue_directory.read(await self.fleet(script("queue_declare"), queue.name, settings))
        if stored.moving is not None:
            raise QueueRepartitioning(queue.name, stored.moving.to)
        return stored

    async def _open_partitions(self, name: str, entry: queue_directory.QueueEntry) -> OpenQueue:
        opened = OpenQueue(entry.queue(name), self.keys, [], entry.move)
        calls = [([keys["meta"]], [secrets.token_hex(8), entry.order, entry.partitions]) for keys in opened.keys]
        for epoch, order, partitions, _ in await self.read(lambda _: self._call_each(script("partition_open"), calls)):
            if (order, partitions) != (entry.order.encode(), b"%d" % entry.partitions):
                # A change may have begun, or ended, since the register was read.
                if await self._declare(opened.queue) != entry:
                    raise QueueRepartitioning(name, whole(partitions, entry.partitions))
                has = f"has order {order!r} and {partitions!r} partitions, not {entry.order!r} and {entry.partitions}"
                raise InvalidConfig(f"a partition of queue {name!r} {has}: `tocsin doctor` says what to do")
            opened.epochs.append(epoch)
        return opened

    def most_unnamed(self, queue: OpenQueue) -> int:
        """How many outcomes of jobs that nobody named each of its partitions keeps."""
        return math.ceil(self._results_max / queue.partitions)

    # Calls

    async def now(self) -> Millis:
        """The server's time."""
        given = self.clock.override()
        if given is not None:
            return given
        seconds, micros = await self.read(lambda c: c.time())
        return int(seconds) * 1000 + int(micros) // 1000

    async def read(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        """A command that changes nothing, or may be repeated: tried again for a while if the server is away."""
        return await self._patiently(lambda: self._guard(command(self.client)))

    async def fleet(self, what: Script, *args: Any) -> Any:
        keys = [self._fleet[key] for key in what.keys]
        return await self.read(lambda c: what(c, keys, args))

    async def change(self, name: str, queue: OpenQueue, partition: int, *args: Any) -> list[Any]:
        """A program's change: repeated under one seq until it is answered, for a while. Raises QueueMoved if it was not
        made and the queue has other partitions by now."""
        with self.lanes.lane() as (session, seq):
            call = queue.call(name, partition, session, seq, args)
            try:
                return await self._patiently(lambda: self.call(call))  # type: ignore[no-any-return]
            except StoreChanged:
                await self._while_moving(lambda: self.reopen(queue))
                answer = None if call.layout == queue.layout else await self.answer_of(call)
                return answer or await self._patiently(lambda: self.call(call))

    async def change_job(self, name: str, queue: OpenQueue, member: str, *args: Any) -> list[Any]:
        """A program's change of one job, in whichever partition it is."""
        while True:
            try:
                return await self.change(name, queue, queue.partition_of(member), *args)
            except QueueRepartitioned:
                continue

    async def answer_of(self, call: Call) -> list[Any] | None:
        """Of a call on a queue that was repartitioned since: what it was answered; None: it was never made."""
        kept = kept_session(call.session, call.queue.former[call.layout][call.partition])
        look, sessions = script("session_answer"), call.queue.keys[0]["sessions"]
        answer = await self.read(lambda c: look(c, [sessions], [kept, call.seq]))
        return answer[1] if answer[0] else None

    async def call(self, call: Call) -> list[Any]:
        """Once. Raises StoreUnavailable if the answer did not come: repeat it with the same seq."""
        keys, args = call.queue.keys_of(call.script, call.partition), self._arguments(call)
        kept = wrong_types.of_partition(call.queue, call.partition)
        return call.checked(await self._guard(call.script(self.client, keys, args), kept))

    async def call_all(self, calls: Sequence[Call]) -> list[list[Any] | StoreError]:
        """Several at once, each with its own answer or error; one round trip where the server is not a cluster."""
        client = self.client
        if not isinstance(client, SingleServerClient) or any(call.layout != call.queue.layout for call in calls):
            answers = await asyncio.gather(*map(self.call, calls), return_exceptions=True)
            return [_error_or_answer(answer) for answer in answers]
        try:
            answers = await client.send_together([self._command(call) for call in calls])
        except (RedisError, OSError) as error:
            failed = translate(error, self.address)
            return [failed for _ in calls]
        return [await self._settle(call, answer) for call, answer in zip(calls, answers, strict=True)]

    async def _call_each(self, what: Script, calls: Sequence[tuple[list[str], list[Any]]]) -> list[Any]:
        """One script on several keys; one round trip where the server is not a cluster. Raises the first error."""
        client = self.client
        if not isinstance(client, SingleServerClient):
            return await asyncio.gather(*(what(client, keys, args) for keys, args in calls))
        answers = await client.send_together([("EVALSHA", what.sha, len(keys), *keys, *args) for keys, args in calls])
        for n, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                answers[n] = await what(client, *calls[n])
            elif isinstance(answer, RedisError):
                self._healing.count(answer)
                raise answer
        return answers

    async def _settle(self, call: Call, answer: Any) -> list[Any] | StoreError:
        try:
            if isinstance(answer, NoScriptError):
                return await self.call(call)
            if isinstance(answer, (RedisError, OSError)):
                self._healing.count(answer)
                kept = wrong_types.of_partition(call.queue, call.partition)
                return await wrong_types.explain(self.client, answer, self.address, kept)
            return call.checked(answer)
        except StoreError as error:
            return error

    def _command(self, call: Call) -> tuple[Any, ...]:
        keys = call.queue.keys_of(call.script, call.partition)
        return "EVALSHA", call.script.sha, len(keys), *keys, *self._arguments(call)

    def _arguments(self, call: Call) -> list[Any]:
        call.queue.expect(call.layout)
        now = self.clock.override()
        return [
            call.queue.epochs[call.partition],
            "" if now is None else now,
            call.session,
            call.seq,
            *call.args,
        ]

    async def _guard(self, awaitable: Awaitable[Any], kept: Iterable[tuple[str, str]] | None = None) -> Any:
        """`kept`: the keys that it is about, and what they should hold."""
        try:
            return await awaitable
        except (RedisError, OSError) as error:
            known = wrong_types.of_all(self.keys, self._queues.values()) if kept is None else kept
            raise await wrong_types.explain(self.client, error, self.address, known) from error

    async def _patiently(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        give_up = monotonic() + PATIENCE_S
        pause = PAUSE_S
        while True:
            try:
                return await attempt()
            except StoreFull:
                raise
            except StoreUnavailable:
                if monotonic() + pause > give_up:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
                with contextlib.suppress(StoreError):
                    await self.revive_server()

    async def _end_sessions(self) -> None:
        names = self.lanes.names()
        if names:
            for queue in self._queues.values():
                await self.end_sessions(queue, names)

    async def prune_sessions(self, queue: OpenQueue, partition: int) -> int:
        """Forget what programs that died left behind; in pages. How many sessions."""
        prune, forgotten = script("session_prune"), 0
        cursor: bytes = b"0"
        key, now = queue.keys[partition]["sessions"], self.clock.override()
        while True:
            args = ["" if now is None else now, cursor]
            cursor, some = await self._guard(prune(self.client, [key], args))
            forgotten += int(some)
            if cursor == b"0":
                return forgotten

    async def end_sessions(self, queue: OpenQueue, names: list[str]) -> None:
        packed = [codec.encode(names[at : at + LARGEST_BATCH]) for at in range(0, len(names), LARGEST_BATCH)]
        calls = [([keys["sessions"]], [some]) for keys in queue.keys for some in packed]
        await self._guard(self._call_each(script("session_end"), calls))


def _error_or_answer(answer: Any) -> list[Any] | StoreError:
    if isinstance(answer, BaseException) and not isinstance(answer, StoreError):
        raise answer
    return answer  # type: ignore[no-any-return]
