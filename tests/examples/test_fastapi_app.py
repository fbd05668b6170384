"""The example for FastAPI under load: a server, a worker beside it, and more clients than there are connections."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.servers import Server, free_port, launch
from tocsin import Tocsin
from tocsin.bench.measure import percentile
from tocsin.store.transitions.jobs import Jobs

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the example answers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A socket for each client, here and in the server.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    with Server.valkey() as server:
        port, log = free_port(), tmp_path / "log"
        monkeypatch.setenv("TOCSIN_URL", server.url)
        env = os.environ | {"PYTHONPATH": str(EXAMPLES)}
        serve = [sys.executable, "-m", "uvicorn", "fastapi_app:web", "--port", str(port), "--log-level", "warning"]
        work = [str(Path(sys.executable).parent / "tocsin"), "worker", "fastapi_app:jobs"]
        both = [launch(command, log, env) for command in (serve, work)]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            for process in both:
                _end(process)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        said = [line for line in log.read_text().splitlines() if "Traceback" in line or "ERROR" in line]
        assert said == []


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def _answers(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                async with session.post(f"{url}/users/first") as answer:
                    return answer.raise_for_status()
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("clients", "each"),
    [(20, 5), pytest.param(200, 50, marks=pytest.mark.soak), pytest.param(1000, 10, marks=pytest.mark.soak)],
)
async def test_each_request_of_many_clients_is_answered_and_its_job_run(
    url: str, session: aiohttp.ClientSession, clients: int, each: int
) -> None:
    await _answers(session, url)
    numbers, statuses, waits = itertools.count(), Counter[int](), list[float]()

    async def client() -> None:
        for _ in range(each):
            began = time.perf_counter()
            async with session.post(f"{url}/users/{next(numbers)}") as answer:
                statuses[answer.status] += 1
                assert (await answer.json())["new"]
            waits.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(client() for _ in range(clients)))
    assert statuses == {202: clients * each}
    # Shown with `pytest -s`.
    print(f"{clients} clients: p50 {percentile(waits, 50):.0f} ms, p99 {percentile(waits, 99):.0f} ms")  # noqa: T201
    async with Tocsin() as app:
        queue = await app.store.find_queue("default")
        jobs = Jobs(app.store)

        async def result(number: int) -> object:
            while (outcome := await jobs.outcome(queue, f"welcome-{number}")) is None:
                await asyncio.sleep(0.05)
            return outcome.result

        results = await asyncio.gather(*(result(number) for number in range(clients * each)))
    assert results == [f"Dear {number}" for number in range(clients * each)]
