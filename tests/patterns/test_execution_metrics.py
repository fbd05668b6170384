"""The execution queue's metrics, of an ExecutionQueue, at the /metrics of the process that calls it."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.python_path import PYTHON_PATH
from tests.support.servers import free_port


@pytest.fixture
def values(tocsin_server, tocsin_app) -> Iterator[dict[str, float]]:
    """As they are after one execution of three was released, one is active, and one waits."""
    port = free_port()
    order = [tocsin_server.url, tocsin_app.store.keys.prefix, str(port)]
    env = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.support.execution_metrics_process", *order], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip

    def shown() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("queue_")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    try:
        assert running.stdout.readline() == "ready\n"
        # Numbers are read while somebody asks for them, with the next call.
        shown()
        running.stdin.write("\n")
        running.stdin.flush()
        assert running.stdout.readline() == "ready\n"
        yield shown()
    finally:
        running.kill()
        running.communicate()


def test_each_metric_of_the_seed_is_that_of_the_execution_queue(values):
    queue = '{queue="exec_queue"}'
    assert {name: values[f"{name}{queue}"] for name in ("queue_depth", "queue_active")} == {
        "queue_depth": 1,
        "queue_active": 1,
    }
    assert (values[f"queue_enqueue_total{queue}"], values[f"queue_schedule_total{queue}"]) == (3, 2)
    for priority in ("critical", "low"):
        labels = f'priority="{priority}",queue="exec_queue"'
        assert values[f"queue_wait_time_count{{{labels}}}"] == 1
        assert values[f"queue_wait_time_sum{{{labels}}}"] == 2.0
        assert values[f'queue_wait_time_bucket{{le="1.0",{labels}}}'] == 0
        assert values[f'queue_wait_time_bucket{{le="2.5",{labels}}}'] == 1
