"""NATS JetStream: the stream acknowledges a message, and stores a repeated one only once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import ParseResult

from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.transport import TcpTransport
from nats.errors import Error, MaxPayloadError, NoServersError
from nats.js.errors import APIError, NoStreamResponseError

from tocsin.model.broker_address import BrokerDestination, Server
from tocsin.model.delivery import DeliveryFailed
from tocsin.targets.envelope import in_header
from tocsin.targets.messages.authority import tls_of
from tocsin.targets.messages.broker import BrokerMessage, unavailable
from tocsin.targets.messages.dialer import DialledSockets

# The header by which a stream recognises a repeated message, within its duplicate window.
ID = "Nats-Msg-Id"
CONNECT_S = 10
# For servers that a server names without a port.
DEFAULT_PORT = 4222
CLOSE_S = 0.5
# Longer than any message's own timeout, which ends the wait.
LONGEST_S = 86_400.0
# JetStream's error code for a message larger than the stream allows.
TOO_LARGE = 10054
_REFUSALS = ("authorization violation", "permissions violation", "authentication expired")


class Nats:
    """One connection. A lost one is not reopened: the next message gets another broker object."""

    def __init__(self, server: Server, sockets: DialledSockets, authority: str | None = None) -> None:
        self.lost = False
        self._server = server
        self._authority = authority
        self._client = _Client(sockets)
        self._last_error: Exception | None = None
        # Subjects of messages without acknowledgement yet; each future gets the failure if none will come.
        self._unacknowledged: dict[asyncio.Future[DeliveryFailed], str] = {}

    async def connect(self) -> None:
        server = self._server
        try:
            await self._client.connect(
                servers=[f"{'tls' if server.tls else 'nats'}://{host}" for host in server.hosts],
                name="tocsin",
                allow_reconnect=False,
                # Each host is tried twice, without a pause; without a limit it would be tried for ever.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_S,
                error_cb=self._on_error,
                closed_cb=self._on_close,
                tls=tls_of(server, self._authority),
                **_login(server),
            )
        except (Error, OSError) as error:
            cause = self._last_error if isinstance(error, NoServersError) and self._last_error is not None else error
            raise self._failure(cause) from cause
        finally:
            if not self._client.is_connected:
                await self.close()

    async def publish(self, destination: BrokerDestination, message: BrokerMessage) -> dict[str, Any]:
        headers = {**message.headers, "content-type": message.content_type, ID: message.id}
        if message.key is not None:
            headers["tocsin-key"] = in_header(message.key)
        stream = self._client.jetstream()
        sending = asyncio.ensure_future(
            stream.publish(destination.name, message.value, timeout=LONGEST_S, headers=headers)
        )
        sending.add_done_callback(lambda task: task.cancelled() or task.exception())
        failure = asyncio.get_running_loop().create_future()
        self._unacknowledged[failure] = destination.name
        try:
            await asyncio.wait((sending, failure), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise failure.result()
            reply = sending.result()
        except (Error, OSError) as error:
            raise self._failure(error, destination.name) from error
        finally:
            sending.cancel()
            del self._unacknowledged[failure]
        return {"stream": reply.stream, "seq": reply.seq, "duplicate": bool(reply.duplicate)}

    async def _on_error(self, error: Exception) -> None:
        """The library reports errors here that belong to no single message. A refusal names at least the subject."""
        self._last_error, text = error, str(error).lower()
        if "permissions violation" in text:
            for waiter, subject in self._unacknowledged.items():
                if "for publish" not in text or f'"{subject.lower()}"' in text:
                    _fail(waiter, self._failure(error))

    async def _on_close(self) -> None:
        self.lost = True
        for waiter in self._unacknowledged:
            _fail(waiter, unavailable(self._server, self._last_error or Error("the connection was closed")))

    def _failure(self, error: Exception, subject: str = "") -> DeliveryFailed:
        server = self._server
        if isinstance(error, NoStreamResponseError):
            return DeliveryFailed(f"{server} has no stream for the subject {subject!r}: create one that takes it")
        if isinstance(error, MaxPayloadError) or (isinstance(error, APIError) and error.err_code == TOO_LARGE):
            return DeliveryFailed(f"{server} does not take messages as large as this one ({error})", final=True)
        if isinstance(error, APIError):
            return DeliveryFailed(f"{server} did not accept the message: {error.description}", status=error.code)
        if any(word in str(error).lower() for word in _REFUSALS):
            return DeliveryFailed(f"{server} does not allow it: {error}", status=403, final=True)
        return unavailable(server, error)

    async def close(self) -> None:
        # After an untrusted certificate the library waits for the end of a connection that never began.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._client.close()


class _Client(Client):
    """Gets its sockets from the dialer, also for further servers that a server names."""

    def __init__(self, sockets: DialledSockets) -> None:
        super().__init__()
        self._sockets = sockets

    async def _connect_to_server(self, s: Srv) -> None:
        self._transport = transport = _Transport(self._sockets)
        await transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])


class _Transport(TcpTransport):
    def __init__(self, sockets: DialledSockets) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sockets = sockets

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        async with asyncio.timeout(connect_timeout):
            sock = await self._sockets.connect(uri.hostname or "", uri.port or DEFAULT_PORT)
            self._bare_io_reader, self._bare_io_writer = await asyncio.open_connection(sock=sock, limit=buffer_size)
        self._io_reader, self._io_writer = self._bare_io_reader, self._bare_io_writer


def _login(server: Server) -> dict[str, Any]:
    """A user or a password alone is a token."""
    if server.user and server.password:
        return {"user": server.user, "password": server.password}
    token = server.password or server.user
    return {"token": token} if token else {}


def _fail(waiter: asyncio.Future[DeliveryFailed], failure: DeliveryFailed) -> None:
    if not waiter.done():
        waiter.set_result(failure)


open = Nats
