"""What brokers refuse: who may not, what is too large, and places that are not there."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import aio_pika
import nats
import pytest

from tests.support.broker_rigs import KafkaRig, NatsRig, RabbitRig
from tests.support.broker_servers import NatsServer, RabbitServer
from tests.support.kafka_cluster import FORBIDDEN_TOPIC, NOT_ENOUGH_REPLICAS, PRODUCE, TOO_LARGE, KafkaCluster
from tests.support.kafka_login import KafkaGate
from tests.support.servers import Server, certificate
from tocsin import Message
from tocsin.model.delivery import DeliveryFailed
from tocsin.resilience.classify import Classifier, FailureClass
from tocsin.targets.messages import kafka
from tocsin.targets.messages.broker import BrokerMessage
from tocsin.targets.messages.clients import Clients

FORBIDDEN = FailureClass.PERMANENT_FORBIDDEN


def message(value: bytes = b"x") -> BrokerMessage:
    return BrokerMessage(value, None, {"idempotency-key": "1"}, "text/plain", "1")


async def failure(clients: Clients, url: str, value: bytes = b"x") -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        await clients.send(Message(url).place, message(value), 20)
    return failed.value


def is_forbidden(failed: DeliveryFailed) -> bool:
    return failed.final and Classifier().classify(failed) is FORBIDDEN


# Redis


async def test_redis_refuses_a_wrong_password(clients: Clients) -> None:
    with Server.valkey(tcp=True, password="right") as server:
        for login in ("", ":wrong@", "nobody:right@"):
            failed = await failure(clients, f"redis://{login}127.0.0.1:{server.port}/x")
            assert is_forbidden(failed), failed
            assert "wrong" not in str(failed)
        await clients.send(Message(f"redis://:right@127.0.0.1:{server.port}/x?db=3").place, message(), 20)
        with server.client(db=3) as client:
            assert client.xlen("x") == 1


async def test_redis_has_something_else_of_that_name(clients: Clients, redis_broker: Server) -> None:
    with redis_broker.client() as client:
        client.set("not-a-stream", "x")
    failed = await failure(clients, f"redis://127.0.0.1:{redis_broker.port}/not-a-stream")
    assert failed.final
    assert "is not a stream" in str(failed)


async def test_redis_that_is_full_is_asked_again_later(clients: Clients) -> None:
    with Server.valkey(tcp=True, maxmemory="1mb") as server:
        failed = await failure(clients, f"redis://127.0.0.1:{server.port}/x")
        assert not failed.final
        assert Classifier().classify(failed) is FailureClass.THROTTLED


# TLS


async def test_with_tls_the_authority_is_named_and_the_host_checked(clients: Clients) -> None:
    with Server.redis7(tls=True) as server:
        ca = server.folder / "tls.crt"
        await clients.send(Message(f"rediss://localhost:{server.port}/x?ca={ca}").place, message(), 20)
        for url in (f"rediss://localhost:{server.port}/x", f"rediss://127.0.0.1:{server.port}/x?ca={ca}"):
            failed = await failure(clients, url)
            assert "certificate that cannot be trusted" in str(failed)
            assert not failed.final


async def test_nats_with_tls(clients: Clients, tmp_path: Path) -> None:
    certificate(tmp_path)
    files = ["--tlscert", str(tmp_path / "tls.crt"), "--tlskey", str(tmp_path / "tls.key")]
    ca = tmp_path / "tls.crt"
    with NatsServer("--tls", *files) as server:
        trusting = ssl.create_default_context(cafile=ca)
        async with await nats.connect(f"tls://localhost:{server.port}", tls=trusting) as client:
            await client.jetstream().add_stream(name="s", subjects=["x"])
        await clients.send(Message(f"nats+tls://localhost:{server.port}/x?ca={ca}").place, message(), 20)
        failed = await failure(clients, f"nats+tls://localhost:{server.port}/x")
        assert "certificate that cannot be trusted" in str(failed)


async def test_rabbitmq_with_tls(clients: Clients, rabbitmq_broker: RabbitServer) -> None:
    rig = RabbitRig(rabbitmq_broker)
    await rig.prepare()
    url = f"amqps://localhost:{rabbitmq_broker.tls_port}/{rig.name}"
    await clients.send(Message(f"{url}?ca={rabbitmq_broker.ca}").place, message(), 20)
    assert len(await rig.arrived()) == 1
    assert "certificate that cannot be trusted" in str(await failure(clients, url))


async def test_kafka_with_tls(clients: Clients, tmp_path: Path) -> None:
    certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    gate = KafkaGate()
    await gate.start(tls)
    try:
        url = f"kafka+tls://user:password@localhost:{gate.port}/x"
        assert is_forbidden(await failure(clients, f"{url}?ca={tmp_path / 'tls.crt'}"))
        assert gate.tokens
        assert "certificate that cannot be trusted" in str(await failure(clients, url))
    finally:
        await gate.stop()


@pytest.fixture
def no_authorities(tmp_path: Path) -> dict[str, Path]:
    """Paths that a job might ask about."""
    for name, text in {"text": "root:x:0:0", "empty": "", "binary": "\0\1"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "unreadable").write_text("x")
    (tmp_path / "unreadable").chmod(0)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    names = ("text", "empty", "binary", "unreadable", "pipe", "loop", "missing", "text/below")
    return {name: tmp_path / name for name in names} | {"folder": tmp_path, "device": Path("/dev/zero")}


@pytest.mark.parametrize("scheme", ["rediss", "kafka+tls", "amqps", "nats+tls"])
async def test_where_nothing_answers_the_error_says_nothing_about_the_authority(
    clients: Clients, scheme: str, tmp_path: Path, no_authorities: dict[str, Path]
) -> None:
    certificate(tmp_path)
    found = set()
    for path in [*no_authorities.values(), tmp_path / "tls.crt"]:
        failed = await failure(clients, f"{scheme}://127.0.0.1:1/x?ca={path}")
        found.add((str(failed), failed.status, failed.final))
    assert len(found) == 1, found


async def test_a_file_that_is_no_authority_fails_as_one_that_has_not_signed_the_certificate(
    clients: Clients, tmp_path: Path, no_authorities: dict[str, Path]
) -> None:
    certificate(tmp_path)
    found = set()
    with Server.redis7(tls=True) as server:
        for path in [*no_authorities.values(), tmp_path / "tls.crt"]:
            failed = await failure(clients, f"rediss://localhost:{server.port}/x?ca={path}")
            found.add((str(failed), failed.status, failed.final))
    [(error, _, final)] = found
    assert not final
    assert error.endswith("; ?ca= must name a file of certificates (PEM) that the worker can read")


# Kafka


async def test_kafka_refuses_a_login(clients: Clients) -> None:
    gate = KafkaGate()
    await gate.start()
    try:
        failed = await failure(clients, f"kafka://user:pass%40word@127.0.0.1:{gate.port}/x")
    finally:
        await gate.stop()
    assert is_forbidden(failed), failed
    assert "word" not in str(failed)
    assert set(gate.tokens) == {b"user\0user\0pass@word"}


async def test_kafka_does_not_let_us_write_to_a_topic(clients: Clients, kafka_broker: KafkaCluster) -> None:
    rig = KafkaRig(kafka_broker)
    await rig.prepare()
    kafka_broker.answer_next(PRODUCE, FORBIDDEN_TOPIC)
    failed = await failure(clients, rig.url)
    assert is_forbidden(failed), failed
    # A broker takes no more from a producer whose numbers have a gap.
    assert not clients._clients
    await clients.send(Message(rig.url).place, message(), 20)


async def test_a_message_that_is_too_large_for_kafka_is_not_tried_again(
    clients: Clients, kafka_broker: KafkaCluster
) -> None:
    rig = KafkaRig(kafka_broker)
    await rig.prepare()
    own = await failure(clients, rig.url, b"x" * 2_000_000)
    kafka_broker.answer_next(PRODUCE, TOO_LARGE)
    for failed in (own, await failure(clients, rig.url)):
        assert failed.final
        assert "as large as this one" in str(failed)


async def test_what_kafka_could_not_do_at_once_is_done_without_a_failure(
    clients: Clients, kafka_broker: KafkaCluster
) -> None:
    rig = KafkaRig(kafka_broker)
    await rig.prepare()
    kafka_broker.answer_next(PRODUCE, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS)
    await clients.send(Message(rig.url).place, message(), 20)
    assert len(await rig.arrived()) == 1


async def test_a_topic_that_kafka_does_not_have_may_be_there_another_time(
    clients: Clients, kafka_broker: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "REQUEST_MS", 300)
    rig = KafkaRig(kafka_broker)
    kafka_broker.hide(rig.name)
    failed = await failure(clients, rig.url)
    assert f"has no topic {rig.name!r}" in str(failed)
    assert not failed.final


# NATS


async def test_nats_refuses_a_login(clients: Clients) -> None:
    with NatsServer("--user", "u", "--pass", "right") as server:
        for login in ("", "u:wrong@", "token@"):
            failed = await failure(clients, f"nats://{login}127.0.0.1:{server.port}/x")
            assert is_forbidden(failed), failed
            assert "wrong" not in str(failed)


async def test_nats_takes_a_token(clients: Clients) -> None:
    with NatsServer("--auth", "open-sesame") as server:
        failed = await failure(clients, f"nats://open-sesame@127.0.0.1:{server.port}/x")
        assert "no stream" in str(failed)


async def test_nats_does_not_let_us_publish(clients: Clients) -> None:
    rules = "authorization { users = [{user: u, password: p, permissions: {publish: {deny: 'secret.*'}}}] }"
    with NatsServer(conf=rules) as server:
        failed = await failure(clients, f"nats://u:p@127.0.0.1:{server.port}/secret.plans")
        assert is_forbidden(failed), failed


async def test_a_subject_that_no_stream_takes_is_told(clients: Clients, nats_broker: NatsServer) -> None:
    failed = await failure(clients, f"nats://127.0.0.1:{nats_broker.port}/nobody.listens")
    assert "has no stream for the subject 'nobody.listens'" in str(failed)
    assert not failed.final


async def test_a_message_that_is_too_large_for_nats_is_not_tried_again(
    clients: Clients, nats_broker: NatsServer
) -> None:
    rig = NatsRig(nats_broker)
    await rig.prepare()
    async with await nats.connect(f"nats://127.0.0.1:{nats_broker.port}") as client:
        await client.jetstream().add_stream(name=f"{rig.name}s", subjects=[f"{rig.name}-small"], max_msg_size=100)
    for url, size in ((rig.url, 2_000_000), (rig.url.replace(".done", "-small"), 1000)):
        failed = await failure(clients, url, b"x" * size)
        assert failed.final
        assert "as large as this one" in str(failed)
    await clients.send(Message(rig.url).place, message(), 20)


async def test_a_stream_that_has_seen_it_says_so(clients: Clients, nats_broker: NatsServer) -> None:
    rig = NatsRig(nats_broker)
    await rig.prepare()
    told = [await clients.send(Message(rig.url).place, message(), 20) for _ in range(2)]
    assert [each["duplicate"] for each in told] == [False, True]
    assert told[0]["seq"] == told[1]["seq"]


# RabbitMQ


async def test_rabbitmq_refuses_a_login(clients: Clients, rabbitmq_broker: RabbitServer) -> None:
    failed = await failure(clients, f"amqp://guest:wrong@127.0.0.1:{rabbitmq_broker.port}/x")
    assert is_forbidden(failed), failed
    assert "wrong" not in str(failed)


async def test_rabbitmq_gives_back_what_no_queue_takes(clients: Clients, rabbitmq_broker: RabbitServer) -> None:
    where = f"amqp://127.0.0.1:{rabbitmq_broker.port}"
    for url, told in (
        (f"{where}/nobody", "there is no queue 'nobody'"),
        (f"{where}/x?exchange=amq.direct", "the exchange 'amq.direct' has no queue for 'x'"),
        (f"{where}/x?exchange=nowhere", "has no exchange 'nowhere'"),
        (f"{where}/x?vhost=nowhere", "has it a vhost 'nowhere'"),
    ):
        failed = await failure(clients, url)
        assert told in str(failed)
        assert not failed.final


async def test_one_message_that_rabbitmq_does_not_take_does_no_harm_to_another(
    clients: Clients, rabbitmq_broker: RabbitServer
) -> None:
    rig = RabbitRig(rabbitmq_broker)
    await rig.prepare()
    bad = Message(rig.url.replace(rig.name, f"{rig.name}?exchange=nowhere")).place
    good = Message(rig.url).place
    sent = [clients.send(place, message(), 20) for _ in range(20) for place in (bad, good)]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    assert all(isinstance(outcome, DeliveryFailed) for outcome in outcomes[::2])
    assert all(isinstance(outcome, dict) for outcome in outcomes[1::2])
    assert len(await rig.arrived()) == 20


async def test_a_message_that_is_too_large_for_rabbitmq_is_not_tried_again(
    clients: Clients, rabbitmq_broker: RabbitServer
) -> None:
    rig = RabbitRig(rabbitmq_broker)
    await rig.prepare()
    failed = await failure(clients, rig.url, b"x" * 200_000)
    assert failed.final
    assert "larger than" in str(failed)


async def test_a_queue_that_is_full_is_asked_again_later(clients: Clients, rabbitmq_broker: RabbitServer) -> None:
    async with await aio_pika.connect(f"amqp://127.0.0.1:{rabbitmq_broker.port}") as connection:
        channel = await connection.channel()
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = await channel.declare_queue("full", arguments=arguments, auto_delete=True)
        url = f"amqp://127.0.0.1:{rabbitmq_broker.port}/full"
        await clients.send(Message(url).place, message(), 20)
        failed = await failure(clients, url)
        assert "did not accept the message" in str(failed)
        assert not failed.final
        await queue.delete(if_empty=False)


async def test_messages_go_through_an_exchange(clients: Clients, rabbitmq_broker: RabbitServer) -> None:
    rig = RabbitRig(rabbitmq_broker)
    await rig.prepare()
    async with await aio_pika.connect(f"amqp://127.0.0.1:{rabbitmq_broker.port}") as connection:
        channel = await connection.channel()
        await (await channel.get_queue(rig.name)).bind("amq.topic", "orders.*")
    url = f"amqp://127.0.0.1:{rabbitmq_broker.port}/orders.new?exchange=amq.topic"
    told = await clients.send(Message(url).place, message(), 20)
    assert told == {"exchange": "amq.topic", "routing_key": "orders.new"}
    assert len(await rig.arrived()) == 1


@pytest.mark.parametrize("scheme", ["kafka", "nats"])
async def test_what_could_not_connect_has_sent_nothing(clients: Clients, scheme: str) -> None:
    failed = await failure(clients, f"{scheme}://127.0.0.1:1/x")
    assert not failed.sent
    assert not failed.final
