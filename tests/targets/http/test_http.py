"""Requests as the receiver sees them."""

from __future__ import annotations

import json

import pytest

from tests.support.http_receiver import Receiver
from tocsin import Every, Http, InvalidArgument, Retry, Secret, Tocsin
from tocsin.testing import ManualClock, run_until_idle


async def test_a_job_is_a_request_with_a_key_that_names_its_run(tocsin_app: Tocsin, receiver: Receiver) -> None:
    handle = await tocsin_app.enqueue(Http.post(f"{receiver.url}/hook?a=1", json={"a": 1}), id="hello")
    await run_until_idle(tocsin_app)
    [request] = receiver.received
    assert (request.method, request.path, json.loads(request.body)) == ("POST", "/hook?a=1", {"a": 1})
    headers = request.headers
    [run] = [run async for run in tocsin_app.runs()]
    assert headers["Content-Type"] == "application/json"
    assert headers["Tocsin-Run"] == run.id
    assert headers["Tocsin-Due"] == "2030-01-01T00:00:00.000Z"
    assert headers["Tocsin-Attempt"] == "1"
    assert len(headers["Idempotency-Key"]) == 32
    assert headers["traceparent"].startswith(f"00-{headers['Idempotency-Key']}-")
    assert await handle.result() == {"status": 200, "ms": 0, "head": "thanks"}


async def test_the_key_is_the_same_for_each_attempt_and_another_for_each_run(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    receiver.answers = [500, 503, 200]
    await tocsin_app.schedule(Http.get(receiver.url), Every("1m"), id="ping", retry=Retry(2, "1s"))
    for _ in range(3):
        tocsin_clock.advance("1m")
        await run_until_idle(tocsin_app)
    keys = receiver.keys()
    assert len(keys) == 4
    assert keys[0] == keys[1] == keys[2] != keys[3] or len(set(keys)) == 2
    assert [each.headers["Tocsin-Attempt"] for each in receiver.received] == ["1", "2", "3", "1"]


@pytest.mark.parametrize("status", [200, 201, 204, 299])
async def test_any_2xx_is_a_success(tocsin_app: Tocsin, receiver: Receiver, status: int) -> None:
    receiver.answers = [status]
    handle = await tocsin_app.enqueue(Http.get(receiver.url), id="a")
    await run_until_idle(tocsin_app)
    assert (await handle.result())["status"] == status


async def test_what_the_receiver_said_is_told_with_the_run(tocsin_app: Tocsin, receiver: Receiver) -> None:
    receiver.answers = [500, 404]
    await tocsin_app.enqueue(Http.get(receiver.url), id="a", retry=Retry(5, 0))
    await run_until_idle(tocsin_app)
    runs = [run async for run in tocsin_app.runs()]
    assert [(run.outcome, run.told["status"], run.told["head"]) for run in runs] == [
        ("dead", 404, "no"),
        ("retried", 500, "no"),
    ]


async def test_fields_of_the_run_are_filled_in_where_they_stand(tocsin_app: Tocsin, receiver: Receiver) -> None:
    target = Http.post(
        f"{receiver.url}/{{run.job_id}}?due={{run.due}}",
        headers={"X-Job": "job {run.job_id}"},
        json={"id": "{run.id}", "{run.attempt}": "{name}"},
    )
    await tocsin_app.enqueue(target, id='a/"b"\n')
    await run_until_idle(tocsin_app)
    [request] = receiver.received
    assert request.path == "/a%2F%22b%22%0A?due=2030-01-01T00:00:00.000Z"
    assert request.headers["X-Job"] == 'job a/"b"%0A'
    assert json.loads(request.body) == {"id": 'a/"b"\n@1893456000000', "1": "{name}"}


def test_a_field_that_no_run_has_is_refused_when_the_request_is_made() -> None:
    with pytest.raises(InvalidArgument, match=r"\{run\.dew\}.*did you mean 'due'"):
        Http.post("https://example.org/", json={"when": "{run.dew}"})


async def test_a_secret_is_sent_and_not_stored(
    tocsin_app: Tocsin, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_TOKEN", "open sesame")
    target = Http.get(receiver.url, headers={"Authorization": Secret.env("TOCSIN_SECRET_TOKEN", "Bearer ")})
    await tocsin_app.enqueue(target, id="a", delay="1h")
    job = await tocsin_app.get("a")
    assert "sesame" not in repr(job)
    await tocsin_app.enqueue(target, id="b")
    await run_until_idle(tocsin_app)
    assert receiver.received[0].headers["Authorization"] == "Bearer open sesame"
