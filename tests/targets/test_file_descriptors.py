"""Connections that jobs cause are bounded, and runs that find no descriptor free go back without an attempt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.http_receiver import Receiver
from tests.support.one_delivery import Sender, dialer
from tests.support.servers import Server
from tests.support.waiting import eventually, run_dry
from tocsin import Http, Message, Retry, Secret, Stage, Subprocess, Tocsin
from tocsin.engine.handlers import TryLater
from tocsin.model.delivery import DeliveryFailed
from tocsin.targets.external import TargetPermissions
from tocsin.targets.http import connections
from tocsin.targets.messages import clients
from tocsin.targets.messages.broker import BrokerMessage
from tocsin.targets.messages.clients import Clients
from tocsin.testing import ManualClock
from tocsin.worker import WorkerSettings

REACH = TargetPermissions(http_allow=("127.0.0.0/8",), message_allow=("127.0.0.0/8",))
LETTER = BrokerMessage(b"x", None, {"idempotency-key": "1"}, "text/plain", "1")


class YesMan:
    """A Redis of somebody who lets everybody in, and answers all that is asked."""

    def __init__(self) -> None:
        self.entries = 0
        self.port = 0
        self.guests: set[asyncio.StreamWriter] = set()
        self.most = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for guest in self.guests:
            guest.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.guests.add(writer)
        self.most = max(self.most, len(self.guests))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while line := await reader.readline():
                words = [await self._word(reader) for _ in range(int(line[1:]))]
                self.entries += words[0] == b"XADD"
                writer.write(b"$3\r\n1-1\r\n" if words[0] == b"XADD" else b"+OK\r\n")
        self.guests.discard(writer)
        writer.close()

    async def _word(self, reader: asyncio.StreamReader) -> bytes:
        size = int((await reader.readline())[1:])
        return (await reader.readexactly(size + 2))[:-2]


@pytest.fixture
async def yes_men() -> AsyncIterator[list[YesMan]]:
    made = [YesMan() for _ in range(12)]
    for each in made:
        await each.start()
    yield made
    for each in made:
        await each.stop()


@pytest.fixture
def used_up() -> Iterator[Any]:
    """Called, no descriptor is free any more; until the test ends, or the second call."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    filling: list[int] = []

    def switch(on: bool = True) -> None:
        if not on:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
            while filling:
                os.close(filling.pop())
            return
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, usual[1]))
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.open(os.devnull, os.O_RDONLY))

    yield switch
    switch(False)


async def send(made: Clients, url: str, timeout: float = 10.0) -> None:
    await made.send(Message(url).place, LETTER, timeout)


async def test_a_thousand_logins_at_one_host_have_few_connections(tocsin_app: Tocsin, yes_men: list[YesMan]) -> None:
    [host, *_] = yes_men
    made = Clients(tocsin_app.store, dialer("127.0.0.1"))
    try:
        for n in range(1000):
            await send(made, f"redis://user{n}:x@127.0.0.1:{host.port}/s")
        assert len(made._clients) == clients.MOST_PER_HOST
        assert host.entries == 1000
        assert host.most <= clients.MOST_PER_HOST + 5
    finally:
        await made.close()


async def test_the_client_that_was_used_longest_ago_makes_room(
    tocsin_app: Tocsin, yes_men: list[YesMan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MOST", 3)
    made = Clients(tocsin_app.store, dialer("127.0.0.1"))
    urls = [f"redis://127.0.0.1:{each.port}/s" for each in yes_men[:4]]
    try:
        for url in (*urls[:3], urls[0], urls[3]):
            await send(made, url)
        assert {client.server for client in made._clients.values()} == {
            Message(url).place.server for url in (urls[0], urls[2], urls[3])
        }
    finally:
        await made.close()


async def test_who_finds_all_clients_in_use_comes_again(
    tocsin_app: Tocsin, redis_broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MOST_PER_HOST", 2)
    made = Clients(tocsin_app.store, dialer("127.0.0.1"))
    urls = [f"redis://127.0.0.1:{redis_broker.port}/s?db={n}" for n in range(3)]
    redis_broker.pause()
    try:
        waiting = [asyncio.create_task(send(made, url)) for url in urls[:2]]
        await eventually(lambda: len(made._clients) == 2, "both are under way")
        with pytest.raises(TryLater):
            await send(made, urls[2])
        redis_broker.resume()
        await asyncio.gather(*waiting)
        await send(made, urls[2])
    finally:
        redis_broker.resume()
        await made.close()


async def test_connections_to_brokers_are_bounded_whatever_opens_them(
    tocsin_app: Tocsin, yes_men: list[YesMan]
) -> None:
    made = Clients(tocsin_app.store, dialer("127.0.0.1", most=4))
    try:
        for host in yes_men:
            async with asyncio.timeout(10):
                while not host.entries:
                    with contextlib.suppress(DeliveryFailed):
                        await send(made, f"redis://127.0.0.1:{host.port}/s")
        assert sum(each.fileno() >= 0 for each in made._dialer._sockets) <= 4
    finally:
        await made.close()


async def test_messages_that_gave_up_leave_no_connections_behind(
    tocsin_app: Tocsin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client goes on connecting for half a minute, for those who come later."""
    monkeypatch.setattr(clients, "MOST", 3)
    made = Clients(tocsin_app.store, dialer("127.0.0.1"))
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(8)]
        try:
            for host in hosts:
                with pytest.raises(TimeoutError):
                    await send(made, f"nats://127.0.0.1:{host.getsockname()[1]}/x", timeout=0.02)
            assert len(made._clients) == 3
            alive = made._dialer._sockets
            await eventually(lambda: sum(each.fileno() >= 0 for each in alive) <= 3, "the others are closed")
        finally:
            await made.close()


async def test_a_broker_that_does_not_say_goodbye_keeps_no_connection(
    tocsin_app: Tocsin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS waits for the other side's farewell, for half a minute."""
    monkeypatch.setattr(clients, "CLOSE_S", 0.2)
    with Server.redis7(tls=True) as server:
        made = Clients(tocsin_app.store, dialer("127.0.0.1", "::1"))
        await send(made, f"rediss://localhost:{server.port}/x?ca={server.folder / 'tls.crt'}")
        alive = list(made._dialer._sockets)
        assert any(each.fileno() >= 0 for each in alive)
        server.pause()
        try:
            await made.close()
            await eventually(lambda: all(each.fileno() < 0 for each in alive), "it is closed", within=5)
        finally:
            server.resume()


async def test_idle_connections_to_receivers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda: 8)
    receivers = [Receiver() for _ in range(12)]
    for each in receivers:
        await each.start()
    try:
        async with Sender("127.0.0.1") as sender:
            for each in receivers:
                await sender.send(Http.get(each.url))
            assert sender.target._connections is not None
            connector: Any = sender.target._connections._guarded.connector
            assert sum(map(len, connector._conns.values())) == 4
    finally:
        for each in receivers:
            await each.stop()


@pytest.mark.parametrize("scheme", ["http", "redis", "nats", "kafka", "amqp"])
async def test_a_run_that_finds_no_descriptor_goes_back_without_an_attempt(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver, yes_men: list[YesMan], used_up: Any, scheme: str
) -> None:
    def target(port: int) -> Http | Message:
        url = f"{scheme}://127.0.0.1:{port}/x"
        return Http.get(url) if scheme == "http" else Message(url)

    ports = {"http": receiver.port, "redis": yes_men[0].port}
    worker = await tocsin_app.worker(settings=WorkerSettings(reach=REACH))
    try:
        # The first delivery of a kind imports and reads what it needs, and takes descriptors for that too.
        await tocsin_app.enqueue(target(1), id="first", retry=Retry(1, "1h"))
        await run_dry(worker)
        await tocsin_app.enqueue(target(ports.get(scheme, 2)), id="a")
        worker.served["default"].forget_dues()
        used_up()
        await run_dry(worker)
        used_up(False)
        job = await tocsin_app.get("a")
        assert job is not None
        assert (job.stage, job.attempt) == (Stage.WAITING, 1)
        tocsin_clock.advance("5s")
        worker.served["default"].forget_dues()
        await run_dry(worker)
        ran = [run.outcome async for run in tocsin_app.runs() if run.job_id == "a"]
        assert ran == (["succeeded"] if scheme in ports else ["dead"])
    finally:
        used_up(False)
        await worker.kill()


@pytest.mark.parametrize("kind", ["header", "signature", "login", "program"])
async def test_a_run_whose_secret_cannot_be_read_for_want_of_a_descriptor_goes_back_without_an_attempt(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver, used_up: Any, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "key").write_text("bXktc2VjcmV0LWtleS1vZi0zMi1ieXRlcyEh")
    key = Secret.file(str(tmp_path / "key"))
    target: Http | Message | Subprocess = {
        "header": lambda: Http.get(receiver.url, headers={"X": key}),
        "signature": lambda: Http.get(receiver.url, sign=key),
        "login": lambda: Message("nats://127.0.0.1:1/x", password=key),
        "program": lambda: Subprocess(["/bin/true"], env={"KEY": key}),
    }[kind]()
    reach = replace(REACH, secrets={f"{tmp_path}/*": ("*",)}, programs={"/bin/true": ("KEY",)})
    worker = await tocsin_app.worker(settings=WorkerSettings(reach=reach))
    try:
        await tocsin_app.enqueue(target, id="first", retry=Retry(1, "1h"))
        await run_dry(worker)
        await tocsin_app.enqueue(target, id="a")
        worker.served["default"].forget_dues()
        used_up()
        await run_dry(worker)
        used_up(False)
        job = await tocsin_app.get("a")
        assert job is not None
        assert (job.stage, job.attempt) == (Stage.WAITING, 1)
        tocsin_clock.advance("5s")
        worker.served["default"].forget_dues()
        await run_dry(worker)
        assert [run.outcome async for run in tocsin_app.runs() if run.job_id == "a"] == (
            ["dead"] if kind == "login" else ["succeeded"]
        )
    finally:
        used_up(False)
        await worker.kill()
