"""Fixtures: real servers, a namespace per test, a clock that the test moves."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.proxy import Proxy
from tests.support.records import HANDLER, record
from tests.support.servers import Cluster, Server, cluster, flavours
from tocsin.model.job import Retry
from tocsin.model.queue import Queue
from tocsin.model.record import handler_digest
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import Runs
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.testing import ManualClock

# The same examples in each run of the suite, so that a run says something about a change; `make soak` draws others.
# Properties are checked on machines that are busy with other tests: no example is failed for being slow.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("soak", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("TOCSIN_EXAMPLES", "suite"))


# Whole files that run on a cluster too. With TOCSIN_CLUSTER=1 every file runs there instead; `make soak` does so with
# the folders that are known to pass.
ON_A_CLUSTER = {
    "app/test_dependencies.py",
    "app/test_changing.py",
    "app/test_enqueue.py",
    "app/test_lookup.py",
    "cli/test_doctor.py",
    "engine/test_orders.py",
    "worker/test_repartition_worker.py",
    "upkeep/test_unheard_ends.py",
    "upkeep/test_unheld_runs.py",
    "targets/http/test_http.py",
    "inspection/why/test_lines.py",
    "inspection/why/test_stages.py",
}
ONLY_ON_A_CLUSTER = os.environ.get("TOCSIN_CLUSTER") == "1"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = [str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")]
    for fixture, others in (("topology", ["one"]), ("any_server", flavours())):
        if fixture in metafunc.fixturenames and fixture not in given:
            metafunc.parametrize(fixture, _places(metafunc, others), indirect=True, scope="session")


def _places(metafunc: pytest.Metafunc, others: list[str]) -> list[str]:
    file = metafunc.definition.path.relative_to(Path(__file__).parent).as_posix()
    if metafunc.definition.get_closest_marker("one_server"):
        return others
    if ONLY_ON_A_CLUSTER:
        return ["cluster"]
    return [*others, "cluster"] if file in ON_A_CLUSTER else others


@pytest.fixture(scope="session")
def topology(request: pytest.FixtureRequest) -> str:
    """`one` server, or a `cluster`."""
    return str(getattr(request, "param", "one"))


@pytest.fixture(scope="session")
def one_server() -> Iterator[Server]:
    with Server.valkey() as server:
        yield server


@pytest.fixture(scope="session")
def three_nodes() -> Iterator[Cluster]:
    with cluster(3) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def tag_of_agents(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents on a cluster need a hash tag. Others have none here, so that their queues are on different nodes."""
    on_a_cluster = "topology" in request.fixturenames and request.getfixturevalue("topology") == "cluster"
    if on_a_cluster and request.node.get_closest_marker("agents"):
        monkeypatch.setenv("TOCSIN_REDIS__SCHEDULER__KEYS__HASH_TAG", "ps")


# None of these starts a server itself: pytest ends a session's fixture whenever its parameter changes.


@pytest.fixture(scope="session")
def valkey(topology: str, request: pytest.FixtureRequest) -> Server | Cluster:
    found: Server | Cluster = request.getfixturevalue("three_nodes" if topology == "cluster" else "one_server")
    return found


@pytest.fixture(scope="session")
def tocsin_server(topology: str, request: pytest.FixtureRequest) -> EmbeddedServer | Cluster:
    """The plugin's, or a cluster."""
    found: EmbeddedServer | Cluster
    found = request.getfixturevalue("three_nodes" if topology == "cluster" else "tocsin_server")
    return found


@pytest.fixture(scope="session")
def any_server(request: pytest.FixtureRequest) -> Iterator[Server | Cluster]:
    """Each server flavour, in turn."""
    if request.param == "cluster":
        yield request.getfixturevalue("three_nodes")
        return
    with getattr(Server, request.param)() as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def proxy(valkey: Server) -> AsyncIterator[Proxy]:
    async with Proxy(valkey) as running:
        yield running


@pytest.fixture
async def store(any_server: Server, clock: ManualClock) -> AsyncIterator[Store]:
    """A store in a namespace of its own, on each server flavour."""
    opened = Store(any_server.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def queue(request: pytest.FixtureRequest, store: Store) -> OpenQueue:
    """Of order `due`, or as the test is parametrized."""
    return await store.open_queue(Queue("line", getattr(request, "param", "due"), partitions=1))


@pytest.fixture
def jobs(store: Store) -> Jobs:
    return Jobs(store)


@pytest.fixture
def runs(store: Store) -> Runs:
    return Runs(store, "worker-1.1", [handler_digest(HANDLER)])


@pytest.fixture
def other_runs(store: Store) -> Runs:
    """Another worker."""
    return Runs(store, "worker-2.1", [handler_digest(HANDLER)])


PutMaker = Callable[..., PutItem]


@pytest.fixture
def make_put() -> PutMaker:
    """A put of a job of HANDLER: due is a delay in ms unless relative=False."""

    def make(
        member: str,
        due: int = 0,
        *,
        every: float | None = None,
        relative: bool = True,
        mode: int = 0,
        expected: int = 0,
        keep: int = 0,
        timeout: int = 60_000,
        args: tuple[object, ...] = (),
        retry: Retry | None = None,
        handler: str = HANDLER,
    ) -> PutItem:
        about: dict[str, Any] = {"every": every, "keep": keep, "timeout": timeout, "args": args, "retry": retry}
        return PutItem(member, record(handler=handler, **about), due, relative, mode, expected)

    return make
