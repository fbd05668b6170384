"""The middleware: a request reaches the app once, and its answer is given to each repetition."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.asgi_client import Shop, ask
from tocsin.receive import Once, Receiver

pytestmark = pytest.mark.parametrize("where", ["valkey"], indirect=True)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def receiver(shop: Shop, once: Once) -> Receiver:
    return Receiver(shop, once, wait=0)


async def test_a_repeated_request_gets_the_first_answer(receiver, shop):
    first, second = await ask(receiver, b"one"), await ask(receiver, [b"o", b"", b"ne"])
    assert (first.status, first.body) == (second.status, second.body) == (201, b"order 1")
    assert first.headers == {"content-type": "text/plain", "x-order": "1", "date": "then"}
    # Of another moment, so it is left to the server.
    assert second.headers == {"content-type": "text/plain", "x-order": "1", "idempotency-replayed": "true"}
    assert shop.orders == [b"one"]


async def test_requests_that_come_at_once_reach_the_app_once(shop, once):
    receiver = Receiver(shop, once, wait="20s")
    shop.go_on.clear()
    asked = [asyncio.create_task(ask(receiver)) for _ in range(20)]
    await shop.started.wait()
    shop.go_on.set()
    told = await asyncio.gather(*asked)
    assert [each.body for each in told] == [b"order 1"] * 20
    assert [each.headers.get("idempotency-replayed") for each in told].count(None) == 1
    assert len(shop.orders) == 1


async def test_while_the_first_is_at_work_a_repetition_is_told_to_come_again(receiver, shop):
    shop.go_on.clear()
    first = asyncio.create_task(ask(receiver))
    await shop.started.wait()
    told = await ask(receiver)
    assert (told.status, told.problem["title"]) == (409, "Still running")
    assert 1 <= int(told.headers["retry-after"]) <= 30
    shop.go_on.set()
    assert (await first).status == 201
    assert (await ask(receiver)).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("status", [199, 302, 400, 404, 429, 500, 503])
async def test_an_answer_that_is_no_success_frees_the_key(receiver, shop, status):
    shop.status = status
    assert (await ask(receiver)).status == status
    shop.status = 204
    assert [(await ask(receiver)).status, (await ask(receiver)).status] == [204, 204]
    assert len(shop.orders) == 2


async def test_an_exception_frees_the_key_and_is_the_servers_to_answer(receiver, shop):
    shop.fails = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        await ask(receiver)
    shop.fails = None
    assert (await ask(receiver)).status == 201
    assert len(shop.orders) == 2


async def test_an_app_that_ends_without_an_answer_frees_the_key(once):
    async def silent(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    shop = Shop()
    with pytest.raises(ValueError, match="not enough values"):
        # Nothing was sent: what is half is told to nobody.
        await ask(Receiver(silent, once, wait=0))
    assert (await ask(Receiver(shop, once, wait=0))).status == 201


@pytest.mark.parametrize(
    "other",
    [{"body": b"other"}, {"path": "/other"}, {"query": b"a=1"}, {"method": "PUT"}],
    ids=lambda other: next(iter(other)),
)
async def test_the_same_key_with_another_request_is_refused(receiver, shop, other):
    await ask(receiver)
    told = await ask(receiver, **other)
    assert (told.status, told.problem["title"]) == (422, "Key used before")
    assert len(shop.orders) == 1


class TestWhatIsNoneOfItsBusiness:
    @pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE"])
    async def test_requests_without_effects_pass(self, receiver, shop, method):
        for _ in range(2):
            assert "idempotency-replayed" not in (await ask(receiver, method=method)).headers
        assert len(shop.orders) == 2

    async def test_requests_without_a_key_pass(self, receiver, shop):
        for _ in range(2):
            assert (await ask(receiver, key=None)).status == 201
        assert len(shop.orders) == 2

    @pytest.mark.parametrize(
        ("path", "effects"), [("/hook", 1), ("/hooks/a", 1), ("/hook/a", 2), ("/hooks", 2), ("/", 2)]
    )
    async def test_other_paths_pass(self, shop, once, path, effects):
        receiver = Receiver(shop, once, paths=["/hook", "/hooks/"])
        for _ in range(2):
            await ask(receiver, path=path)
        assert len(shop.orders) == effects

    @pytest.mark.parametrize("kind", ["lifespan", "websocket"])
    async def test_other_scopes_pass_as_they_are(self, receiver, shop, kind):
        scope = {"type": kind}
        await receiver(scope, None, None)
        assert shop.seen[0] is scope

    async def test_the_app_gets_no_other_way_to_respond(self, receiver, shop):
        await ask(receiver)
        assert shop.seen[0]["extensions"] == {}


class TestKeys:
    @pytest.mark.parametrize(
        "key", ["", "x" * 256, "a\x00b", "a\tb", "\x7f"], ids=["empty", "huge", "nul", "tab", "del"]
    )
    async def test_a_key_that_is_none_is_refused(self, receiver, shop, key):
        told = await ask(receiver, key=key)
        assert (told.status, told.problem["title"]) == (400, "Bad key")
        assert shop.orders == []

    @pytest.mark.parametrize("key", ["x" * 255, "{a}", 'quoted "one"', "blåbær", "a:b/c;d"])
    async def test_a_key_may_have_odd_characters(self, receiver, shop, key):
        assert [(await ask(receiver, key=key)).status for _ in range(2)] == [201, 201]
        assert len(shop.orders) == 1

    async def test_two_keys_are_refused(self, receiver, shop):
        told = await ask(receiver, headers={"idempotency-key": "another"})
        assert (told.status, told.problem["title"]) == (400, "Twice the same header")
        assert shop.orders == []


class TestBodies:
    async def test_a_body_that_is_too_large_is_refused_by_its_length(self, shop, once):
        receiver = Receiver(shop, once, largest_body=10)

        async def unread() -> None:
            raise AssertionError("read")

        told = await ask(receiver, [], headers={"content-length": "11"}, then=unread)
        assert (told.status, told.problem["title"]) == (413, "Too large")

    async def test_a_body_that_does_not_say_how_large_it_is_is_read_up_to_the_limit(self, shop, once):
        receiver = Receiver(shop, once, largest_body=10)
        assert (await ask(receiver, [b"12345", b"67890"])).status == 201
        assert (await ask(receiver, [b"12345", b"67890", b"1"] * 10_000)).status == 413
        assert len(shop.orders) == 1

    @pytest.mark.parametrize(
        "length", ["-1", "x", "9" * 5000, "", "١"], ids=["negative", "text", "huge", "empty", "arabic"]
    )
    async def test_a_length_that_is_none_is_not_believed(self, receiver, length):
        if length == "١":
            length = length.encode().decode("latin-1")
        assert (await ask(receiver, headers={"content-length": length})).status == 201

    async def test_a_body_that_never_ends_is_given_up(self, shop, once):
        receiver = Receiver(shop, once, body_timeout="50ms")
        told = await ask(receiver, [], then=None)
        assert (told.status, told.problem["title"]) == (408, "Too slow")
        assert shop.orders == []

    async def test_nothing_is_done_for_a_client_that_leaves_before_its_body_has_come(self, receiver, shop):
        async def leave() -> None:
            pass

        with pytest.raises(ValueError, match="not enough values"):
            await ask(receiver, [], then=leave)
        assert shop.orders == []
        assert (await ask(receiver)).status == 201
