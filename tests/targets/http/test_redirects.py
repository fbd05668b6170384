"""Redirects: not followed, unless the job says how many."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.support.http_receiver import Receiver
from tests.support.one_delivery import Names, Sender
from tests.support.servers import certificate
from tocsin import Http, Retry, Secret, Tocsin
from tocsin.testing import run_until_idle


def to(location: str, status: int = 302) -> web.Response:
    return web.Response(status=status, headers={"Location": location})


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    async with Sender("127.0.0.1") as made:
        yield made


@pytest.fixture
async def other() -> AsyncIterator[Receiver]:
    """Another origin: the port differs."""
    made = Receiver()
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_by_default_a_redirect_fails_for_good_and_says_what_to_do(
    tocsin_app: Tocsin, receiver: Receiver, status: int
) -> None:
    receiver.answers = [to("http://user:secret@elsewhere.example/", status)]
    await tocsin_app.enqueue(Http.post(receiver.url, json=1), id="a", retry=Retry(5, 0))
    await run_until_idle(tocsin_app)
    [dead] = [job async for job in tocsin_app.dead()]
    assert dead.failure is not None
    assert dead.failure.error == (
        f"DeliveryFailed: POST {receiver.url} answered {status}: it points to http://***@elsewhere.example/, and "
        "redirects are not followed; send it there, or give it redirects=1 or more"
    )
    assert len(receiver.received) == 1


@pytest.mark.parametrize("status", [300, 304, 305, 399])
async def test_another_3xx_is_no_redirect(sender: Sender, receiver: Receiver, status: int) -> None:
    receiver.answers = [to("/b", status)]
    failure = await sender.fail(Http.get(receiver.url, redirects=3))
    assert (failure.final, failure.status, len(receiver.received)) == (True, status, 1)


async def test_a_redirect_that_leads_nowhere_is_final(sender: Sender, receiver: Receiver) -> None:
    receiver.answers = [302]
    failure = await sender.fail(Http.get(receiver.url, redirects=3))
    assert (failure.final, failure.status) == (True, 302)


async def test_a_redirect_that_is_expected_is_a_success(sender: Sender, receiver: Receiver) -> None:
    receiver.answers = [to("/b")]
    assert (await sender.send(Http.get(receiver.url, expect=(302,), redirects=3)))["status"] == 302
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", "GET"),
        (302, "PUT", "GET"),
        (303, "POST", "GET"),
        (303, "HEAD", "HEAD"),
        (307, "POST", "POST"),
        (308, "PATCH", "PATCH"),
    ],
)
async def test_what_is_sent_on(sender: Sender, receiver: Receiver, status: int, method: str, then: str) -> None:
    receiver.answers = [to("/b?c=d", status), 200]
    body = b"text" if method != "HEAD" else b""
    request = Http(method, f"{receiver.url}/a", {"Content-Type": "text/plain"}, body=body, redirects=1)
    assert (await sender.send(request))["status"] == 200
    first, second = receiver.received
    assert (second.method, second.path) == (then, "/b?c=d")
    same = status in (307, 308)
    assert second.body == (b"text" if same else b"")
    assert (second.headers.get("Content-Type") == "text/plain") is same
    assert second.headers["Idempotency-Key"] == first.headers["Idempotency-Key"]


async def test_a_signature_goes_along_only_with_the_body_that_it_signs(
    sender: Sender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_KEY", "whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQ=")
    receiver.answers = [to("/b", 308), to("/c", 303), 200]
    await sender.send(Http.post(receiver.url, json=1, sign=Secret.env("TOCSIN_SECRET_KEY"), redirects=2))
    assert ["webhook-signature" in each.headers for each in receiver.received] == [True, True, False]


async def test_as_many_as_allowed_are_followed_and_no_more(sender: Sender, receiver: Receiver) -> None:
    receiver.answers = [to("/b"), to("/c"), 200]
    assert (await sender.send(Http.get(receiver.url, redirects=2)))["status"] == 200
    receiver.answers = [to("/b"), to("/c"), 200]
    failure = await sender.fail(Http.get(receiver.url, redirects=1))
    assert failure.final
    assert str(failure).endswith("was redirected more than 1 times, at last to /c")


async def test_a_loop_ends(tocsin_app: Tocsin, receiver: Receiver) -> None:
    receiver.answers = [to("/again")]
    await tocsin_app.enqueue(Http.get(receiver.url, redirects=10), id="a", retry=Retry(5, 0))
    assert await run_until_idle(tocsin_app) == 1
    [dead] = [job async for job in tocsin_app.dead()]
    assert dead.failure is not None
    assert "redirected more than 10 times" in dead.failure.error
    assert len(receiver.received) == 11


async def test_what_is_for_the_receiver_stays_with_its_origin(
    sender: Sender, receiver: Receiver, other: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_KEY", "open sesame")
    headers = {"X-Key": Secret.env("TOCSIN_SECRET_KEY"), "Cookie": "a=b", "X-Plain": "c"}
    receiver.answers = [to("/here", 307), to(other.url, 307)]
    login = receiver.url.replace("://", "://user:secret@")
    await sender.send(Http.post(login, headers=headers, json=1, redirects=2))
    first, second = receiver.received
    [away] = other.received
    for name in ("X-Key", "Cookie", "Authorization"):
        assert first.headers[name] == second.headers[name]
        assert name not in away.headers
    assert away.headers["X-Plain"] == "c"
    assert away.body == b"1"


async def test_an_authorization_of_any_kind_stays_too(sender: Sender, receiver: Receiver, other: Receiver) -> None:
    receiver.answers = [to(f"{other.url}/x", 308)]
    await sender.send(Http.get(receiver.url, headers={"authorization": "Bearer abc"}, redirects=1))
    assert receiver.received[0].headers["Authorization"] == "Bearer abc"
    assert "authorization" not in {name.lower() for name in other.received[0].headers}


async def test_a_login_that_a_redirect_gives_is_not_used(sender: Sender, receiver: Receiver, other: Receiver) -> None:
    receiver.answers = [to(other.url.replace("://", "://evil:evil@"))]
    await sender.send(Http.get(receiver.url, redirects=1))
    assert "Authorization" not in other.received[0].headers


async def test_each_step_is_guarded(receiver: Receiver) -> None:
    names = Names(["127.0.0.1"])
    async with Sender("trusted.internal", resolver=names) as sender:
        for where in (f"http://127.0.0.1:{receiver.port}/", f"http://untrusted.internal:{receiver.port}/"):
            receiver.answers = [to(where), 200]
            failure = await sender.fail(Http.get(f"http://trusted.internal:{receiver.port}/", redirects=3))
            assert failure.final
            assert "loopback" in str(failure)
    assert len(receiver.received) == 2


@pytest.mark.parametrize("where", ["ftp://127.0.0.1/", "file:///etc/passwd", "http://[", "javascript:1"])
async def test_where_requests_cannot_go(sender: Sender, receiver: Receiver, where: str) -> None:
    receiver.answers = [to(where)]
    failure = await sender.fail(Http.get(receiver.url, redirects=3))
    assert failure.final
    assert "was redirected to" in str(failure)


async def test_what_was_encrypted_does_not_become_plain(tmp_path: Path, receiver: Receiver) -> None:
    files = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["tls-cert-file"], files["tls-key-file"])
    # The context that all sessions share, which then knows the test's authority too.
    known: ssl.SSLContext = aiohttp.connector._SSL_CONTEXT_VERIFIED
    known.load_verify_locations(files["tls-ca-cert-file"])
    secure = Receiver()
    await secure.start(context)
    try:
        async with Sender("localhost") as sender:
            url = f"https://localhost:{secure.port}/"
            assert (await sender.send(Http.get(url)))["status"] == 200
            secure.answers = [to(f"http://localhost:{receiver.port}/")]
            failure = await sender.fail(Http.get(url, redirects=3))
    finally:
        await secure.stop()
    assert failure.final
    assert "from https to http" in str(failure)
    assert receiver.received == []
