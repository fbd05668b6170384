"""NATS JetStream: acknowledged by the stream that has taken the message; what came twice is taken once."""

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
from tocsin.targets.messages.broker import BrokerMessage, away
from tocsin.targets.messages.dialer import DialledSockets

# By which a stream knows a message again, for as long as its duplicate window.
ID = "Nats-Msg-Id"
CONNECT_S = 10
# Of servers that a server names without one.
DEFAULT_PORT = 4222
CLOSE_S = 0.5
# Each message has its own timeout, which is what counts.
LONGEST_S = 86_400.0
# JetStream's number for a message that is larger than the stream allows.
TOO_LARGE = 10054
_REFUSALS = ("authorization violation", "permissions violation", "authentication expired")


class Nats:
    """One connection, which is not mended: the next message gets another."""

    def __init__(self, server: Server, dial: DialledSockets, authority: str | None = None) -> None:
        self.lost = False
        self._server = server
        self._authority = authority
        self._client = _Client(dial)
        self._said: Exception | None = None
        # Who waits for an acknowledgement, and the subject: told when none will come.
        self._waiting: dict[asyncio.Future[DeliveryFailed], str] = {}

    async def connect(self) -> None:
        server = self._server
        try:
            await self._client.connect(
                servers=[f"{'tls' if server.tls else 'nats'}://{host}" for host in server.hosts],
                name="tocsin",
                allow_reconnect=False,
                # Each host is tried twice, at once: without a limit it would be for ever.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_S,
                error_cb=self._on_error,
                closed_cb=self._on_close,
                tls=tls_of(server, self._authority),
                **_login(server),
            )
        except (Error, OSError) as error:
            cause = self._said if isinstance(error, NoServersError) and self._said is not None else error
            raise self._failure(cause) from cause
        finally:
            if not self._client.is_connected:
                await self.close()

    async def publish(self, place: BrokerDestination, letter: BrokerMessage) -> dict[str, Any]:
        headers = {**letter.headers, "content-type": letter.content_type, ID: letter.id}
        if letter.key is not None:
            headers["tocsin-key"] = in_header(letter.key)
        stream = self._client.jetstream()
        sending = asyncio.ensure_future(stream.publish(place.name, letter.value, timeout=LONGEST_S, headers=headers))
        sending.add_done_callback(lambda task: task.cancelled() or task.exception())
        trouble = asyncio.get_running_loop().create_future()
        self._waiting[trouble] = place.name
        try:
            await asyncio.wait((sending, trouble), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise trouble.result()
            said = sending.result()
        except (Error, OSError) as error:
            raise self._failure(error, place.name) from error
        finally:
            sending.cancel()
            del self._waiting[trouble]
        return {"stream": said.stream, "seq": said.seq, "duplicate": bool(said.duplicate)}

    async def _on_error(self, error: Exception) -> None:
        """What is said about no message in particular; a refusal names the subject at least."""
        self._said, said = error, str(error).lower()
        if "permissions violation" in said:
            for trouble, subject in self._waiting.items():
                if "for publish" not in said or f'"{subject.lower()}"' in said:
                    _tell(trouble, self._failure(error))

    async def _on_close(self) -> None:
        self.lost = True
        for trouble in self._waiting:
            _tell(trouble, away(self._server, self._said or Error("the connection was closed")))

    def _failure(self, error: Exception, subject: str = "") -> DeliveryFailed:
        server = self._server
        if isinstance(error, NoStreamResponseError):
            return DeliveryFailed(f"{server} has no stream for the subject {subject!r}: create one that takes it")
        if isinstance(error, MaxPayloadError) or (isinstance(error, APIError) and error.err_code == TOO_LARGE):
            return DeliveryFailed(f"{server} does not take messages as large as this one ({error})", final=True)
        if isinstance(error, APIError):
            return DeliveryFailed(f"{server} did not take it: {error.description}", status=error.code)
        if any(word in str(error).lower() for word in _REFUSALS):
            return DeliveryFailed(f"{server} does not allow it: {error}", status=403, final=True)
        return away(server, error)

    async def close(self) -> None:
        # It waits for a connection to end that never began, if the other side has a certificate that we do not trust.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._client.close()


class _Client(Client):
    """Connects by the dialer, also to the servers that a server says there are beside it."""

    def __init__(self, dial: DialledSockets) -> None:
        super().__init__()
        self._dial = dial

    async def _connect_to_server(self, s: Srv) -> None:
        self._transport = transport = _Transport(self._dial)
        await transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])


class _Transport(TcpTransport):
    def __init__(self, dial: DialledSockets) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dial = dial

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        async with asyncio.timeout(connect_timeout):
            sock = await self._dial(uri.hostname or "", uri.port or DEFAULT_PORT)
            self._bare_io_reader, self._bare_io_writer = await asyncio.open_connection(sock=sock, limit=buffer_size)
        self._io_reader, self._io_writer = self._bare_io_reader, self._bare_io_writer


def _login(server: Server) -> dict[str, Any]:
    """One word alone is a token."""
    if server.user and server.password:
        return {"user": server.user, "password": server.password}
    token = server.password or server.user
    return {"token": token} if token else {}


def _tell(trouble: asyncio.Future[DeliveryFailed], failure: DeliveryFailed) -> None:
    if not trouble.done():
        trouble.set_result(failure)


open = Nats
