"""The middleware behind a real server, asked over HTTP, killed and hung up on."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.asgi_client import SECRET
from tests.support.once_work import KEY
from tests.support.python_path import PYTHON_PATH
from tests.support.servers import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.parametrize("where", ["valkey"], indirect=True)


class Served:
    def __init__(self, where: str, name: str, folder: Path, *more: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            sys.executable,
            "-m",
            "tests.support.receiver_process",
            str(self.port),
            where,
            name,
            str(folder),
            *more,
        ]
        self.process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": PYTHON_PATH})

    def wait(self) -> None:
        until(self._listens, "the receiver listens", within=60)

    def _listens(self) -> bool:
        assert self.process.poll() is None
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Notes:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def count(self, word: str) -> int:
        file = self._folder / "notes"
        return file.read_text().split().count(word) if file.exists() else 0

    def go_on(self) -> None:
        (self._folder / "go_on").touch()


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


@pytest.fixture
def serve(where: str, name: str, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    running: list[Served] = []

    def start(*more: str) -> Served:
        running.append(Served(where, name, tmp_path, *more))
        running[-1].wait()
        return running[-1]

    yield start
    for each in running:
        each.kill()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30, verify=False, limits=httpx.Limits(max_connections=None)) as made:
        yield made


async def post(client: httpx.AsyncClient, served: Served, path: str = "/hook", **more: Any) -> httpx.Response:
    options: dict[str, Any] = {"content": b"{}", **more}
    return await client.post(served.url + path, headers={"Idempotency-Key": KEY}, **options)


async def settled(client: httpx.AsyncClient, served: Served, path: str) -> httpx.Response:
    """As a sender does: again, while it is told that the first is still at it."""
    async with asyncio.timeout(30):
        while (told := await post(client, served, path)).status_code == 409:
            assert int(told.headers["retry-after"]) >= 1
        return told


async def test_requests_to_several_receivers_have_one_effect(serve, client, notes):
    receivers = [serve(), serve()]
    assert notes.count("up") == 2
    told = await asyncio.gather(*(settled(client, served, "/hook") for served in receivers for _ in range(25)))
    assert {each.status_code for each in told} == {200}
    assert len({each.text for each in told}) == 1
    assert [each.headers.get("idempotency-replayed") for each in told].count(None) == 1
    assert notes.count("effect") == 1


async def test_a_receiver_that_is_killed_at_work_leaves_the_key_to_the_next(serve, client, notes):
    first, second = serve(), serve()
    lost = asyncio.create_task(post(client, first, "/slow"))
    await asyncio.to_thread(until, lambda: notes.count("begun"), "the first is at work")
    assert (await post(client, second, "/slow")).status_code == 409
    os.kill(first.process.pid, 9)
    with pytest.raises(httpx.TransportError):
        await lost
    notes.go_on()
    told = await settled(client, second, "/slow")
    assert (told.status_code, told.text) == (200, str(second.process.pid))
    assert notes.count("effect") == 1


async def test_a_sender_that_hangs_up_gets_the_answer_when_it_comes_again(serve, client, notes):
    served = serve()
    impatient = asyncio.create_task(post(client, served, "/slow"))
    await asyncio.to_thread(until, lambda: notes.count("begun"), "it is at work")
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    notes.go_on()
    told = await settled(client, served, "/slow")
    assert (told.text, told.headers["idempotency-replayed"]) == (str(served.process.pid), "true")
    assert [notes.count("begun"), notes.count("effect")] == [1, 1]


async def test_bodies_that_are_too_large_or_never_end_are_refused(serve, client, notes):
    served = serve()

    assert (await post(client, served, content=b"x" * 10_001)).status_code == 413
    assert await status_of(served, chunks=[b"x" * 1000] * 20) == 413
    assert await status_of(served, chunks=[b"x"]) == 408
    assert notes.count("begun") == 0
    assert (await post(client, served)).status_code == 200


ODD = [
    "/hooks/orders",
    "/hooks/orders/",
    "//hooks/orders",
    "/hooks%2Forders",
    "/hooks%252Forders",
    "/%68ooks/orders",
    "/hooks/%2e/orders",
    "/a/%2e%2e/hooks/orders",
    "/hooks%5corders",
    "/HOOKS/orders",
    "/hooks/orders?a=/b",
]


async def test_nobody_gets_around_the_signature_by_writing_the_path_oddly(serve, notes):
    served = serve(SECRET, "/hooks/orders")
    told = {target: await status_of(served, target=target, ends=True) for target in ODD}
    assert set(told.values()) <= {400, 401}, told
    assert notes.count("begun") == 0
    assert await status_of(served, target="/other", ends=True) == 200


async def status_of(served: Served, chunks: Sequence[bytes] = (), *, target: str = "/hook", ends: bool = False) -> int:
    """Of a request as it stands here; without an end no client would listen for the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    for chunk in [*chunks, *([b""] if ends else [])]:
        writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
    async with asyncio.timeout(20):
        status = int((await reader.readline()).split()[1])
    writer.close()
    await writer.wait_closed()
    return status
