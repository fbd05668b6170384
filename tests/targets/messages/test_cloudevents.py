"""Messages as CloudEvents, read by the CloudEvents SDK."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tests.support.broker_rigs import Rig
from tests.support.servers import Server
from tocsin import Message, Tocsin
from tocsin.model.ids import idempotency_key
from tocsin.targets.messages.cloudevents import source_of
from tocsin.testing import ManualClock, run_until_idle


async def sent(app: Tocsin, target: Message, id: str, server: Server) -> CloudEvent:
    await app.enqueue(target, id=id)
    await run_until_idle(app)
    with server.client() as client:
        [(_, fields)] = client.xrange(target.place.name)
    assert fields[b"content-type"] == b"application/cloudevents+json; charset=UTF-8"
    return JSONFormat().read(CloudEvent, fields[b"value"])


@pytest.mark.parametrize("value", [{"a": [1, "ä", None]}, "text", 5, None, []], ids=range(5))
async def test_json_is_the_data_of_the_event(tocsin_app: Tocsin, redis_broker: Server, value: Any) -> None:
    url = f"redis://127.0.0.1:{redis_broker.port}/{tocsin_app.store.keys.prefix}"
    event = await sent(tocsin_app, Message(url, value, cloudevent="com.example.paid"), "a b/c", redis_broker)
    assert event.get_data() == value
    assert event.get_datacontenttype() == "application/json"


async def test_the_event_names_its_run(tocsin_app: Tocsin, tocsin_clock: ManualClock, redis_broker: Server) -> None:
    prefix = tocsin_app.store.keys.prefix
    target = Message(
        f"redis://127.0.0.1:{redis_broker.port}/{prefix}",
        {"due": "{run.due}"},
        key="customer {run.tenant}",
        cloudevent="com.example.paid",
    )
    event = await sent(tocsin_app, target, "a b/c", redis_broker)
    key = idempotency_key(prefix, "default", "a b/c", tocsin_clock.ms)
    assert event.get_id() == key
    assert event.get_type() == "com.example.paid"
    assert event.get_source() == f"/tocsin/{prefix.removesuffix(':')}/default/a%20b%2Fc"
    assert event.get_subject() == f"a b/c@{tocsin_clock.ms}"
    assert event.get_time() == tocsin_clock.now
    assert event.get_data() == {"due": "2030-01-01T00:00:00.000Z"}
    assert event.get_extension("partitionkey") == "customer "
    assert event.get_extension("traceparent").startswith(f"00-{key}-")


async def test_bytes_are_the_data_as_they_are(tocsin_app: Tocsin, redis_broker: Server) -> None:
    url = f"redis://127.0.0.1:{redis_broker.port}/{tocsin_app.store.keys.prefix}"
    event = await sent(tocsin_app, Message(url, b"\x00\xff", cloudevent="x"), "a", redis_broker)
    assert event.get_data() == b"\x00\xff"
    assert event.get_datacontenttype() == "application/octet-stream"


async def test_each_broker_says_that_it_is_one(tocsin_app: Tocsin, rig: Rig) -> None:
    await tocsin_app.enqueue(Message(rig.url, {"a": 1}, cloudevent="x"), id="a")
    await run_until_idle(tocsin_app)
    [message] = await rig.arrived()
    assert message.headers["content-type"].startswith("application/cloudevents+json")
    assert json.loads(message.value)["id"] == message.headers["idempotency-key"]


def test_no_two_jobs_have_the_same_source() -> None:
    assert source_of("", "a", "b/c") == "/tocsin/a/b%2Fc"
    assert source_of("a", "b", "c") == "/tocsin/a/b/c"
