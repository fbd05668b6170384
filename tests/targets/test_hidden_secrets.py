"""Secrets and logins are sent, and are found nowhere else."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.captured_logs import capture_logs
from tests.support.http_receiver import Receiver
from tests.support.one_delivery import Sender
from tests.support.whole_namespace import everything
from tocsin import Every, Http, InvalidArgument, Retry, Secret, Tocsin
from tocsin.testing import ManualClock, run_until_idle

SESAME = "open-sesame-4711"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Whatever anybody logs."""
    caplog.set_level(logging.DEBUG)
    return caplog.records


@pytest.fixture(autouse=True)
def secret_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The same secret is in the environment and in a file; the operator lets jobs have both."""
    monkeypatch.setenv("TOCSIN_SECRET_TOKEN", SESAME)
    monkeypatch.setenv("TOCSIN_SECRETS__ALLOW", f"{tmp_path}/*")
    (tmp_path / "token").write_text(f"{SESAME}\n")
    return str(tmp_path / "token")


def echo(request: web.Request) -> Any:
    async def answer() -> web.Response:
        said = request.headers.get("X-Token") or request.headers["Authorization"]
        return web.Response(status=500, text=f"you sent {said}")

    return answer()


@pytest.mark.parametrize("kind", ["env", "file"])
async def test_a_secret_is_in_no_key_log_line_or_error(
    tocsin_app: Tocsin,
    tocsin_clock: ManualClock,
    receiver: Receiver,
    lines: list[Any],
    secret_file: str,
    kind: str,
) -> None:
    secret = Secret.env("TOCSIN_SECRET_TOKEN", "Bearer ") if kind == "env" else Secret.file(secret_file, "Bearer ")
    receiver.answers = [echo]
    with capture_logs() as logged:
        for job in ("dead", "again"):
            target = Http.post(receiver.url, headers={"X-Token": secret}, json={"a": 1})
            await tocsin_app.enqueue(target, id=job, retry=Retry(2, 0))
        await tocsin_app.schedule(Http.get(receiver.url, headers={"Authorization": secret}), Every("1m"), id="often")
        tocsin_clock.advance("1m")
        await run_until_idle(tocsin_app)
    sent = {each.headers.get("X-Token") or each.headers["Authorization"] for each in receiver.received}
    assert sent == {f"Bearer {SESAME}"}
    kept = [data async for data in everything(tocsin_app)]
    assert any(b"you sent Bearer ***" in data for data in kept)
    found = [data for data in kept if SESAME.encode() in data]
    assert found == []
    assert SESAME not in f"{logged}{[record.getMessage() for record in lines]}"
    jobs = [job async for job in tocsin_app.dead()] + [job async for job in tocsin_app.jobs()]
    assert jobs
    assert SESAME not in repr(jobs)


@pytest.mark.parametrize(
    ("value", "told"),
    [("two\nlines", "not printable text on one line"), ("bell\x07", "not printable text on one line")],
    ids=["two lines", "a bell"],
)
async def test_a_secret_that_cannot_be_sent_is_not_quoted(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, value: str, told: str
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_TOKEN", value)
    async with Sender("127.0.0.1") as sender:
        failure = await sender.fail(Http.get(receiver.url, headers={"X": Secret.env("TOCSIN_SECRET_TOKEN")}))
    assert str(failure) == f"the secret <env TOCSIN_SECRET_TOKEN> cannot be sent in a header: it is {told}"
    assert receiver.received == []


@pytest.mark.parametrize(
    ("login", "sent"),
    [
        ("ada:lovelace", b"ada:lovelace"),
        ("ada", b"ada:"),
        (":lovelace", b":lovelace"),
        ("ada:a%40b%3Ac%2Fd", b"ada:a@b:c/d"),
        ("%C3%A9:%C3%A8", "é:è".encode()),
    ],
)
async def test_a_login_in_the_url_is_sent_as_basic_auth(receiver: Receiver, login: str, sent: bytes) -> None:
    async with Sender("127.0.0.1") as sender:
        await sender.send(Http.get(f"http://{login}@127.0.0.1:{receiver.port}/a"))
    [request] = receiver.received
    assert request.headers["Authorization"] == f"Basic {base64.b64encode(sent).decode()}"
    assert request.headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert request.path == "/a"


def test_a_login_and_an_authorization_cannot_both_be_sent() -> None:
    with pytest.raises(InvalidArgument, match="not in both"):
        Http.get("https://ada:lovelace@example.org/", headers={"authorization": "Bearer x"})


async def test_a_login_is_in_no_error_log_line_or_repr(
    tocsin_app: Tocsin, receiver: Receiver, lines: list[Any]
) -> None:
    receiver.answers = [404, 500]
    dead_port = receiver.port
    urls = [
        f"http://ada:lovelace@127.0.0.1:{receiver.port}/hook",
        f"http://ada:lovelace@127.0.0.1:{receiver.port}/hook",
        "http://ada:lovelace@10.1.2.3/refused",
        "http://ada:lovelace@2130706433/",
        "http://ada:lovelace@no-such-host.invalid/",
        f"https://ada:lovelace@127.0.0.1:{dead_port}/not-tls",
        f"http://ada:lovelace@{'a' * 70}.example/",
    ]
    with capture_logs() as logged:
        for number, url in enumerate(urls):
            await tocsin_app.enqueue(Http.post(url, json=1), id=f"job-{number}")
        await run_until_idle(tocsin_app)
    dead = [job async for job in tocsin_app.dead()]
    assert len(dead) == len(urls)
    assert all("***@" in job.failure.error for job in dead if job.failure is not None)
    told = [run async for run in tocsin_app.runs()]
    why = [str(await tocsin_app.why(job.id)) for job in dead]
    shown = f"{dead}{told}{why}{logged}{[record.getMessage() for record in lines]}"
    assert "lovelace" not in shown
    assert "***@" in shown
