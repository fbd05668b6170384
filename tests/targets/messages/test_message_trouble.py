"""Brokers that go away, hang and come back: a message fails in its time, and the next one arrives."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.broker_rigs import NatsRig, Rig
from tests.support.broker_servers import NatsServer
from tests.support.one_delivery import dialer
from tests.support.servers import Server
from tocsin import Message, Tocsin
from tocsin.model.broker_address import BrokerDestination
from tocsin.model.clock import monotonic
from tocsin.model.delivery import DeliveryFailed
from tocsin.resilience.classify import Classifier, FailureClass
from tocsin.targets.messages.broker import BrokerMessage
from tocsin.targets.messages.clients import Clients
from tocsin.testing import run_until_idle

PATIENCE_S = 20.0
PASSING = (FailureClass.TRANSIENT, FailureClass.SERVER_ERROR)


def message(key: str = "1") -> BrokerMessage:
    return BrokerMessage(b"value", None, {"idempotency-key": key}, "text/plain", key)


def place_of(rig: Rig) -> BrokerDestination:
    return Message(rig.url).place


async def send(clients: Clients, rig: Rig, key: str = "1", timeout: float = PATIENCE_S) -> None:
    await clients.send(place_of(rig), message(key), timeout)


async def keys(rig: Rig) -> list[str]:
    return [each.headers["idempotency-key"] for each in await rig.arrived()]


async def under_way(clients: Clients, messages: int) -> None:
    """Until so many wait for an answer, or for a connection on which it could come."""
    [client] = clients._clients.values()
    while client.users < messages:
        await asyncio.sleep(0)
    # Some clients send in a task of their own.
    for _ in range(20):
        await asyncio.sleep(0)


async def test_after_the_broker_was_killed_and_is_back_messages_arrive(clients: Clients, rig: Rig) -> None:
    await send(clients, rig, "1")
    rig.machine.kill()
    try:
        for _ in range(2):
            with pytest.raises((DeliveryFailed, TimeoutError)):
                await send(clients, rig, "2", timeout=1)
    finally:
        rig.machine.start()
    # RabbitMQ may have forgotten a queue that was declared a moment before.
    await rig.prepare()
    await send(clients, rig, "3")
    assert {"3"} <= set(await keys(rig)) <= {"1", "3"}


async def test_a_broker_that_hangs_is_given_the_time_of_the_message_and_no_more(clients: Clients, rig: Rig) -> None:
    await send(clients, rig, "1")
    rig.machine.pause()
    began = monotonic()
    try:
        with pytest.raises(TimeoutError):
            await send(clients, rig, "2", timeout=0.3)
        # Not even connected.
        with pytest.raises(TimeoutError):
            await send(clients, rig, "2", timeout=0.3)
        assert monotonic() - began < 5
    finally:
        rig.machine.resume()
    await send(clients, rig, "3")
    assert {"1", "3"} <= set(await keys(rig)) <= {"1", "2", "3"}


async def test_what_the_broker_took_and_could_not_say_in_time_has_the_same_key_when_it_comes_again(
    clients: Clients, rig: Rig
) -> None:
    await send(clients, rig, "warm")
    rig.machine.pause()
    try:
        with pytest.raises(TimeoutError):
            await send(clients, rig, "pay", timeout=0.5)
    finally:
        rig.machine.resume()
    await send(clients, rig, "pay")
    arrived = await keys(rig)
    assert set(arrived) == {"warm", "pay"}
    # On NATS the stream itself drops what it has seen.
    assert arrived.count("pay") == 1 or Message(rig.url).broker != "nats"


async def test_a_message_under_way_fails_when_the_broker_dies(clients: Clients, rig: Rig) -> None:
    await send(clients, rig, "1")
    rig.machine.pause()
    sending = asyncio.create_task(send(clients, rig, "2", timeout=3))
    await under_way(clients, 1)
    rig.machine.kill()
    try:
        with pytest.raises((DeliveryFailed, TimeoutError)) as failed:
            await sending
        if Message(rig.url).broker != "kafka":
            # At once. Kafka's client looks for another broker that has the topic, until the time is up.
            assert isinstance(failed.value, DeliveryFailed)
            assert "is not available" in str(failed.value)
    finally:
        rig.machine.start()
    await rig.prepare()
    await send(clients, rig, "3")


async def test_a_run_that_is_cancelled_does_not_break_what_others_send(clients: Clients, rig: Rig) -> None:
    await send(clients, rig, "1")
    rig.machine.pause()
    doomed = [asyncio.create_task(send(clients, rig, f"doomed {n}")) for n in range(3)]
    await under_way(clients, 3)
    for task in doomed:
        task.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)
    rig.machine.resume()
    await asyncio.gather(*(send(clients, rig, f"other {n}") for n in range(5)))
    assert {f"other {n}" for n in range(5)} <= set(await keys(rig))


async def test_who_gives_up_while_a_client_connects_does_not_end_it_for_others(
    clients: Clients, nats_broker: NatsServer
) -> None:
    rig = NatsRig(nats_broker)
    await rig.prepare()
    nats_broker.pause()
    try:
        patient = asyncio.create_task(send(clients, rig, "patient"))
        with pytest.raises(TimeoutError):
            await send(clients, rig, "hasty", timeout=0.2)
        [client] = clients._clients.values()
        assert client.users == 1
    finally:
        nats_broker.resume()
    await patient
    assert await keys(rig) == ["patient"]


async def test_many_messages_at_once_share_one_client(clients: Clients, rig: Rig) -> None:
    await asyncio.gather(*(send(clients, rig, str(n)) for n in range(200)))
    assert sorted(await keys(rig), key=int) == [str(n) for n in range(200)]
    assert len(clients._clients) == 1


@pytest.mark.parametrize("scheme", ["redis", "kafka", "nats", "amqp"])
@pytest.mark.parametrize(
    ("host", "told"),
    [("127.0.0.1:1", "is not available: .*(refused|111|Connect)"), ("no.such.host.invalid", "is not available: .*")],
    ids=["nobody", "no-name"],
)
async def test_where_nobody_is_a_message_fails_at_once_and_may_be_tried_again(
    clients: Clients, scheme: str, host: str, told: str
) -> None:
    place = Message(f"{scheme}://{host}/x").place
    with pytest.raises(DeliveryFailed, match=told) as failed:
        await clients.send(place, message(), PATIENCE_S)
    assert not failed.value.final
    assert Classifier().classify(failed.value) in PASSING


async def test_a_message_that_is_not_acknowledged_in_time_says_so(tocsin_app: Tocsin, redis_broker: Server) -> None:
    url = f"redis://user:secret@127.0.0.1:{redis_broker.port}/x"
    redis_broker.pause()
    try:
        await tocsin_app.enqueue(Message(url, timeout="200ms"), id="a")
        await run_until_idle(tocsin_app)
    finally:
        redis_broker.resume()
    [job] = [job async for job in tocsin_app.dead()]
    assert job.failure is not None
    assert f"redis://***@127.0.0.1:{redis_broker.port}/x: not acknowledged within 0.2 s" in job.failure.error
    assert "secret" not in job.failure.error


async def test_a_client_that_nobody_needs_is_closed(tocsin_app: Tocsin, rig: Rig) -> None:
    clients = Clients(tocsin_app.store, dialer("127.0.0.0/8"), idle_s=0.05)
    try:
        await send(clients, rig, "1")
        async with asyncio.timeout(PATIENCE_S):
            while clients._clients or clients._closing:
                await asyncio.sleep(0.01)
        await send(clients, rig, "2")
    finally:
        await clients.close()
    assert set(await keys(rig)) == {"1", "2"}


async def test_a_client_is_closed_also_while_its_broker_hangs(tocsin_app: Tocsin, rig: Rig) -> None:
    clients = Clients(tocsin_app.store, dialer("127.0.0.0/8"))
    await send(clients, rig, "1")
    rig.machine.pause()
    try:
        with pytest.raises(TimeoutError):
            await send(clients, rig, "2", timeout=0.2)
        began = monotonic()
        await clients.close()
        assert monotonic() - began < 10
    finally:
        rig.machine.resume()
    assert asyncio.all_tasks() == {asyncio.current_task()}
