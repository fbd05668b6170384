"""The clients of brokers: one per broker and login, shared by all messages that go there.

A client is opened for the first message, replaced when its connection is lost, and closed after a minute without a
message, or when another client needs its slot. Their number is bounded, per address and in all: jobs choose the login,
and each client has a connection."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

from tocsin.engine.handlers import TryLater
from tocsin.model.broker_address import BrokerDestination, Server
from tocsin.model.clock import monotonic
from tocsin.model.delivery import DeliveryFailed
from tocsin.store.store import Store
from tocsin.targets.messages.broker import Broker, BrokerMessage, broker_for
from tocsin.targets.messages.dialer import Dialer, DialledSockets

# Connecting goes on for later messages when a message with a shorter timeout gives up.
CONNECT_S = 30.0
CLOSE_S = 6.0
IDLE_S = 60.0
MOST_PER_HOST = 20
MOST = 200
# A run that finds all clients in use goes back for so long.
AWAY_S = 1.0


class Client:
    """A broker, its connection, and how many messages are under way to it."""

    def __init__(self, server: Server, sockets: DialledSockets, connecting: asyncio.Task[Broker]) -> None:
        self.server = server
        self.host = str(server)
        self.sockets = sockets
        self.connecting = connecting
        self.users = 0
        self.used_at = monotonic()
        self.answered_at = -math.inf

    @property
    def is_lost(self) -> bool:
        """True if it could not connect, or lost its connection. The messages that waited for it fail with the reason;
        the next message opens a new client."""
        if not self.connecting.done():
            return False
        return self.connecting.cancelled() or self.connecting.exception() is not None or self.connecting.result().lost


class Clients:
    def __init__(self, store: Store, dialer: Dialer, idle_s: float = IDLE_S) -> None:
        self._store = store
        self._dialer = dialer
        self._idle_s = idle_s
        self._clients: dict[Server, Client] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def send(self, destination: BrokerDestination, message: BrokerMessage, timeout: float) -> dict[str, Any]:
        """The broker's reply. Raises DeliveryFailed, TimeoutError or TryLater."""
        client = self._client(destination.server)
        client.users += 1
        began = monotonic()
        try:
            async with asyncio.timeout(timeout):
                broker = await _wait_until_connected(client)
                reply = await broker.publish(destination, message)
        except TimeoutError:
            if client.connecting.done() and client.answered_at < began:
                # The connection may be dead, so the next message gets another one.
                self._retire(client)
            raise
        except DeliveryFailed:
            raise
        except Exception:
            # An error that the library does not document.
            self._retire(client)
            raise
        finally:
            client.users -= 1
            client.used_at = monotonic()
            if client.is_lost:
                self._retire(client)
            elif self._clients.get(client.server) is not client:
                self._close_unused(client)
        client.answered_at = client.used_at
        return reply

    def _client(self, server: Server) -> Client:
        client = self._clients.get(server)
        if client is not None and client.is_lost:
            self._retire(client)
            client = None
        if client is None:
            self._free_a_slot(str(server))
            sockets = self._dialer.new_sockets()
            client = self._clients[server] = Client(
                server, sockets, asyncio.ensure_future(self._connect(server, sockets))
            )
            self._schedule_sweep()
        return client

    def _free_a_slot(self, host: str) -> None:
        """Close the client that has been unused longest, if all slots are taken. Raises TryLater if all are in use."""
        clients = list(self._clients.values())
        same = [client for client in clients if client.host == host]
        if len(same) >= MOST_PER_HOST:
            self._close_oldest(same, f"{host} is used with {MOST_PER_HOST} logins at the moment")
        elif len(clients) >= MOST or self._dialer.is_full:
            self._close_oldest(clients, "this worker uses as many brokers and logins as it may at the moment")

    def _close_oldest(self, clients: list[Client], why: str) -> None:
        unused = [client for client in clients if not client.users]
        if not unused:
            raise TryLater(why, AWAY_S)
        oldest = min(unused, key=lambda client: client.used_at)
        # No message waits for it any more.
        oldest.connecting.cancel()
        self._retire(oldest)

    async def _connect(self, server: Server, sockets: DialledSockets) -> Broker:
        broker = await broker_for(server, self._store, sockets)
        try:
            async with asyncio.timeout(CONNECT_S):
                await broker.connect()
        except BaseException as error:
            await _close(broker, sockets)
            if isinstance(error, TimeoutError):
                raise DeliveryFailed(
                    f"{server} did not accept the connection within {CONNECT_S:g} s", status=408
                ) from None
            raise
        return broker

    # Closing

    def _retire(self, client: Client) -> None:
        """New messages get another client; those under way may still arrive."""
        if self._clients.get(client.server) is client:
            del self._clients[client.server]
        self._close_unused(client)

    def _close_unused(self, client: Client) -> None:
        if client.users == 0 and client.connecting.done():
            self._close_later(client)

    def _close_later(self, client: Client) -> None:
        if client.connecting.cancelled() or client.connecting.exception() is not None:
            return
        task = asyncio.ensure_future(_close(client.connecting.result(), client.sockets))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _schedule_sweep(self) -> None:
        if self._sweep is None and self._clients:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_s, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        old = monotonic() - self._idle_s
        for client in [client for client in self._clients.values() if not client.users and client.used_at <= old]:
            if client.connecting.done():
                self._retire(client)
        self._schedule_sweep()

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.connecting.cancel()
        await asyncio.gather(*(client.connecting for client in clients), return_exceptions=True)
        for client in clients:
            self._close_later(client)
        await asyncio.gather(*self._closing)


async def _wait_until_connected(client: Client) -> Broker:
    try:
        return await asyncio.shield(client.connecting)
    except DeliveryFailed as error:
        # Each waiting message raises an error of its own: a shared one would grow by a traceback with each. None was
        # sent.
        raise DeliveryFailed(
            str(error), error.told, status=error.status, final=error.final, sent=False
        ) from error.__cause__


async def _close(broker: Broker, sockets: DialledSockets) -> None:
    """Close it, whatever its library raises: it is not used any more."""
    try:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await broker.close()
    finally:
        sockets.shut_down()
