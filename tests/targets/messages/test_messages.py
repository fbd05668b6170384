"""Messages as those see them who read from the broker."""

from __future__ import annotations

import json

import pytest

from tests.support.broker_rigs import Rig
from tests.support.servers import Server
from tocsin import Message, Retry, Secret, Tocsin
from tocsin.model.ids import idempotency_key
from tocsin.testing import ManualClock, run_until_idle


async def test_a_job_is_a_message_with_a_key_that_names_its_run(tocsin_app: Tocsin, rig: Rig) -> None:
    target = Message(rig.url, value={"a": [1, "ä"]}, key="customer 7", headers={"X-Kind": "order {run.job_id}"})
    handle = await tocsin_app.enqueue(target, id="hello")
    await run_until_idle(tocsin_app)
    [run] = [run async for run in tocsin_app.runs()]
    assert (run.outcome, run.told) == ("succeeded", await handle.result())
    [message] = await rig.arrived()
    assert json.loads(message.value) == {"a": [1, "ä"]}
    assert message.key == "customer 7"
    headers = message.headers
    assert headers["X-Kind"] == "order hello"
    assert headers["content-type"] == "application/json"
    assert headers["tocsin-run"] == run.id
    assert headers["tocsin-due"] == "2030-01-01T00:00:00.000Z"
    assert headers["tocsin-attempt"] == "1"
    assert len(headers["idempotency-key"]) == 32
    assert headers["traceparent"].startswith(f"00-{headers['idempotency-key']}-")


async def test_the_broker_says_where_it_put_it(tocsin_app: Tocsin, rig: Rig) -> None:
    handle = await tocsin_app.enqueue(Message(rig.url, b"1", key="k"), id="a")
    await run_until_idle(tocsin_app)
    told = await handle.result()
    assert told.pop("ms") == 0
    broker = Message(rig.url).broker
    if broker == "redis":
        assert told.pop("entry").endswith("-0")
    elif broker == "kafka":
        assert told.pop("partition") in range(4)
    assert (
        told
        == {
            "redis": {"stream": rig.name},
            "kafka": {"topic": rig.name, "offset": 0},
            "nats": {"stream": rig.name, "seq": 1, "duplicate": False},
            "rabbitmq": {"exchange": "", "routing_key": rig.name},
        }[broker]
    )


async def test_bytes_are_sent_as_they_are(tocsin_app: Tocsin, rig: Rig) -> None:
    for id, target in {
        "bare": Message(rig.url, b"\x00\xff{run.id}"),
        "typed": Message(rig.url, b"<a/>", headers={"Content-Type": "text/xml"}),
        "empty": Message(rig.url),
    }.items():
        await tocsin_app.enqueue(target, id=id)
    await run_until_idle(tocsin_app)
    arrived = {each.value: each for each in await rig.arrived()}
    assert set(arrived) == {b"\x00\xff{run.id}", b"<a/>", b""}
    assert arrived[b"<a/>"].headers["content-type"] == "text/xml"
    assert "Content-Type" not in arrived[b"<a/>"].headers
    assert arrived[b""].headers["content-type"] == "application/octet-stream"
    assert arrived[b""].key is None


async def test_fields_of_the_run_are_filled_in_where_they_stand(tocsin_app: Tocsin, rig: Rig) -> None:
    target = Message(rig.url, {"id": "{run.id}", "x": "{name}"}, key="{run.queue}", headers={"X-Job": "{run.job_id}!"})
    await tocsin_app.enqueue(target, id='a/"b"\n')
    await run_until_idle(tocsin_app)
    [message] = await rig.arrived()
    assert json.loads(message.value) == {"id": 'a/"b"\n@1893456000000', "x": "{name}"}
    assert message.key == "default"
    assert message.headers["X-Job"] == 'a/"b"%0A!'


async def test_the_key_is_the_same_for_each_attempt(tocsin_app: Tocsin, tocsin_clock: ManualClock, rig: Rig) -> None:
    due = tocsin_clock.ms
    await tocsin_app.enqueue(Message(rig.url, b"x"), id="a", retry=Retry(5, "1s"))
    rig.machine.kill()
    try:
        for _ in range(2):
            await run_until_idle(tocsin_app)
            tocsin_clock.advance("1m")
    finally:
        rig.machine.start()
    # RabbitMQ may have forgotten a queue that was declared a moment before.
    await rig.prepare()
    await run_until_idle(tocsin_app)
    assert [run.outcome async for run in tocsin_app.runs()] == ["succeeded", "retried", "retried"]
    [message] = await rig.arrived()
    assert message.headers["tocsin-attempt"] == "3"
    assert message.headers["idempotency-key"] == idempotency_key(tocsin_app.store.keys.prefix, "default", "a", due)


async def test_a_stream_on_tocsins_own_server_needs_no_address(tocsin_app: Tocsin) -> None:
    stream = f"{tocsin_app.store.keys.prefix}orders"
    for n in range(300):
        await tocsin_app.enqueue(Message(f"redis:///{stream}?maxlen=100", {"n": n}), id=f"o{n}")
    await run_until_idle(tocsin_app)
    length = await tocsin_app.store.client.xlen(stream)
    # Whole nodes of a hundred entries are cut off, so that it costs nothing.
    assert 100 <= length < 300


@pytest.mark.parametrize("name", ["waiting", "events", "events:default{default:0}", "queues{tocsin}", "mail:x{tocsin}"])
async def test_keys_of_tocsins_own_are_no_streams_for_others(tocsin_app: Tocsin, name: str) -> None:
    stream = f"{tocsin_app.store.keys.prefix}{name}"
    await tocsin_app.enqueue(Message(f"redis:///{stream.replace('{', '%7B')}"), id="a", retry=Retry(3, 0))
    await run_until_idle(tocsin_app)
    [run] = [run async for run in tocsin_app.runs()]
    assert run.outcome == "dead"
    [job] = [job async for job in tocsin_app.dead()]
    assert job.failure is not None
    assert "a key of Tocsin's own" in job.failure.error


async def test_a_password_is_read_where_it_is_needed_and_stored_nowhere(
    tocsin_app: Tocsin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_BROKER", "open sesame")
    with Server.valkey(tcp=True, password="open sesame") as server:
        url = f"redis://127.0.0.1:{server.port}/orders"
        target = Message(url, b"x", password=Secret.env("TOCSIN_SECRET_BROKER"))
        await tocsin_app.enqueue(target, id="later", delay="1h")
        assert "sesame" not in repr(await tocsin_app.get("later"))
        await tocsin_app.enqueue(target, id="a")
        await run_until_idle(tocsin_app)
        with server.client() as client:
            assert client.xlen("orders") == 1
