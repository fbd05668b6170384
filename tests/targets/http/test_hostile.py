"""Receivers that do not behave: each attempt ends in time, in bounded memory, and says what happened."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.one_delivery import Sender
from tests.support.raw_server import Conversation, RawServer, saying, without_end
from tests.support.servers import certificate
from tocsin import Http, Retry, Tocsin
from tocsin.model.failure_class import FailureClass
from tocsin.resilience.classify import Classifier
from tocsin.testing import run_until_idle

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    async with Sender("127.0.0.1") as made:
        yield made


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """RST instead of an answer."""
    made = writer.get_extra_info("socket")
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    raise ConnectionResetError


NETWORK = {
    "closed without a word": saying(close=True),
    "reset": reset,
    "closed within the head": saying(OK + b"Content-Le", close=True),
    "body shorter than it says": saying(OK + b"Content-Length: 10\r\n\r\nabc", close=True),
    "chunks that do not end": saying(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", close=True),
}
GARBAGE = {
    "not HTTP": saying(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", close=True),
    "no status": saying(b"HTTP/1.1 hello\r\n\r\n", close=True),
    "a header of a megabyte": saying(OK + b"X-Large: " + b"a" * 2**20 + b"\r\n\r\n"),
    "a header without a colon": saying(OK + b"nonsense\r\n\r\n", close=True),
    "a head without end": without_end(OK, b"X-More: " + b"a" * 1000 + b"\r\n"),
    "chunks that are none": saying(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", close=True),
}


@pytest.mark.parametrize("what", NETWORK)
async def test_a_broken_connection_is_worth_another_try(sender: Sender, what: str) -> None:
    async with RawServer(NETWORK[what]) as server:
        failure = await sender.fail(Http.post(server.url, json=1, timeout=5))
    assert not failure.final
    assert failure.told == {}
    assert Classifier().classify(failure) is FailureClass.TRANSIENT


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_is_worth_another_try(sender: Sender, what: str) -> None:
    async with RawServer(GARBAGE[what]) as server:
        failure = await sender.fail(Http.post(server.url, json=1, timeout=5))
    assert not failure.final
    assert Classifier().classify(failure) in (FailureClass.SERVER_ERROR, FailureClass.TRANSIENT)
    # A megabyte of it is not repeated.
    assert len(str(failure)) < 800


async def test_nobody_listens(sender: Sender) -> None:
    async with RawServer(saying()) as server:
        url = server.url
    failure = await sender.fail(Http.get(url))
    assert not failure.final
    assert "Connect call failed" in str(failure)
    assert Classifier().classify(failure) is FailureClass.TRANSIENT


async def test_a_host_that_has_no_address(sender: Sender) -> None:
    failure = await sender.fail(Http.get("http://no-such-host.invalid/"))
    assert not failure.final
    assert "no-such-host.invalid" in str(failure)
    assert Classifier().classify(failure) is FailureClass.TRANSIENT


SLOW = {
    "says nothing": saying(),
    "head byte by byte": without_end(b"HTTP/1.1 200 O", b"K", 0.01),
    "headers one by one": without_end(OK, b"X: y\r\n", 0.01),
    "body byte by byte": without_end(OK + b"Content-Length: 100000\r\n\r\n", b"a", 0.01),
    "chunk by chunk": without_end(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n", 0.01),
}


@pytest.mark.parametrize("what", SLOW)
async def test_a_slow_answer_ends_at_the_timeout_and_the_connection_with_it(sender: Sender, what: str) -> None:
    async with RawServer(SLOW[what]) as server:
        failure = await sender.fail(Http.get(server.url, timeout=0.2))
        async with asyncio.timeout(5):
            await server.closed.wait()
    assert str(failure).endswith("no complete answer within 0.2 s")
    assert not failure.final
    assert Classifier().classify(failure) is FailureClass.TRANSIENT


async def test_a_run_whose_answer_is_slow_is_retried(tocsin_app: Tocsin) -> None:
    answers = iter([SLOW["body byte by byte"], saying(OK + b"Content-Length: 2\r\n\r\nok")])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next(answers)(reader, writer)

    async with RawServer(answer) as server:
        handle = await tocsin_app.enqueue(Http.get(server.url, timeout=0.2), id="a", retry=Retry(1, 0))
        await run_until_idle(tocsin_app)
    assert (await handle.result())["head"] == "ok"


ENDLESS: dict[str, Conversation] = {
    "until closed": without_end(OK + b"\r\n", b"a" * 10_000),
    "of a terabyte": without_end(OK + b"Content-Length: 1000000000000\r\n\r\n", b"a" * 10_000),
    "in chunks": without_end(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"2710\r\n" + b"a" * 10_000 + b"\r\n"),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_an_endless_body_is_not_read_to_its_end(sender: Sender, what: str) -> None:
    async with RawServer(ENDLESS[what]) as server:
        told = await sender.send(Http.get(server.url, timeout=10))
        async with asyncio.timeout(5):
            await server.closed.wait()
    assert told == {"status": 200, "ms": 0, "head": "a" * 256}


async def test_many_large_bodies_do_not_fill_the_memory(sender: Sender) -> None:
    async with RawServer(ENDLESS["until closed"]) as server:
        await sender.send(Http.get(server.url))
        tracemalloc.start()
        try:
            await asyncio.gather(*(sender.send(Http.get(server.url)) for _ in range(20)))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # Both sides are in this process, with a few buffers for each connection.
    assert most < 20 * 2**20


async def test_what_is_packed_stays_packed(sender: Sender) -> None:
    bomb = gzip.compress(bytes(20 * 2**20))
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with RawServer(saying(head + bomb)) as server:
        tracemalloc.start()
        try:
            told = await sender.send(Http.get(server.url))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert told["status"] == 200
    assert told["head"].startswith("\x1f\ufffd")
    assert most < 5 * 2**20


async def test_a_body_that_is_no_text_is_told_all_the_same(tocsin_app: Tocsin) -> None:
    body = b"caf\xe9 \xff\x00 ok"
    async with RawServer(saying(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)) as server:
        handle = await tocsin_app.enqueue(Http.get(server.url), id="a")
        await run_until_idle(tocsin_app)
    [run] = [run async for run in tocsin_app.runs()]
    assert run.told["head"] == (await handle.result())["head"] == "caf� �� ok"


async def test_a_connection_is_used_again_if_the_whole_body_was_read(sender: Sender) -> None:
    body = b"a" * 60_000
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body[:30_000])
            await writer.drain()
            writer.write(body[30_000:])
            await reader.readuntil(b"\r\n\r\n")

    async with RawServer(answer) as server:
        for _ in range(3):
            await sender.send(Http.get(server.url))
    assert connections == 1


async def test_a_certificate_that_nobody_knows_is_no_reason_to_trust(tmp_path: Path, sender: Sender) -> None:
    files = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["tls-cert-file"], files["tls-key-file"])
    async with RawServer(saying(OK + b"\r\n"), ssl=context) as server:
        failure = await sender.fail(Http.get(server.url))
    assert "certificate verify failed" in str(failure).lower()
    assert server.requests == 0
    assert not failure.final
    assert Classifier().classify(failure) is FailureClass.UNKNOWN
