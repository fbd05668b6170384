"""A primary of a cluster is gone: work on the other nodes goes on meanwhile, and its own when the replica took over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from tests.support.captured_logs import capture_logs
from tests.support.servers import Cluster, cluster
from tests.support.waiting import eventually
from tocsin import Every, Tocsin

NODES = range(3)


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    # By default a cluster serves nothing while some slots have no primary.
    with cluster(3, replicas=True, cluster_require_full_coverage="no") as nodes:
        yield nodes


def node_of(tag: str) -> int:
    slot = key_slot(tag.encode())
    return next(node for node in NODES if slot < 16384 * (node + 1) // 3)


def queue_on(node: int) -> str:
    return next(name for n in range(100) if node_of(f"{(name := f'queue-{n}')}:0") == node)


FLEET = node_of("tocsin")


@pytest.mark.parametrize(
    ("gone", "how"),
    [(FLEET, "kill"), ((FLEET + 1) % 3, "kill"), ((FLEET + 1) % 3, "pause")],
    ids=["the node of the heartbeats", "another node", "another node without a word"],
)
async def test_the_others_go_on_and_the_successor_is_found(nodes: Cluster, make_worker, gone: int, how: str) -> None:
    ran: Counter[int] = Counter()
    async with Tocsin(nodes.url) as app:

        @app.job
        async def job(node: int) -> None:
            ran[node] += 1

        for node in NODES:
            app.queue(queue_on(node))
            await app.schedule(job, Every("100ms"), node, id="often", queue=queue_on(node))
        worker = await make_worker(app, start=True, queues=[queue_on(node) for node in NODES])
        await eventually(lambda: min(ran[node] for node in NODES) >= 2, "all nodes have work")
        with capture_logs() as logs:
            replica = nodes.replicas[gone]
            # It must not take over yet.
            replica.pause()
            getattr(nodes.nodes[gone], how)()
            before = ran.copy()
            others = [node for node in NODES if node != gone]
            await eventually(lambda: all(ran[node] >= before[node] + 15 for node in others), "the others go on")
            stood_at = ran[gone]
            replica.resume()

            def took_over() -> bool:
                with replica.client() as plain:
                    return plain.info("replication")["role"] == "master"

            await eventually(took_over, "the replica takes over", within=20)
            await eventually(lambda: ran[gone] >= stood_at + 5, "it goes on there")
        assert worker.stats().acquisition_breaker.trips == 0
        told = [line["event"] for line in logs if line["logger"] == "tocsin.store"]
        assert sum("took over" in event for event in told) == 1
        assert not [line for line in logs if line.get("exc_info")]
