"""Attacks on the middleware: by strangers who know a key, other senders, with recorded requests and with odd paths."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.asgi_client import OTHER, SECRET, Shop, ask, signed
from tests.support.once_work import KEY
from tocsin.model.ids import idempotency_key
from tocsin.receive import Receiver

pytestmark = pytest.mark.parametrize("where", ["valkey"], indirect=True)

ALICE = {"Authorization": "Bearer alice"}


class Accounts(Shop):
    """Answers those who are logged in only, with a session."""

    async def __call__(self, scope, receive, send):
        self.status = 201 if (b"Authorization", b"Bearer alice") in scope["headers"] else 401
        self.headers = [(b"set-cookie", b"session=alice"), (b"X-Order", b"1")]
        await super().__call__(scope, receive, send)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def signed_only(shop, once) -> Receiver:
    return Receiver(shop, once, secrets=f"{SECRET} {OTHER}", wait=0)


class TestWithoutSecrets:
    async def test_a_stranger_who_computes_the_key_gets_no_answer_of_another(self, once):
        key = idempotency_key("", "default", "sync-alice", 1_800_000_000_000)
        accounts = Accounts()
        receiver = Receiver(accounts, once, wait=0)
        assert (await ask(receiver, key=key, headers=ALICE)).status == 201
        for login in ({}, {"Authorization": "Bearer mallory"}, ALICE | {"Cookie": "session=mallory"}):
            told = await ask(receiver, key=key, headers=login)
            assert "idempotency-replayed" not in told.headers
        assert len(accounts.orders) == 4
        assert (await ask(receiver, key=key, headers=ALICE)).headers["idempotency-replayed"] == "true"

    @pytest.mark.parametrize("login", [{}, {"Authorization": "Bearer mallory"}, {"Cookie": "mallory"}], ids=str)
    async def test_a_stranger_cannot_take_the_key_of_one_who_is_logged_in(self, shop, once, login):
        receiver = Receiver(shop, once, wait=0)
        assert (await ask(receiver, b"junk", headers=login)).status == 201
        assert (await ask(receiver, b"real", headers=ALICE)).status == 201
        assert shop.orders == [b"junk", b"real"]

    @pytest.mark.parametrize("name", ["Cookie", "X-Api-Key", "Proxy-Authorization", "X-Hook-Token"])
    async def test_every_header_that_is_a_login_tells_callers_apart(self, shop, once, name):
        receiver = Receiver(shop, once, wait=0, logins=["x-hook-token"])
        for value in ("alice", "mallory", "alice", "mallory"):
            await ask(receiver, headers={name: value})
        assert len(shop.orders) == 2

    async def test_a_session_is_not_handed_out_again(self, once):
        receiver = Receiver(Accounts(), once, wait=0)
        first, second = await ask(receiver, headers=ALICE), await ask(receiver, headers=ALICE)
        assert first.headers["set-cookie"] == "session=alice"
        assert second.headers == {"x-order": "1", "idempotency-replayed": "true"}

    async def test_nor_is_that_of_an_answer_too_large_to_be_remembered(self, once):
        receiver = Receiver(Accounts(), once, wait=0, largest_answer=3)
        await ask(receiver, headers=ALICE)
        assert "set-cookie" not in (await ask(receiver, headers=ALICE)).headers

    async def test_the_log_says_once_that_nothing_tells_sender_and_stranger_apart(self, shop, once, caplog):
        receiver = Receiver(shop, once)
        with caplog.at_level(logging.WARNING, "tocsin.receive"):
            await ask(receiver, key="a", headers=ALICE)
            assert caplog.messages == []
            await ask(receiver, key="b")
            await ask(receiver, key="c")
        [line] = caplog.messages
        assert "pass secrets=" in line

    async def test_logins_are_a_list(self, shop, once):
        with pytest.raises(ValueError, match=r"write \['x-token'\]"):
            Receiver(shop, once, logins="x-token")


class TestSenders:
    """Each has a secret of its own."""

    async def test_one_does_not_get_the_answer_to_another(self, signed_only, shop):
        for secret in (SECRET, OTHER):
            assert "idempotency-replayed" not in (await ask(signed_only, headers=signed(b"{}", secret))).headers
        assert len(shop.orders) == 2

    async def test_one_cannot_take_the_key_of_another(self, signed_only, shop):
        assert (await ask(signed_only, b"junk", headers=signed(b"junk", OTHER))).status == 201
        assert (await ask(signed_only, b"real", headers=signed(b"real", SECRET))).status == 201
        assert shop.orders == [b"junk", b"real"]

    async def test_a_key_in_the_memory_says_nothing_to_those_who_have_no_secret(self, signed_only, shop, once):
        """Nobody without it can ask for what is remembered, also not through a receiver that wants no signature."""
        await ask(signed_only, headers=signed(b"{}"))
        assert "idempotency-replayed" not in (await ask(Receiver(shop, once, wait=0))).headers
        assert len(shop.orders) == 2

    @pytest.mark.parametrize("login", [{}, {"Authorization": "Bearer mallory"}, ALICE | {"Cookie": "x"}], ids=str)
    async def test_a_recorded_request_with_another_login_gets_neither_answer_nor_effect(self, signed_only, shop, login):
        await ask(signed_only, headers=signed(b"{}") | ALICE)
        told = await ask(signed_only, headers=signed(b"{}") | login)
        assert (told.status, told.problem["title"]) == (422, "Key used before")
        assert len(shop.orders) == 1


class TestAChangeOfSecrets:
    """The sender signs with the old one, then with both, then with the new one."""

    @pytest.mark.parametrize(("old", "new"), [(SECRET, OTHER), (OTHER, SECRET)], ids=["forth", "back"])
    async def test_a_repetition_is_recognised_all_the_while(self, signed_only, shop, old, new):
        assert (await ask(signed_only, headers=signed(b"{}", old))).status == 201
        for secrets in ((old, new), (new, old), (new,), (old,)):
            assert (await ask(signed_only, headers=signed(b"{}", *secrets))).headers["idempotency-replayed"] == "true"
        assert len(shop.orders) == 1

    @pytest.mark.parametrize("left", [SECRET, OTHER])
    async def test_one_of_two_signatures_is_enough_to_be_recognised(self, signed_only, shop, left):
        await ask(signed_only, headers=signed(b"{}", SECRET, OTHER))
        assert (await ask(signed_only, headers=signed(b"{}", left))).headers["idempotency-replayed"] == "true"
        assert len(shop.orders) == 1

    @pytest.mark.parametrize("secrets", [(SECRET,), (OTHER,), (SECRET, OTHER)], ids=["first", "second", "both"])
    async def test_attempts_do_not_overlap(self, signed_only, shop, secrets):
        shop.go_on.clear()
        first = asyncio.create_task(ask(signed_only, headers=signed(b"{}", SECRET, OTHER)))
        await shop.started.wait()
        assert (await ask(signed_only, headers=signed(b"{}", *secrets))).status == 409
        shop.go_on.set()
        assert (await first).status == 201
        assert len(shop.orders) == 1

    async def test_a_failure_frees_the_key_under_both(self, signed_only, shop):
        shop.status = 500
        await ask(signed_only, headers=signed(b"{}", SECRET, OTHER))
        shop.status = 201
        for secret in (SECRET, OTHER):
            assert (await ask(signed_only, key=KEY, headers=signed(b"{}", secret))).status == 201

    async def test_another_request_under_one_of_them_frees_the_other(self, signed_only, shop):
        await ask(signed_only, headers=signed(b"{}", SECRET))
        assert (await ask(signed_only, b"x", headers=signed(b"x", SECRET, OTHER))).status == 422
        assert (await ask(signed_only, b"x", headers=signed(b"x", OTHER))).status == 201


ODD = [
    "//hooks/orders",
    "/hooks//orders",
    "/hooks/./orders",
    "/./hooks/orders",
    "/a/../hooks/orders",
    "/hooks/orders/.",
    "/hooks/orders//",
    "/hooks\\orders",
    "/HOOKS/orders",
    "/hooks%2forders",
    "/hooks%252Forders",
    "/%68ooks/orders",
    "/hooks/orders/x/..",
]


class TestPaths:
    @pytest.mark.parametrize("path", ODD)
    @pytest.mark.parametrize("paths", [["/hooks/orders"], ["/hooks/orders", "/hooks/orders/"]], ids=["one", "beneath"])
    async def test_one_that_a_lenient_router_would_take_for_ours_is_refused(self, shop, once, path, paths):
        receiver = Receiver(shop, once, secrets=SECRET, paths=paths)
        assert (await ask(receiver, path=path)).status in (400, 401)
        assert shop.orders == []

    async def test_a_slash_at_the_end_needs_a_signature_too(self, shop, once):
        receiver = Receiver(shop, once, secrets=SECRET, paths=["/hooks/orders"])
        assert (await ask(receiver, path="/hooks/orders/")).status == 401
        assert (await ask(receiver, path="/hooks/orders/", headers=signed(b"{}"))).status == 201

    async def test_one_that_leads_out_of_ours_is_refused(self, shop, once):
        receiver = Receiver(shop, once, secrets=SECRET, paths=["/hooks/"])
        told = await ask(receiver, path="/hooks/../admin", headers=signed(b"{}"))
        assert (told.status, told.problem["title"]) == (400, "Ambiguous path")
        assert shop.orders == []

    @pytest.mark.parametrize("path", ["/files/a//b", "/Files/..", "/a%2fb", "/hookss/orders", "/hooks/order"])
    async def test_those_of_others_may_be_odd(self, shop, once, path):
        receiver = Receiver(shop, once, secrets=SECRET, paths=["/hooks/orders", "/hooks/a/"])
        assert (await ask(receiver, path=path)).status == 201

    @pytest.mark.parametrize("path", ["/hooks/a/b", "/hooks/100%", "/hooks/ä ö", "/hooks/A", "/hooks/a//b"])
    async def test_beneath_ours_any_name_may_stand(self, shop, once, path):
        receiver = Receiver(shop, once, secrets=SECRET, paths=["/hooks/"])
        assert (await ask(receiver, path=path)).status == 401
        assert (await ask(receiver, path=path, headers=signed(b"{}"))).status == 201

    @pytest.mark.parametrize("paths", ["/hooks/", [], ["hooks"], ["/hooks//a"], ["/a/../b"], [""]], ids=str)
    async def test_those_that_are_given_are_plain(self, shop, once, paths):
        with pytest.raises(ValueError, match="paths are a list"):
            Receiver(shop, once, paths=paths)
