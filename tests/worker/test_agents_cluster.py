"""Agents under the original key names: on a cluster, where all share a slot, and for the redis-cli commands."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.crc import key_slot

from tests.support.servers import Cluster, Server, ask, cluster
from tests.support.waiting import Gate, eventually
from tocsin import InvalidConfig, Tocsin
from tocsin.inspection.doctor import Doctor
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.leadership import LeaderKey
from tocsin.store.views.audit import AuditReader
from tocsin.worker import Worker, WorkerSettings

AGENTS = {f"agent {i}" for i in range(12)}
QUICK = WorkerSettings(beat_s=0.3, ttl_s=1.2)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(3) as nodes:
        yield nodes


@pytest.fixture
def gate() -> Gate:
    return Gate()


def declare(app: Tocsin, gate: Gate, every: float) -> None:
    for name in AGENTS:

        @app.agent(every=every, name=name)
        async def agent(name: str = name) -> None:
            await gate.enter(name)


@pytest.fixture
async def app(nodes: Cluster, gate: Gate) -> AsyncIterator[Tocsin]:
    """On the cluster, with the prefix and the tag of the seed's example."""
    app = Tocsin(nodes.url, prefix="myapp:", hash_tag="ps")
    declare(app, gate, 0.2)
    async with app:
        yield app
    for node in nodes.nodes:
        with node.client() as client:
            client.flushall()


async def work(app: Tocsin) -> Worker:
    worker = await app.worker(queues=["agents"], settings=QUICK)
    await worker.start()
    return worker


def keys_of(node: Server) -> set[str]:
    with node.client() as client:
        return {key.decode() for key in ask(client, "KEYS", "*")}


async def test_agents_are_registered_and_run_again_and_again(app: Tocsin, gate: Gate) -> None:
    worker = await work(app)
    try:
        await eventually(lambda: set(gate.inside) == AGENTS, "each runs")
        assert await app.store.client.zcard("myapp:working{ps}") == len(AGENTS)
        gate.open()
        await eventually(lambda: gate.passed >= 3 * len(AGENTS), "they run again")
        report = await Doctor(AuditReader(app.store), Fleet(app.store), patience_s=1.0).run()
        assert [finding for finding in report.findings if finding.kind != "no-aof"] == []
    finally:
        await worker.stop(grace=5)
    assert await app.store.client.zcard("myapp:waiting{ps}") == len(AGENTS)
    for name in AGENTS:
        job = await app.get(name)
        assert job is not None
        assert job.succeeded >= 2
        assert job.failed == 0


async def test_a_paused_agent_rests_until_it_is_resumed(app: Tocsin, gate: Gate) -> None:
    gate.open()
    runs: list[str] = []

    @app.agent(every=0.05, name="counted")
    async def counted() -> None:
        runs.append("")

    worker = await work(app)
    try:
        await eventually(lambda: len(runs) > 1, "it runs")
        assert await app.pause("counted")

        async def is_paused() -> bool:
            return await app.store.client.zscore("myapp:paused{ps}", "counted") is not None

        await eventually(is_paused, "the round that was under way has ended")
        before, others = len(runs), gate.passed
        await eventually(lambda: gate.passed > others + 2 * len(AGENTS), "the others go on")
        assert len(runs) == before
        assert await app.resume("counted")
        await eventually(lambda: len(runs) > before + 1, "it runs again")
    finally:
        await worker.stop(grace=5)


async def test_another_worker_goes_on_with_the_agents_of_one_that_died(app: Tocsin, gate: Gate) -> None:
    first = await work(app)
    await eventually(lambda: set(gate.inside) == AGENTS, "each runs")
    await first.kill()
    assert gate.inside == []
    second = await work(app)
    try:
        await eventually(lambda: set(gate.inside) == AGENTS, "each runs again")
        gate.open()
    finally:
        await second.stop(grace=5)


async def test_all_keys_of_the_agents_are_in_one_slot_under_the_seeds_names(
    app: Tocsin, gate: Gate, nodes: Cluster
) -> None:
    gate.open()
    worker = await work(app)
    try:
        await eventually(lambda: gate.passed > len(AGENTS), "they run")
    finally:
        await worker.stop(grace=5)
    assert (await LeaderKey(app.store).take("somebody", 60_000)).holder == "somebody"
    found = [keys for node in nodes.nodes if (keys := keys_of(node))]
    assert len(found) == 1
    assert {"myapp:waiting{ps}", "myapp:jobs{ps}", "myapp:cleanup-leader{ps}"} <= found[0]
    assert {key_slot(key.encode()) for key in found[0]} == {key_slot(b"ps")}
    keys = app.store.keys
    names = keys.partition("agents", 0)
    assert (names["waiting"], names["working"]) == ("myapp:waiting{ps}", "myapp:working{ps}")
    assert keys.leader() == "myapp:cleanup-leader{ps}"
    assert {key_slot(name.encode()) for name in (*names.values(), keys.leader())} == {key_slot(b"ps")}


async def test_without_a_hash_tag_agents_on_a_cluster_are_refused_at_the_start(nodes: Cluster, gate: Gate) -> None:
    app = Tocsin(nodes.url, prefix="myapp:")
    declare(app, gate, 0.2)
    async with app:
        with pytest.raises(InvalidConfig, match="hash"):
            await app.worker(queues=["agents"])


@pytest.fixture(scope="module")
def redis_cli() -> str:
    found = shutil.which("redis-cli") or shutil.which("valkey-cli")
    if found is None:
        pytest.skip("there is no redis-cli on this machine")
    return found


async def test_the_seeds_commands_answer_on_the_default_names(gate: Gate, redis_cli: str) -> None:
    with Server.valkey() as server:

        def answer(line: str) -> list[str]:
            program, *words = shlex.split(line)
            assert program == "redis-cli"
            said = subprocess.run(
                [redis_cli, "-s", str(server.socket), *words], capture_output=True, text=True, check=True, timeout=10
            )
            return said.stdout.split("\n")[:-1]

        app = Tocsin(server.url)
        declare(app, gate, 60)
        async with app:

            @app.agent(every=60, name="agent-name")
            async def waits() -> None:
                pass

            worker = await work(app)
            try:
                await eventually(lambda: set(gate.inside) == AGENTS, "all but one are running")

                async def is_over() -> bool:
                    job = await app.get("agent-name")
                    return job is not None and job.succeeded == 1

                await eventually(is_over, "that one waits for its next time")
                job = await app.get("agent-name")
                assert job is not None
                assert answer("redis-cli zcard waiting") == ["1"]
                assert answer("redis-cli zcard working") == [str(len(AGENTS))]
                # Below the millisecond may stand the success that its record does not count yet.
                scores = [str(job.due_ms), f"{job.due_ms}.0625"]
                name, score = answer("redis-cli zrange waiting 0 10 WITHSCORES")
                assert name == "agent-name"
                assert score in scores
                assert answer('redis-cli zscore waiting "agent-name"') == [score]
                holder = (await LeaderKey(app.store).take(worker.name, 60_000)).holder
                assert answer("redis-cli get cleanup-leader") == [holder] == [worker.name]
            finally:
                gate.open()
                await worker.stop(grace=5)
