"""What only this machine or its network should reach is not reached by messages, and Tocsin's own keys by none."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.broker_rigs import KafkaRig
from tests.support.kafka_cluster import KafkaCluster
from tests.support.one_delivery import dialer
from tests.support.servers import Server, free_port
from tocsin import InvalidArgument, Message, Retry, Tocsin
from tocsin.config.schema import Config, Redis, Scheduler
from tocsin.config.schema import KeysGroup as ConfigKeys
from tocsin.model.delivery import DeliveryFailed
from tocsin.receive.memory import TurnTaken
from tocsin.receive.redis_memory import RedisMemory
from tocsin.store.keys import Keys
from tocsin.targets.messages.broker import BrokerMessage
from tocsin.targets.messages.clients import Clients
from tocsin.targets.messages.dialer import Dialer, Info
from tocsin.testing import run_until_idle

SCHEMES = ("redis", "rediss", "kafka", "kafka+tls", "nats", "nats+tls", "amqp", "amqps")
LETTER = BrokerMessage(b"x", None, {"idempotency-key": "1"}, "text/plain", "1")


class Trap:
    """Listens, and notes who comes."""

    def __init__(self, says: bytes = b"") -> None:
        self._says = says
        self.visits = 0
        self.port = 0

    async def __aenter__(self) -> Trap:
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _visit(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        writer.write(self._says)
        writer.close()


@pytest.fixture
async def trap() -> AsyncIterator[Trap]:
    async with Trap() as made:
        yield made


class Names:
    """Answers with one address after the other, the last one for ever."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[Info]:
        self.asked.append(host)
        address = host if host.startswith("127.") else self._answers.pop(0) if self._answers[1:] else self._answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]


async def failure(app: Tocsin, url: str, dial: Dialer) -> DeliveryFailed:
    clients = Clients(app.store, dial)
    try:
        with pytest.raises(DeliveryFailed) as failed:
            await clients.send(Message(url).place, LETTER, 20)
    finally:
        await clients.close()
    return failed.value


async def test_a_setting_is_named_where_it_helps(tocsin_app: Tocsin) -> None:
    failed = await failure(tocsin_app, "redis://127.0.0.1:7/x", dialer())
    assert str(failed) == (
        "redis://127.0.0.1:7: 127.0.0.1 is a loopback address, and not for jobs unless the operator lists it, its "
        "network or the host's name in the setting `message.allow`"
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0.0.0.0", "[::ffff:127.0.0.1]"])
async def test_this_machine_is_refused_by_any_name_and_open_ports_look_like_closed_ones(
    tocsin_app: Tocsin, trap: Trap, scheme: str, host: str
) -> None:
    closed = free_port()
    told = set()
    for port in (trap.port, closed):
        failed = await failure(tocsin_app, f"{scheme}://{host}:{port}/x", dialer())
        assert (failed.final, failed.sent, failed.status) == (True, False, None)
        told.add(str(failed).replace(str(port), "PORT"))
    assert len(told) == 1
    assert trap.visits == 0


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_what_the_operator_allows_is_reached(tocsin_app: Tocsin, trap: Trap, scheme: str) -> None:
    by_name = dialer("*.internal", resolve=Names("127.0.0.1"))
    for dial, host in ((dialer("127.0.0.1"), "127.0.0.1"), (by_name, "broker.internal")):
        before = trap.visits
        failed = await failure(tocsin_app, f"{scheme}://{host}:{trap.port}/x", dial)
        assert not failed.final
        assert trap.visits > before


@pytest.mark.parametrize("host", ["127.0.0.1\0.internal", "localhost\0.internal"])
async def test_a_name_that_the_resolver_would_end_at_a_nul_is_not_the_one_that_is_allowed(
    trap: Trap, host: str
) -> None:
    with pytest.raises(OSError, match="is a loopback address"):
        await dialer("*.internal").connect(host, trap.port)
    assert trap.visits == 0
    for scheme in SCHEMES:
        with pytest.raises(InvalidArgument, match="write each host as HOST or HOST:PORT"):
            Message(f"{scheme}://{host.replace(chr(0), '%00')}:{trap.port}/x")


async def test_a_name_that_no_resolver_takes_is_refused_whoever_says_it() -> None:
    """Also a broker, of another."""
    for host in ("a" * 70, "x..internal", "%ff.internal"):
        for scheme in SCHEMES:
            with pytest.raises(InvalidArgument, match="write each host as HOST or HOST:PORT"):
                Message(f"{scheme}://{host}:1/x")
    with pytest.raises(OSError, match="is not a host name"):
        await dialer("*.internal").connect("a" * 70, 1)


async def test_one_look_decides_and_connects(tocsin_app: Tocsin, trap: Trap) -> None:
    """A second look-up between the check and the connection would get the address of this machine."""
    for scheme in ("redis", "nats", "amqp"):
        names = Names("127.0.0.3", "127.0.0.1")
        failed = await failure(
            tocsin_app, f"{scheme}://rebinding.example:{trap.port}/x", dialer("127.0.0.3", resolve=names)
        )
        assert "127.0.0.3" in str(failed) or failed.final
    assert trap.visits == 0


async def test_brokers_that_kafka_names_are_judged_too(tocsin_app: Tocsin, kafka_broker: KafkaCluster) -> None:
    """The way in is allowed by its name; what it leads to is this machine, under its address."""
    rig = KafkaRig(kafka_broker)
    await rig.prepare()
    port = kafka_broker.hosts.split(",")[0].rpartition(":")[2]
    dial = dialer("boot.internal", resolve=Names("127.0.0.1"))
    async with asyncio.timeout(5):
        failed = await failure(tocsin_app, f"kafka://boot.internal:{port}/{rig.name}", dial)
    assert failed.final
    assert "127.0.0.1 is a loopback address" in str(failed)
    assert await rig.arrived() == []


async def test_servers_that_nats_names_are_judged_too(tocsin_app: Tocsin, trap: Trap) -> None:
    info = {"server_id": "x", "version": "2", "connect_urls": [f"127.0.0.1:{trap.port}"]}
    async with Trap(f"INFO {json.dumps(info)}\r\n".encode()) as server:
        dial = dialer("boot.internal", resolve=Names("127.0.0.1"))
        await failure(tocsin_app, f"nats://boot.internal:{server.port}/x", dial)
        assert server.visits
    assert trap.visits == 0


async def test_a_refused_run_is_dead_at_once(tocsin_app: Tocsin) -> None:
    await tocsin_app.enqueue(Message("redis://169.254.169.254/latest"), id="a", retry=Retry(5, 0))
    assert await run_until_idle(tocsin_app) == 1
    [dead] = [job async for job in tocsin_app.dead()]
    assert dead.failure is not None
    assert "169.254.169.254 is a metadata address" in dead.failure.error


# Tocsin's own keys


def keys_of(prefix: str, hash_tag: str = "") -> set[str]:
    """All that a Tocsin of that prefix has, and what its other queues and workers would have."""
    keys = Keys(prefix, hash_tag)
    partitions = [keys.partition(queue, 3) for queue in ("mail", "agents", "a:b{c}")]
    found = {name for partition in partitions for name in partition.values()} | set(keys.fleet().values())
    return found | {keys.bell("mail"), keys.mail("host:1:ab.1"), keys.leader()}


async def try_to_write(app: Tocsin, base: str, names: set[str]) -> dict[str, str]:
    """By name, why not."""
    clients = Clients(app.store, dialer("127.0.0.0/8"))
    told: dict[str, str] = {}
    try:
        for name in sorted(names):
            url = f"{base}/{name.replace('{', '%7B').replace('?', '%3F')}"
            try:
                await clients.send(Message(url).place, LETTER, 20)
            except DeliveryFailed as error:
                told[name] = str(error)
    finally:
        await clients.close()
    return told


@pytest.fixture
async def neighbours(redis_broker: Server) -> AsyncIterator[tuple[Tocsin, Tocsin]]:
    """Two apps on one server, each with jobs."""
    url, name = f"redis://127.0.0.1:{redis_broker.port}", secrets.token_hex(4)
    async with Tocsin(url, prefix=f"own-{name}:") as own, Tocsin(url, prefix=f"other-{name}:") as other:
        for app in (own, other):
            await app.enqueue(Message("redis:///later"), id="a", delay="1h")
        yield own, other


@pytest.mark.parametrize("by", ["redis://", "address"])
async def test_no_key_of_any_tocsin_becomes_a_stream(
    neighbours: tuple[Tocsin, Tocsin], redis_broker: Server, by: str
) -> None:
    """Neither by the short address nor by another one of the same server, whatever prefix and hash tag it has."""
    own, other = (app.store.keys.prefix for app in neighbours)
    renamed = {"third:line:mail{mail:3}", "third:line:a:b{c}{ps:3}"}
    names = keys_of(own) | keys_of(own, "ps") | keys_of(other) | keys_of("third:", "ps") | renamed
    with redis_broker.client() as client:
        before = set(client.scan_iter(count=1000))
        told = await try_to_write(neighbours[0], by if by != "address" else neighbours[0].store.address.shown, names)
        assert set(told) == names
        assert all("a key of Tocsin's own" in text for text in told.values())
        assert set(client.scan_iter(count=1000)) == before


@pytest.mark.parametrize("by", ["redis://", "address"])
async def test_no_key_that_a_receiver_has_or_will_have_becomes_a_stream(
    neighbours: tuple[Tocsin, Tocsin], redis_broker: Server, by: str
) -> None:
    """Without secrets and logins they can be computed: a stream there would refuse that request for ever."""
    app, url = neighbours[0], f"redis://127.0.0.1:{redis_broker.port}"
    name = secrets.token_hex(4)
    known, coming = (f"tocsin:receive:{name}:{{{n:064x}}}" for n in range(2))
    memory = RedisMemory(url, name)
    try:
        assert isinstance(await memory.take(f"{0:064x}", "token", b"d" * 32, 60_000), TurnTaken)
        told = await try_to_write(app, by if by != "address" else app.store.address.shown, {known, coming})
        assert set(told) == {known, coming}
        assert all("a key of Tocsin's own" in text for text in told.values())
        assert isinstance(await memory.take(f"{1:064x}", "token", b"d" * 32, 60_000), TurnTaken)
    finally:
        await memory.close()


async def test_keys_that_the_operator_renamed_are_known(redis_broker: Server) -> None:
    scheduler = Scheduler(keys=ConfigKeys(prefix="renamed:", waiting_set="line", cleanup_leader_key="chief"))
    url = f"redis://127.0.0.1:{redis_broker.port}"
    async with Tocsin(url, config=Config(redis=Redis(scheduler=scheduler))) as app:
        names = {"renamed:line", "renamed:chief", "renamed:line{ps}", "renamed:line:mail{mail:0}"}
        assert set(await try_to_write(app, url, names)) == names


async def test_other_streams_may_be_called_what_they_like(neighbours: tuple[Tocsin, Tocsin]) -> None:
    names = {"orders", "orders:events", "events-of-orders", "dead", "orders{eu}", "{eu}orders", "mail:out", "jobs:x"}
    assert await try_to_write(neighbours[0], "redis://", names) == {}
    client: Any = neighbours[0].store.client
    assert {await client.type(name) for name in names} == {b"stream"}


async def test_a_login_that_sees_no_key_of_tocsins_can_write_its_own(tocsin_app: Tocsin) -> None:
    """Looking for Tocsin's register is not allowed to it, and not needed."""
    with Server.valkey(tcp=True) as server, server.client() as client:
        client.acl_setuser("u", enabled=True, passwords=["+p"], keys=["orders:*"], commands=["+xadd", "+exists"])
        assert await try_to_write(tocsin_app, f"redis://u:p@127.0.0.1:{server.port}", {"orders:events"}) == {}
        assert client.xlen("orders:events") == 1


async def test_a_fleet_goes_on_after_somebody_tried_to_break_it(
    neighbours: tuple[Tocsin, Tocsin], redis_broker: Server
) -> None:
    own, other = neighbours
    for prefix in (own.store.keys.prefix, other.store.keys.prefix):
        for base in ("redis://", f"redis://127.0.0.1:{redis_broker.port}"):
            await own.enqueue(Message(f"{base}/{prefix}buried%7Btocsin%7D"), id=f"{base}{prefix}")
    await run_until_idle(own)
    assert [run.outcome async for run in own.runs()] == ["dead"] * 4
    for app in neighbours:
        handle = await app.enqueue(Message("redis:///fine"), id="fine")
        await run_until_idle(app)
        assert (await handle.result())["stream"] == "fine"
