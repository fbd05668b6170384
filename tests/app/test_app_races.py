"""What a program asks of the app is done once, although its connection is cut before or after the script ran."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.one_queue import Line, dump
from tests.support.proxy import CUTS, Proxy, comparable
from tests.support.servers import Server
from tocsin import Every, Tocsin
from tocsin.engine.handlers import Handler
from tocsin.model.queue import Queue
from tocsin.store.transitions.claims import Runs
from tocsin.testing import ManualClock

pytestmark = pytest.mark.one_server(reason="the proxy stands before one server")

LINE = Queue("line", partitions=1)


class Program:
    """An app with one handler and one queue, which a worker that knows nothing also looks at."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.prefix = f"t{secrets.token_hex(4)}:"
        self.app = Tocsin(url, prefix=self.prefix, clock=self.clock)
        self.app.queue(LINE.name, partitions=LINE.partitions)
        self.handler: Handler = self.app.job(print, name="tests.other", queue=LINE.name)
        self.app.agent(every=30, name="tests.agent")(print)

    async def opened(self) -> None:
        self.line = Line(self.app.store, await self.app.store.open_queue(LINE), self.clock)
        self.runs = Runs(self.app.store, "worker-3.1")

    # States

    async def empty(self) -> None:
        pass

    async def there(self) -> None:
        await self.enqueue()

    async def scheduled(self) -> None:
        await self.schedule()

    async def paused(self) -> None:
        await self.enqueue()
        await self.app.pause("a")

    async def working(self) -> None:
        await self.enqueue()
        await self.line.take("a", self.runs)

    async def dead(self) -> None:
        await self.enqueue()
        await self.line.bury(await self.line.take("a", self.runs), runs=self.runs)

    async def parked(self) -> None:
        await self.enqueue()
        assert (await self.line.ask()).parked == 1

    # Calls with answers that can be compared

    async def enqueue(self) -> tuple[str, bool]:
        handle = await self.app.enqueue(self.handler, 1, id="a")
        return handle.id, handle.new

    async def enqueue_many(self) -> int:
        return await self.app.enqueue_many(self.handler, [(n,) for n in range(3)], ids=["a", "b", "c"])

    async def schedule(self) -> tuple[str, bool]:
        handle = await self.app.schedule(self.handler, Every(60), 1, id="a")
        return handle.id, handle.new

    async def schedule_many(self) -> int:
        return await self.app.schedule_many(self.handler, [(f"{n}", Every(60), (n,)) for n in range(3)])

    async def fire(self) -> str:
        return (await self.app.fire("a")).id

    async def backfill(self) -> int:
        now = self.clock.now
        return await self.app.backfill("a", now - timedelta(minutes=5), now)

    async def cancel(self) -> bool:
        return await self.app.cancel(f"a@{self.clock.ms}")


Step = Callable[[Program], Awaitable[Any]]

# Which script, in which state, asked for how.
CALLS: dict[str, tuple[str, Step, Step]] = {
    "enqueue": ("job_put", Program.empty, Program.enqueue),
    "enqueue again": ("job_put", Program.there, Program.enqueue),
    "enqueue many": ("job_put", Program.there, Program.enqueue_many),
    "schedule": ("job_put", Program.empty, Program.schedule),
    "schedule many": ("job_put", Program.empty, Program.schedule_many),
    "register agents": ("job_put", Program.empty, lambda program: program.app.register_agents()),
    "update": ("job_put", Program.scheduled, lambda program: program.app.update("a", args=(2,))),
    "update while working": ("job_put", Program.working, lambda program: program.app.update("a", args=(2,))),
    "remove": ("job_delete", Program.there, lambda program: program.app.remove("a")),
    "remove while working": ("job_delete", Program.working, lambda program: program.app.remove("a")),
    "pause": ("job_pause", Program.there, lambda program: program.app.pause("a")),
    "resume": ("job_resume", Program.paused, lambda program: program.app.resume("a")),
    "fire": ("job_fire", Program.scheduled, Program.fire),
    "backfill": ("job_fire", Program.scheduled, Program.backfill),
    "cancel": ("job_cancel", Program.there, Program.cancel),
    "cancel while working": ("job_cancel", Program.working, Program.cancel),
    "retry dead": ("job_revive", Program.dead, lambda program: program.app.retry_dead("a")),
    "drop dead": ("job_delete", Program.dead, lambda program: program.app.drop_dead("a")),
    "unpark": ("job_unpark", Program.parked, lambda program: program.app.unpark("a")),
}


async def outcome(url: str, server: Server, what: str, cut: Callable[[], None]) -> tuple[Any, dict[str, Any]]:
    """The answer, and all that is in the namespace when the program has ended."""
    _, prepare, act = CALLS[what]
    program = Program(url)
    async with program.app:
        await program.opened()
        await prepare(program)
        cut()
        answer = await act(program)
    async with Redis(unix_socket_path=str(server.socket)) as client:
        return answer, comparable(await dump(client, program.prefix))


@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize("what", CALLS)
async def test_it_is_as_if_the_connection_had_held(valkey: Server, proxy: Proxy, what: str, when: str):
    expected = await outcome(valkey.url, valkey, what, lambda: None)
    assert await outcome(proxy.url, valkey, what, lambda: proxy.cut(when, CALLS[what][0])) == expected
    assert proxy.cuts == 1
