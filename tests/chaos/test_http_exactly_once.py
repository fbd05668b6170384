"""Requests whose worker dies between the delivery and the finish: sent again with their key, they have one effect."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.support.http_receiver import Receiver
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually
from tests.support.worker_fleet import Fleet, Member
from tocsin import Http
from tocsin.receive import Once

# Where requests of these workers may go.
LOOPBACK = {"http_allow": ["127.0.0.0/8"]}
# So few that a worker sends them all at once to one host.
ORDERS = 8
WAVES, PER_WAVE, SOME = 4, 50, 5


class Shop(Receiver):
    """Books each order once: a key that it knows is answered and changes nothing. While it is closed, answers wait."""

    def __init__(self, once: Once) -> None:
        super().__init__()
        self.booked = Counter[str]()
        self.repeated = Counter[str]()
        # Those that have been delivered and not answered.
        self.waiting = Counter[str]()
        self.answered = 0
        self._open = asyncio.Event()
        self._open.set()
        self._once = once
        self.answers = [self._answer]

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        order = request.path.removeprefix("/")
        before = self.booked[order]

        async def book() -> str:
            self.booked[order] += 1
            return "booked"

        said = await self._once(request.headers["Idempotency-Key"], book, wait="10s")
        self.repeated[order] += self.booked[order] == before
        self.waiting[order] += 1
        await self._open.wait()
        self.waiting[order] -= 1
        answer = web.Response(text=said)
        await answer.prepare(request)
        await answer.write_eof()
        self.answered += 1
        return answer


@pytest.fixture
async def shop(valkey: Server) -> AsyncIterator[Shop]:
    async with Once(valkey.url, name=secrets.token_hex(4)) as once:
        shop = Shop(once)
        await shop.start()
        yield shop
        shop.open()
        await shop.stop()


async def put(fleet: Fleet, shop: Shop, n: int, first: int = 0) -> list[str]:
    orders = [f"order{number}" for number in range(first, first + n)]
    for order in orders:
        await fleet.app.enqueue(Http.post(f"{shop.url}/{order}", json={"order": order}), id=order, keep=0)
    return orders


def attempts(shop: Shop) -> set[str]:
    return {each.headers["Tocsin-Attempt"] for each in shop.received}


async def test_a_worker_killed_before_it_was_answered_is_followed_by_one_effect(fleet: Fleet, shop: Shop) -> None:
    [victim] = await fleet.start(reach=LOOPBACK)
    shop.close()
    orders = await put(fleet, shop, ORDERS)
    await eventually(lambda: shop.waiting.total() == len(orders), "all are delivered, and none is answered", within=30)
    await fleet.start(reach=LOOPBACK)
    victim.kill()
    shop.open()
    await fleet.all_done(within=40)
    assert shop.booked == shop.repeated == Counter(orders)
    assert await fleet.count("recovered") == await fleet.count("succeeded") == len(orders)
    # A recovery is no failure: the receiver is told so too.
    assert attempts(shop) == {"1"}


async def test_a_worker_killed_after_it_was_answered_and_before_it_wrote_that_is_followed_by_one_effect(
    valkey: Server, fleet: Fleet, shop: Shop
) -> None:
    async with Proxy(valkey) as way:
        [victim] = await fleet.start(url=way.url, reach=LOOPBACK)
        shop.close()
        orders = await put(fleet, shop, ORDERS)
        await eventually(
            lambda: shop.waiting.total() == len(orders), "all are delivered, and none is answered", within=30
        )
        way.cut_off()
        shop.open()
        await eventually(lambda: shop.answered == len(orders), "all are answered", within=30)
        await _until_it_knows(victim, len(orders))
        victim.kill()
    assert await fleet.held_by(victim.mark) == set(orders)
    await fleet.start(reach=LOOPBACK)
    await fleet.all_done(within=40)
    assert shop.booked == shop.repeated == Counter(orders)
    assert await fleet.count("recovered") == await fleet.count("succeeded") == len(orders)
    assert attempts(shop) == {"1"}


async def _until_it_knows(worker: Member, ended: int) -> None:
    async def knows() -> bool:
        return (await worker.stats()).ran == ended

    await eventually(knows, "the worker has got the answers", within=30)


async def test_of_many_orders_each_has_one_effect_while_workers_are_killed(fleet: Fleet, shop: Shop) -> None:
    [survivor] = await fleet.start(reach=LOOPBACK)
    unanswered = 0
    for wave in range(WAVES):
        [victim] = await fleet.start(reach=LOOPBACK)
        await eventually(lambda: not shop.waiting.total(), "nobody waits for an answer", within=30)
        shop.close()
        await put(fleet, shop, PER_WAVE, first=wave * PER_WAVE)
        for worker in (survivor, victim):
            await eventually(lambda by=worker: _some_of(fleet, shop, by), "it has delivered some", within=30)
        unanswered += len(await _unanswered(fleet, shop, victim))
        victim.kill()
        shop.open()
    await fleet.all_done(within=40)
    orders = WAVES * PER_WAVE
    assert shop.booked == Counter(f"order{number}" for number in range(orders))
    assert await fleet.count("succeeded") == orders
    # What was claimed and not sent yet when its worker was killed came for the first time.
    assert 0 < unanswered <= shop.repeated.total() <= await fleet.count("recovered")


async def _some_of(fleet: Fleet, shop: Shop, worker: Member) -> bool:
    return len(await _unanswered(fleet, shop, worker)) >= SOME


async def _unanswered(fleet: Fleet, shop: Shop, worker: Member) -> set[str]:
    """The orders that it has delivered, and waits for."""
    return await fleet.held_by(worker.mark) & set(+shop.waiting)
