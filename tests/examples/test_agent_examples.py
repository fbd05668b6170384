"""The examples of the guide to agents: what the page shows is what runs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.servers import Server, launch
from tests.support.waiting import until
from tocsin import Tocsin

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GUIDE = ROOT / "docs" / "guide" / "agents.md"


def test_the_page_shows_the_examples_as_they_are():
    shown = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
    files = [(EXAMPLES / name).read_text() for name in ("first_agent.py", "caching_agents.py")]
    # A file begins with a line about itself.
    assert shown[:2] == [text.partition("\n\n")[2] for text in files]


@pytest.mark.parametrize(
    ("target", "agents"),
    [
        ("first_agent:app", ["first_agent.refresh_inventory"]),
        (
            "caching_agents:scheduler",
            [f"{account}/{region}/ImageCachingAgent" for account in ("prod", "test")
             for region in ("us-east-1", "eu-west-1")],
        ),
    ],
    ids=["first_agent", "caching_agents"],
)  # fmt: skip
def test_a_worker_of_it_runs_its_agents(tmp_path: Path, target: str, agents: list[str]):
    with Server.valkey() as server:
        env = os.environ | {"TOCSIN_URL": server.url, "PYTHONPATH": f"{ROOT / 'src'}:{EXAMPLES}"}
        log = tmp_path / "log"
        worker = launch([sys.executable, "-m", "tocsin.cli", "worker", target], log, env)
        app = Tocsin(server.url).sync

        def ran() -> bool:
            jobs = [app.get(name, queue="agents") for name in agents]
            return all(job is not None and job.succeeded == 1 for job in jobs)

        try:
            until(ran, "each agent has run", within=30)
        finally:
            app.close()
            worker.terminate()
            assert worker.wait(30) == 0
        assert "Traceback" not in log.read_text()
