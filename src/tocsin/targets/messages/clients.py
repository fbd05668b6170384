"""One client per broker and login, shared by all messages that go there: opened when the first comes, replaced when its
connection is lost, closed when none came for a while, or when others need its place.

There are so many of them at most, for one address and in all: jobs choose the login, and each has a connection."""

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

# Connecting goes on for those who come later when a message with less patience gives up.
CONNECT_S = 30.0
CLOSE_S = 6.0
IDLE_S = 60.0
MOST_PER_HOST = 20
MOST = 200
# A run that finds all clients in use comes again after so long.
AWAY_S = 1.0


class Client:
    """A broker, how many messages are on their way to it, and when it last took one."""

    def __init__(self, server: Server, line: DialledSockets, connecting: asyncio.Task[Broker]) -> None:
        self.server = server
        self.host = str(server)
        self.line = line
        self.connecting = connecting
        self.users = 0
        self.used = monotonic()
        self.answered = -math.inf

    @property
    def is_lost(self) -> bool:
        """Whoever finds out that it cannot be reached is told why; the next one tries anew."""
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

    async def send(self, place: BrokerDestination, letter: BrokerMessage, timeout: float) -> dict[str, Any]:
        """What the broker said. Raises DeliveryFailed, TimeoutError, or NotYet."""
        client = self._client(place.server)
        client.users += 1
        began = monotonic()
        try:
            async with asyncio.timeout(timeout):
                broker = await _connected(client)
                told = await broker.publish(place, letter)
        except TimeoutError:
            if client.connecting.done() and client.answered < began:
                # It may be dead without a word: the next message does not rely on it.
                self._retire(client)
            raise
        except DeliveryFailed:
            raise
        except Exception:
            # Something that its library was not meant to do.
            self._retire(client)
            raise
        finally:
            client.users -= 1
            client.used = monotonic()
            if client.is_lost:
                self._retire(client)
            elif self._clients.get(client.server) is not client:
                self._close_unused(client)
        client.answered = client.used
        return told

    def _client(self, server: Server) -> Client:
        client = self._clients.get(server)
        if client is not None and client.is_lost:
            self._retire(client)
            client = None
        if client is None:
            self._make_room(str(server))
            line = self._dialer.line()
            client = self._clients[server] = Client(server, line, asyncio.ensure_future(self._connect(server, line)))
            self._watch()
        return client

    def _make_room(self, host: str) -> None:
        """Close clients that nobody uses, those first that were used longest ago. Raises NotYet if there are none."""
        clients = list(self._clients.values())
        same = [client for client in clients if client.host == host]
        if len(same) >= MOST_PER_HOST:
            self._close_oldest(same, f"{host} is used with {MOST_PER_HOST} logins at the moment")
        elif len(clients) >= MOST or self._dialer.is_full:
            self._close_oldest(clients, "this worker uses as many brokers and logins as it may at the moment")

    def _close_oldest(self, clients: list[Client], otherwise: str) -> None:
        unused = [client for client in clients if not client.users]
        if not unused:
            raise TryLater(otherwise, AWAY_S)
        oldest = min(unused, key=lambda client: client.used)
        # Nobody waits for it any more.
        oldest.connecting.cancel()
        self._retire(oldest)

    async def _connect(self, server: Server, line: DialledSockets) -> Broker:
        broker = await broker_for(server, self._store, line)
        try:
            async with asyncio.timeout(CONNECT_S):
                await broker.connect()
        except BaseException as error:
            await _close(broker, line)
            if isinstance(error, TimeoutError):
                raise DeliveryFailed(f"{server} did not let us in within {CONNECT_S:g} s", status=408) from None
            raise
        return broker

    # Closing

    def _retire(self, client: Client) -> None:
        """No new message goes there; those on their way may arrive."""
        if self._clients.get(client.server) is client:
            del self._clients[client.server]
        self._close_unused(client)

    def _close_unused(self, client: Client) -> None:
        if client.users == 0 and client.connecting.done():
            self._close_later(client)

    def _close_later(self, client: Client) -> None:
        if client.connecting.cancelled() or client.connecting.exception() is not None:
            return
        task = asyncio.ensure_future(_close(client.connecting.result(), client.line))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _watch(self) -> None:
        if self._sweep is None and self._clients:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_s, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        old = monotonic() - self._idle_s
        for client in [client for client in self._clients.values() if not client.users and client.used <= old]:
            if client.connecting.done():
                self._retire(client)
        self._watch()

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


async def _connected(client: Client) -> Broker:
    try:
        return await asyncio.shield(client.connecting)
    except DeliveryFailed as error:
        # To each its own: one that all raise would grow by a traceback with each of them. Nothing was sent by any.
        raise DeliveryFailed(
            str(error), error.told, status=error.status, final=error.final, sent=False
        ) from error.__cause__


async def _close(broker: Broker, line: DialledSockets) -> None:
    """Whatever its library makes of it: it is not used any more."""
    try:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await broker.close()
    finally:
        line.hang_up()
