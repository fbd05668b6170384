"""A receiver on loopback, which the workers of `tocsin_app` may reach; and brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.broker_rigs import RIGS, Rig
from tests.support.broker_servers import NatsServer, RabbitServer
from tests.support.http_receiver import Receiver
from tests.support.kafka_cluster import KafkaCluster
from tests.support.one_delivery import dialer
from tests.support.servers import Server
from tocsin import Tocsin
from tocsin.targets.messages.clients import Clients


@pytest.fixture(autouse=True)
def loopback_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator would say it; before `tocsin_app` reads it."""
    for name in ("TOCSIN_HTTP__ALLOW", "TOCSIN_MESSAGE__ALLOW"):
        monkeypatch.setenv(name, "127.0.0.0/8")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(scope="session")
def redis_broker() -> Iterator[Server]:
    """Another server than Tocsin's own."""
    with Server.valkey(tcp=True, aof=True) as server:
        yield server


@pytest.fixture(scope="session")
def nats_broker() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def rabbitmq_broker() -> Iterator[RabbitServer]:
    if not RabbitServer.is_installed():
        pytest.skip("rabbitmq-server is not installed")
    with RabbitServer() as server:
        yield server


@pytest.fixture(params=RIGS)
def made_rig(request: pytest.FixtureRequest) -> Rig:
    return RIGS[request.param](request.getfixturevalue(f"{request.param}_broker"))


@pytest.fixture
async def rig(made_rig: Rig) -> Rig:
    """A place on each broker, in turn."""
    await made_rig.prepare()
    return made_rig


@pytest.fixture
async def clients(tocsin_app: Tocsin) -> AsyncIterator[Clients]:
    """What a worker sends messages with, as long as it lives."""
    made = Clients(tocsin_app.store, dialer("127.0.0.0/8", "::1"))
    yield made
    await made.close()
