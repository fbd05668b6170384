"""Brokers as the tests of all of them see them: where to send, what arrived, and how to make trouble."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Protocol

import aio_pika
import nats
from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import Struct

from tests.support.broker_servers import NatsServer, RabbitServer
from tests.support.kafka_cluster import KafkaCluster
from tests.support.servers import Server


class Arrived(Struct):
    value: bytes
    key: str | None
    # With the content type among them.
    headers: dict[str, str]


class Machine(Protocol):
    """A server process, or what behaves like one."""

    def kill(self) -> None: ...

    def start(self) -> Any: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Rig:
    """One place on a broker, made for one test."""

    def __init__(self, machine: Any) -> None:
        self.machine: Machine = machine
        self.name = f"t{secrets.token_hex(4)}"

    @property
    def url(self) -> str:
        raise NotImplementedError

    async def prepare(self) -> None:
        """Create what brokers do not create by themselves."""

    async def arrived(self) -> list[Arrived]:
        """All of it, in order; nothing is taken away."""
        raise NotImplementedError


class StreamRig(Rig):
    machine: Server

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.machine.port}/{self.name}"

    async def arrived(self) -> list[Arrived]:
        with self.machine.client() as client:
            return [_entry(fields) for _, fields in client.xrange(self.name)]


def _entry(fields: dict[bytes, bytes]) -> Arrived:
    headers = {name.decode(): text.decode() for name, text in fields.items() if name not in (b"value", b"key")}
    return Arrived(fields[b"value"], fields[b"key"].decode() if b"key" in fields else None, headers)


class KafkaRig(Rig):
    machine: KafkaCluster

    @property
    def url(self) -> str:
        return f"kafka://{self.machine.hosts}/{self.name}"

    async def prepare(self) -> None:
        self.machine.create(self.name)

    async def arrived(self) -> list[Arrived]:
        hosts, parts = self.machine.hosts.split(","), [TopicPartition(self.name, number) for number in range(4)]
        consumer = AIOKafkaConsumer(bootstrap_servers=hosts, auto_offset_reset="earliest", fetch_max_wait_ms=50)
        found: list[Any] = []
        await consumer.start()
        try:
            consumer.assign(parts)
            async with asyncio.timeout(20):
                ends = await consumer.end_offsets(parts)
                while len(found) < sum(ends.values()):
                    found += [each for some in (await consumer.getmany(timeout_ms=100)).values() for each in some]
        finally:
            await consumer.stop()
        return [
            Arrived(each.value, each.key and each.key.decode(), {name: text.decode() for name, text in each.headers})
            for each in sorted(found, key=lambda record: record.offset)
        ]


class NatsRig(Rig):
    machine: NatsServer

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.machine.port}/{self.name}.done"

    async def prepare(self) -> None:
        async with await nats.connect(f"nats://127.0.0.1:{self.machine.port}") as client:
            await client.jetstream().add_stream(name=self.name, subjects=[f"{self.name}.*"])

    async def arrived(self) -> list[Arrived]:
        async with await nats.connect(f"nats://127.0.0.1:{self.machine.port}") as client:
            stream = client.jetstream()
            last = (await stream.stream_info(self.name)).state.last_seq
            found = [await stream.get_msg(self.name, seq) for seq in range(1, last + 1)]
        return [
            Arrived(each.data or b"", (each.headers or {}).get("tocsin-key"), dict(each.headers or {}))
            for each in found
        ]


class RabbitRig(Rig):
    machine: RabbitServer

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.machine.port}/{self.name}"

    async def prepare(self) -> None:
        async with await aio_pika.connect(f"amqp://127.0.0.1:{self.machine.port}") as connection:
            channel = await connection.channel()
            await channel.declare_queue(self.name, durable=True)

    async def arrived(self) -> list[Arrived]:
        found = []
        # What is not acknowledged goes back when the connection ends.
        async with await aio_pika.connect(f"amqp://127.0.0.1:{self.machine.port}") as connection:
            queue = await (await connection.channel()).get_queue(self.name)
            while (message := await queue.get(fail=False)) is not None:
                headers = {name: str(text) for name, text in message.headers.items()}
                headers["content-type"] = message.content_type or ""
                assert message.message_id == headers["idempotency-key"]
                assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
                found.append(Arrived(message.body, headers.get("tocsin-key"), headers))
        return found


RIGS = {"redis": StreamRig, "kafka": KafkaRig, "nats": NatsRig, "rabbitmq": RabbitRig}
