"""What a status means for the run."""

from __future__ import annotations

import pytest
from aiohttp import web

from tests.support.http_receiver import Receiver
from tests.support.one_delivery import Sender
from tocsin import Every, Http, Retry, Tocsin
from tocsin.model.failure_class import FailureClass
from tocsin.resilience.classify import Classifier
from tocsin.targets.http.answer import retry_after
from tocsin.testing import ManualClock, run_until_idle

FORBIDDEN, THROTTLED = FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED
SERVER, TRANSIENT, UNKNOWN = FailureClass.SERVER_ERROR, FailureClass.TRANSIENT, FailureClass.UNKNOWN


@pytest.mark.parametrize(
    ("status", "final", "kind"),
    [
        (400, True, UNKNOWN),
        (401, True, FORBIDDEN),
        (403, True, FORBIDDEN),
        (404, True, UNKNOWN),
        (408, False, TRANSIENT),
        (409, True, UNKNOWN),
        (410, True, UNKNOWN),
        (418, True, UNKNOWN),
        (422, True, UNKNOWN),
        (425, False, TRANSIENT),
        (429, False, THROTTLED),
        (451, True, UNKNOWN),
        (500, False, SERVER),
        (501, False, SERVER),
        (502, False, SERVER),
        (503, False, SERVER),
        (504, False, SERVER),
        (599, False, SERVER),
    ],
)
async def test_each_status_that_is_no_success(receiver: Receiver, status: int, final: bool, kind: FailureClass) -> None:
    receiver.answers = [status]
    async with Sender("127.0.0.1") as sender:
        # Words in the address say nothing about the failure.
        failure = await sender.fail(Http.get(f"{receiver.url}/rate-limit/access-denied"))
    assert (failure.status, failure.final, Classifier().classify(failure)) == (status, final, kind)
    assert failure.told == {"status": status, "ms": 0, "head": "no"}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_what_may_pass_is_tried_again(tocsin_app: Tocsin, receiver: Receiver, status: int) -> None:
    receiver.answers = [status, 200]
    handle = await tocsin_app.enqueue(Http.get(receiver.url), id="a", retry=Retry(1, 0))
    await run_until_idle(tocsin_app)
    assert (await handle.result())["status"] == 200
    assert [each.headers["Tocsin-Attempt"] for each in receiver.received] == ["1", "2"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_what_does_not_pass_is_dead_at_once(tocsin_app: Tocsin, receiver: Receiver, status: int) -> None:
    receiver.answers = [status, 200]
    await tocsin_app.enqueue(Http.get(receiver.url), id="a", retry=Retry(5, 0))
    await run_until_idle(tocsin_app)
    [dead] = [job async for job in tocsin_app.dead()]
    assert dead.failure is not None
    assert dead.failure.error.endswith(f"answered {status}")
    assert len(receiver.received) == 1


async def test_a_schedule_goes_on_after_a_final_failure(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    receiver.answers = [404, 200]
    await tocsin_app.schedule(Http.get(receiver.url), Every("1m"), id="a", retry=Retry(5, 0))
    for _ in range(2):
        tocsin_clock.advance("1m")
        await run_until_idle(tocsin_app)
    assert [run.outcome async for run in tocsin_app.runs()] == ["succeeded", "failed"]
    assert [each.headers["Tocsin-Attempt"] for each in receiver.received] == ["1", "1"]


async def test_without_a_retry_policy_a_failure_that_may_pass_is_dead_too(
    tocsin_app: Tocsin, receiver: Receiver
) -> None:
    receiver.answers = [503, 200]
    await tocsin_app.enqueue(Http.get(receiver.url), id="a")
    await run_until_idle(tocsin_app)
    assert [job.id async for job in tocsin_app.dead()] == ["a"]


@pytest.mark.parametrize(
    ("expect", "status", "done"), [((404, 410), 404, True), ((404, 410), 200, False), (202, 202, True)]
)
async def test_the_job_may_say_what_is_a_success(
    receiver: Receiver, expect: tuple[int, ...], status: int, done: bool
) -> None:
    receiver.answers = [status]
    async with Sender("127.0.0.1") as sender:
        if done:
            assert (await sender.send(Http.get(receiver.url, expect=expect)))["status"] == status
        else:
            assert (await sender.fail(Http.get(receiver.url, expect=expect))).final


@pytest.mark.parametrize("status", [409, 429, 503])
@pytest.mark.parametrize(
    ("said", "seconds"),
    [("7", 7), ("Tue, 01 Jan 2030 00:00:30 GMT", 30), ("99999999", 600), ("Fri, 31 Dec 2999 23:59:59 GMT", 600)],
    ids=["seconds", "date", "too many seconds", "too late a date"],
)
async def test_the_receiver_says_when_to_come_back(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver, status: int, said: str, seconds: int
) -> None:
    receiver.answers = [web.Response(status=status, headers={"Retry-After": said}), 200]  # type: ignore[list-item]
    handle = await tocsin_app.enqueue(Http.get(receiver.url), id="a", retry=Retry(1, "1s"))
    await run_until_idle(tocsin_app)
    tocsin_clock.advance(seconds - 0.001)
    await run_until_idle(tocsin_app)
    assert len(receiver.received) == 1
    tocsin_clock.advance(0.001)
    await run_until_idle(tocsin_app)
    assert (await handle.result())["status"] == 200


async def test_a_schedule_without_retries_waits_for_its_first_tick_after_that(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    receiver.answers = [web.Response(status=429, headers={"Retry-After": "150"}), 200]  # type: ignore[list-item]
    await tocsin_app.schedule(Http.get(receiver.url), Every("1m"), id="a")
    for _ in range(4):
        tocsin_clock.advance("1m")
        await run_until_idle(tocsin_app)
    assert [each.headers["Tocsin-Due"][14:19] for each in receiver.received] == ["01:00", "04:00"]


async def test_others_do_not_decide_when_to_come_back(receiver: Receiver) -> None:
    receiver.answers = [web.Response(status=500, headers={"Retry-After": "7"})]
    async with Sender("127.0.0.1") as sender:
        assert (await sender.fail(Http.get(receiver.url))).retry_after is None


@pytest.mark.parametrize(
    ("said", "wait"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("١٢", None),
        ("0x10", None),
        ("0", 0.0),
        (" 12 ", 12.0),
        ("9" * 5000, 600.0),
        ("Thu, 01 Jan 1970 00:16:50 GMT", 10.0),
        ("Thu, 01 Jan 1970 00:16:50", 10.0),
        ("Thursday, 01-Jan-70 00:16:50 GMT", 10.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:16:50 +9999999", None),
        ("Thu, 99 Jan 1970 00:16:50 GMT", None),
    ],
    ids=range(16),
)
def test_what_is_understood(said: str | None, wait: float | None) -> None:
    assert retry_after(said, now_s=1000.0, longest_s=600.0) == wait
