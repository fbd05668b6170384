"""What is ready to be sent is sent at once; what the socket does not take is waited for, within the timeout."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Connection
from redis.exceptions import DataError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tocsin.store.connection.pool import ImmediateConnection, ImmediateUnixConnection


async def test_a_command_is_sent_without_another_turn_of_the_event_loop(valkey):
    connection = ImmediateUnixConnection(path=str(valkey.socket), socket_timeout=5)
    await connection.connect()
    sending = connection.send_packed_command(connection.pack_command("PING"))
    with pytest.raises(StopIteration):
        sending.send(None)
    assert await connection.read_response() == b"PONG"
    await connection.disconnect()


async def test_a_peer_that_does_not_read_is_given_up_after_the_timeout():
    accepted: list[asyncio.StreamWriter] = []

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        accepted.append(writer)

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = ImmediateConnection(host="127.0.0.1", port=port, socket_timeout=0.05, protocol=2, driver_info=None)
    await connection.connect()

    async def ask() -> None:
        await connection.send_packed_command([bytes(64 * 1024 * 1024)])
        # Some releases of Python 3.12 do not wait for what is still to be written; then the answer does not come.
        await connection.read_response()

    with pytest.raises(RedisTimeoutError):
        await ask()
    assert not connection.is_connected
    for writer in accepted:
        writer.close()
    server.close()


async def test_what_did_not_go_at_once_is_sent_in_order(valkey):
    connection = ImmediateUnixConnection(path=str(valkey.socket), socket_timeout=20)
    await connection.connect()
    value = bytes(8 * 1024 * 1024)
    await connection.send_packed_command(connection.pack_commands([("SET", "large", value), ("STRLEN", "large")]))
    assert [await connection.read_response() for _ in range(2)] == [b"OK", len(value)]
    await connection.disconnect()


class _Text(str):
    """A text that is not one to C."""


@pytest.mark.parametrize(
    "command",
    [
        ("EVALSHA", "0" * 40, 1, "key é", b"\xff\0", -1, 2**63, 10**30, 1.5, 1e300, ""),
        ("SCRIPT LOAD", "return 1"),
        (b"CONFIG GET", "save"),
        ("SET", _Text("a"), memoryview(b"b")),
        ("SET", "a", bytearray(b"b")),
    ],
)
def test_a_command_is_packed_as_redis_py_does(command):
    ours, theirs = ImmediateConnection(), Connection()
    assert b"".join(ours.pack_command(*command)) == b"".join(theirs.pack_command(*command))


@pytest.mark.parametrize("value", [None, True, ["a"]])
def test_what_has_no_form_on_the_wire_is_refused(value):
    with pytest.raises(DataError):
        ImmediateConnection().pack_command("SET", "a", value)
