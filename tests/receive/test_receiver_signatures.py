"""The middleware with secrets: who cannot sign gets nowhere, and is not remembered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook

from tests.support.asgi_client import OTHER, SECRET, Shop, ask, signed
from tests.support.once_work import KEY
from tocsin.receive import Receiver

pytestmark = pytest.mark.parametrize("where", ["valkey"], indirect=True)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def receiver(shop, once) -> Receiver:
    return Receiver(shop, once, secrets=SECRET, wait=0)


async def test_a_signed_request_gets_through_and_its_repetition_is_replayed(receiver, shop):
    body = b"\xff\x00 not text"
    assert (await ask(receiver, body, headers=signed(body))).status == 201
    # Signed anew, at another time.
    again = await ask(receiver, body, headers=signed(body, ago_s=60))
    assert (again.status, again.headers["idempotency-replayed"]) == (201, "true")
    assert shop.orders == [body]


# Made when they are needed: they have a time.
WRONG: dict[str, Callable[[], dict[str, str]]] = {
    "not signed": dict,
    "another secret": lambda: signed(b"{}", OTHER),
    "another body": lambda: signed(b"[]"),
    "too old": lambda: signed(b"{}", ago_s=301),
    "of the future": lambda: signed(b"{}", ago_s=-400),
    "another id": lambda: signed(b"{}") | {"webhook-id": "another"},
    "another key": lambda: signed(b"{}", key="another"),
    "a broken header": lambda: signed(b"{}") | {"webhook-signature": "v1"},
}


@pytest.mark.parametrize("wrong", list(WRONG))
async def test_what_is_not_signed_as_it_should_be_is_refused_and_not_remembered(receiver, shop, wrong):
    told = await ask(receiver, headers=WRONG[wrong]())
    assert (told.status, told.problem["title"]) == (401, "Not signed")
    assert "www-authenticate" in told.headers
    assert shop.orders == []
    assert (await ask(receiver, headers=signed(b"{}"))).status == 201


async def test_nobody_learns_an_answer_without_a_signature(receiver):
    await ask(receiver, headers=signed(b"{}"))
    assert (await ask(receiver)).status == 401


async def test_who_leaves_the_key_out_needs_the_secret_too(receiver, shop):
    assert (await ask(receiver, key=None)).status == 401
    assert (await ask(receiver, key=None, headers=signed(b"{}"))).status == 201
    assert (await ask(receiver, headers=signed(b"{}"))).headers["idempotency-replayed"] == "true"
    assert len(shop.orders) == 1


async def test_requests_of_other_senders_need_no_more_than_the_standard_asks_for(receiver, shop):
    headers = signed(b"")
    at = headers["webhook-timestamp"]
    headers["webhook-signature"] = Webhook(SECRET).sign(KEY, datetime.fromtimestamp(int(at), UTC), '{"a": 1}')
    for _ in range(2):
        assert (await ask(receiver, b'{"a": 1}', key=None, headers=headers)).status == 201
    assert len(shop.orders) == 1


async def test_a_header_that_stands_twice_is_refused(receiver, shop):
    told = await ask(receiver, headers=signed(b"{}") | {"Webhook-Id": "another"})
    assert told.status == 400
    assert shop.orders == []


async def test_the_tolerance_can_be_wider(shop, once):
    receiver = Receiver(shop, once, secrets=SECRET, tolerance="1h")
    assert (await ask(receiver, headers=signed(b"{}", ago_s=3000))).status == 201


@pytest.mark.parametrize(("keep", "tolerance"), [("1s", "5m"), ("9m", "5m"), ("1h", "1h")])
async def test_answers_are_kept_for_as_long_as_a_recorded_request_is_accepted(shop, make_once, keep, tolerance):
    once = make_once(keep=keep, lease="1s")
    with pytest.raises(ValueError, match="Make keep at least that long"):
        Receiver(shop, once, secrets=SECRET, tolerance=tolerance)
    # Without signatures nothing is ever too old.
    Receiver(shop, once, tolerance=tolerance)


class TestSecrets:
    async def test_they_can_be_several_while_they_are_changed(self, shop, once):
        receiver = Receiver(shop, once, secrets=f"{OTHER} {SECRET}")
        assert (await ask(receiver, key="a", headers=signed(b"{}", SECRET, key="a"))).status == 201
        assert (await ask(receiver, key="b", headers=signed(b"{}", OTHER, key="b"))).status == 201

    async def test_a_file_is_read_again_for_each_request(self, shop, once, tmp_path: Path):
        file = tmp_path / "secrets"
        file.write_text(f"{SECRET}\n")
        receiver = Receiver(shop, once, secrets=file)
        assert (await ask(receiver, headers=signed(b"{}", OTHER))).status == 401
        file.write_text(f"{SECRET}\n{OTHER}\n")
        assert (await ask(receiver, headers=signed(b"{}", OTHER))).status == 201

    @pytest.mark.parametrize("text", ["", "\n", "no base64!"])
    async def test_a_file_that_becomes_empty_or_garbage_lets_nobody_in(self, shop, once, tmp_path: Path, text):
        file = tmp_path / "secrets"
        file.write_text(SECRET)
        receiver = Receiver(shop, once, secrets=file)
        file.write_text(text)
        with pytest.raises(ValueError):
            await ask(receiver, headers=signed(b"{}"))
        file.unlink()
        with pytest.raises(FileNotFoundError):
            await ask(receiver, headers=signed(b"{}"))
        assert shop.orders == []

    async def test_a_function_is_asked_for_each_request(self, shop, once):
        known = [OTHER]
        receiver = Receiver(shop, once, secrets=lambda: " ".join(known))
        assert (await ask(receiver, headers=signed(b"{}"))).status == 401
        known.append(SECRET)
        assert (await ask(receiver, headers=signed(b"{}"))).status == 201

    @pytest.mark.parametrize("secrets", ["", "no base64!", f"{SECRET} whsec_", "test", f"{SECRET} dGVzdA=="])
    async def test_those_that_are_none_are_refused_at_once(self, shop, once, secrets):
        with pytest.raises(ValueError):
            Receiver(shop, once, secrets=secrets)
