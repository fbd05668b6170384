"""The middleware with responses that stream, are large, come late, and clients that leave."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.asgi_client import Shop, ask
from tests.support.once_work import Work, tried
from tocsin.receive import Receiver

pytestmark = pytest.mark.parametrize("where", ["valkey"], indirect=True)


async def leave() -> None:
    """The client does not wait for the answer."""


async def test_an_answer_is_remembered_before_it_is_sent(once):
    again = []

    async def watching(scope, receive, send):
        async def look(message):
            if message["type"] == "http.response.start":
                again.append((await ask(Receiver(Shop(), once, wait=0))).headers["idempotency-replayed"])
            await send(message)

        await Receiver(Shop(), once)(scope, receive, look)

    assert (await ask(watching)).status == 201
    assert again == ["true"]


async def test_a_failure_is_told_when_the_key_is_free_again(once):
    """Who comes again at once must not be told that somebody is at it."""
    again = []

    async def watching(scope, receive, send):
        async def look(message):
            if message["type"] == "http.response.start":
                again.append((await ask(Receiver(Shop(), once, wait=0))).status)
            await send(message)

        await Receiver(Shop(status=500), once)(scope, receive, look)

    assert (await ask(watching)).status == 500
    assert again == [201]


async def test_a_client_that_leaves_does_not_stop_the_work(once):
    """Its sender has run out of patience, and comes again for the answer."""
    told_of_leaving = []

    async def app(scope, receive, send):
        await receive()
        gone = asyncio.create_task(receive())
        _, waiting = await asyncio.wait({gone}, timeout=0.05)
        told_of_leaving.append(not waiting)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        # When the response is complete there is nobody to wait for.
        assert await gone == {"type": "http.disconnect"}

    await ask(Receiver(app, once), then=leave)
    assert told_of_leaving == [False]
    assert (await ask(Receiver(app, once, wait=0))).body == b"done"


async def test_a_server_that_cancels_the_request_frees_the_key(once):
    shop = Shop()
    shop.go_on.clear()
    asked = asyncio.create_task(ask(Receiver(shop, once)))
    await shop.started.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    shop.go_on.set()
    assert (await ask(Receiver(shop, once, wait=0))).status == 201


async def test_what_goes_on_after_the_response_holds_nobody_up(once):
    shop, after = Shop(), asyncio.Event()

    async def app(scope, receive, send):
        await shop(scope, receive, send)
        await after.wait()
        raise ValueError("too late")

    first = asyncio.create_task(ask(Receiver(app, once)))
    await shop.started.wait()
    assert (await ask(Receiver(shop, once, wait="20s"))).headers["idempotency-replayed"] == "true"
    after.set()
    with pytest.raises(ValueError, match="too late"):
        await first
    assert (await ask(Receiver(shop, once))).headers["idempotency-replayed"] == "true"


class TestLargeAnswers:
    @pytest.fixture
    def shop(self) -> Shop:
        shop = Shop(status=200, parts=(b"12345", b"67890", b"abc"))
        shop.headers += [(b"Content-Length", b"13"), (b"etag", b"x")]
        return shop

    async def test_one_that_is_not_too_large_comes_in_one_piece(self, shop, once):
        told = await ask(Receiver(shop, once, largest_answer=13))
        assert (told.body, told.parts) == (b"1234567890abc", 1)

    async def test_one_that_is_flows_to_the_client_and_is_remembered_without_its_body(self, shop, once):
        receiver = Receiver(shop, once, largest_answer=9, wait=0)
        told = await ask(receiver)
        assert (told.body, told.parts, told.whole) == (b"1234567890abc", 2, True)
        again = await ask(receiver)
        assert (again.status, again.body) == (200, b"")
        assert again.headers == {"x-order": "1", "idempotency-body": "omitted", "idempotency-replayed": "true"}
        assert len(shop.orders) == 1

    async def test_one_that_breaks_off_frees_the_key(self, shop, once):
        async def broken(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"1234567890", "more_body": True})
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await ask(Receiver(broken, once, largest_answer=9))
        assert (await ask(Receiver(shop, once, wait=0))).body == b"1234567890abc"

    async def test_a_failure_that_is_large_frees_the_key(self, shop, once):
        shop.status = 500
        assert (await ask(Receiver(shop, once, largest_answer=9))).body == b"1234567890abc"
        shop.status = 200
        assert (await ask(Receiver(shop, once, wait=0))).status == 200

    async def test_the_app_of_an_endless_one_is_told_when_the_client_leaves(self, once):
        async def endless(scope, receive, send):
            await receive()
            left = asyncio.create_task(receive())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not left.done():
                await send({"type": "http.response.body", "body": b"tick" * 10, "more_body": True})
                await asyncio.sleep(0)

        async with asyncio.timeout(10):
            told = await ask(Receiver(endless, once, largest_answer=100), then=leave)
        assert not told.whole
        assert (await ask(Receiver(Shop(), once, wait=0))).status == 201


@pytest.mark.parametrize("largest", [100, 1], ids=["held", "flowing"])
async def test_who_lost_its_turn_does_not_answer_for_the_other(make_once, largest, caplog):
    """Its event loop stood still for longer than its lease, and another receiver did it."""
    once = make_once(lease="100ms")

    async def stalls(scope, receive, send):
        def another() -> None:
            async def elsewhere() -> None:
                other = make_once()
                async with asyncio.timeout(20):
                    while (await ask(Receiver(Shop(parts=(b"the other's",)), other, wait=0))).status != 201:
                        await asyncio.sleep(0.01)
                await other.close()

            asyncio.run(elsewhere())

        thread = threading.Thread(target=another)
        thread.start()
        thread.join()
        await Shop(parts=(b"mine",))(scope, receive, send)

    told = await ask(Receiver(stalls, once, largest_answer=largest))
    if largest == 100:
        assert (told.status, told.problem["title"], told.headers["retry-after"]) == (409, "Lost", "1")
    assert "was lost to another" in caplog.text
    assert (await ask(Receiver(Shop(), once))).body == b"the other's"


async def test_the_keys_of_the_middleware_are_not_those_of_a_plain_call(once):
    await tried(once, "plain", Work("done").quickly)
    assert (await ask(Receiver(Shop(), once, wait=0), key="plain")).status == 201
