"""Signed requests, as another implementation of Standard Webhooks verifies them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.support.http_receiver import Received, Receiver
from tests.support.one_delivery import Sender
from tocsin import Http, Retry, Secret, Tocsin
from tocsin.model.webhook_signature import verify
from tocsin.testing import ManualClock, run_until_idle

FIRST = "whsec_" + base64.b64encode(b"the first secret of all.").decode()
SECOND = "whsec_" + base64.b64encode(b"the second secret of all").decode()
SIGN = Secret.env("TOCSIN_SECRET_SIGNING")


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_SIGNING", FIRST)


def check(request: Received, secret: str = FIRST) -> None:
    """Raises if it is not signed by it. At the time that it says: tests have their own."""
    timestamp = float(request.headers["webhook-timestamp"])
    assert verify([secret], request.headers, request.body, timestamp) == request.headers["Idempotency-Key"]


@pytest.mark.parametrize(
    "target",
    [
        lambda url: Http.post(url, json={"due": "{run.due}", "ä": [1, 2]}, sign=SIGN),
        lambda url: Http.post(url, body=bytes(range(256)), sign=SIGN),
        lambda url: Http.post(url, body="text {run.due}", sign=SIGN),
        lambda url: Http.get(url, sign=SIGN),
        lambda url: Http.put(url, body=b"x" * 200_000, sign=SIGN),
    ],
    ids=["json with fields", "bytes", "text", "nothing", "large"],
)
async def test_what_is_signed_is_what_is_sent(receiver: Receiver, target: Callable[[str], Http]) -> None:
    async with Sender("127.0.0.1") as sender:
        await sender.send(target(receiver.url))
    [request] = receiver.received
    check(request)
    assert request.headers["webhook-id"] == request.headers["Idempotency-Key"]
    assert request.headers["webhook-timestamp"] == "1893456000"


async def test_each_attempt_is_signed_with_its_own_time_and_the_same_id(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    receiver.answers = [500, 200]
    await tocsin_app.enqueue(Http.post(receiver.url, json=1, sign=SIGN), id="a", retry=Retry(1, "10m"))
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("10m")
    await run_until_idle(tocsin_app)
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) == 600
    check(first)
    check(second)


async def test_all_secrets_sign_while_they_are_being_changed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_SIGNING", f"{FIRST}\n{SECOND}\n\n")
    async with Sender("127.0.0.1") as sender:
        await sender.send(Http.post(receiver.url, json=1, sign=SIGN))
    [request] = receiver.received
    check(request, FIRST)
    check(request, SECOND)
    assert len(request.headers["webhook-signature"].split()) == 2


async def test_nothing_is_signed_unless_asked_for(receiver: Receiver) -> None:
    async with Sender("127.0.0.1") as sender:
        await sender.send(Http.post(receiver.url, json=1))
    assert not [name for name in receiver.received[0].headers if name.lower().startswith("webhook-")]


async def test_a_secret_that_cannot_sign_is_told_without_quoting_it(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_SIGNING", "not-base64!")
    async with Sender("127.0.0.1") as sender:
        failure = await sender.fail(Http.post(receiver.url, json=1, sign=SIGN))
    assert str(failure).startswith("the secret <env TOCSIN_SECRET_SIGNING> cannot sign requests: a secret is base64")
    assert "not-base64" not in str(failure)
    assert receiver.received == []


async def test_a_secret_that_could_be_guessed_signs_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_SIGNING", "test")
    async with Sender("127.0.0.1") as sender:
        failure = await sender.fail(Http.post(receiver.url, json=1, sign=SIGN))
    assert "at least 16 bytes, this one has 3: make one with `openssl rand -base64 32`" in str(failure)
    assert receiver.received == []


async def test_another_implementation_agrees(receiver: Receiver) -> None:
    """At the time of its own clock."""
    async with Sender("127.0.0.1") as sender:
        sender.clock.move_to(datetime.now(UTC))
        await sender.send(Http.post(receiver.url, json={"n": 1}, sign=SIGN))
    [request] = receiver.received
    assert Webhook(FIRST).verify(request.body.decode(), request.headers) == {"n": 1}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECOND).verify(request.body.decode(), request.headers)
