"""Workers that lack the client of a broker leave its messages to others, and `why` says what to install."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tests.support.broker_rigs import RIGS, KafkaRig, Rig
from tocsin import Message, Stage, Tocsin
from tocsin.targets.messages.broker import PACKAGES
from tocsin.testing import run_until_idle
from tocsin.worker import WorkerSettings


@pytest.mark.parametrize("broker", PACKAGES)
async def test_a_message_waits_parked_for_a_worker_that_has_the_client_of_its_broker(
    tocsin_app: Tocsin, monkeypatch: pytest.MonkeyPatch, broker: str, request: pytest.FixtureRequest
) -> None:
    rig: Rig = RIGS[broker](request.getfixturevalue(f"{broker}_broker"))
    await rig.prepare()
    with monkeypatch.context() as without:
        # As if it were not installed.
        without.setitem(sys.modules, PACKAGES[broker], None)
        await tocsin_app.enqueue(Message(rig.url, b"x"), id="a")
        await run_until_idle(tocsin_app)
        job = await tocsin_app.get("a")
        assert job is not None
        assert job.stage is Stage.PARKED
        worker = await tocsin_app.worker()
        assert f"tocsin.message.{broker}" not in worker.catalog.names()
        assert "tocsin.message.redis" in worker.catalog.names()
        await worker.stop()
    await run_until_idle(tocsin_app)
    assert await tocsin_app.get("a") is None
    assert len(await rig.arrived()) == 1


async def test_why_says_what_to_install(
    tocsin_app: Tocsin, monkeypatch: pytest.MonkeyPatch, kafka_broker: object
) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    await tocsin_app.enqueue(Message(KafkaRig(kafka_broker).url), id="a")
    await run_until_idle(tocsin_app)
    worker = await tocsin_app.worker(settings=WorkerSettings(beat_s=0.01))
    await asyncio.to_thread(worker.heart.beat)
    worker.heart.start()
    try:
        answer = await tocsin_app.why("a")
    finally:
        await worker.stop()
    assert answer.kinds == ["parked", "unknown_handler"]
    assert answer.reasons[1].do[0].startswith("install tocsin[kafka] where the workers run")


def test_no_client_is_imported_before_it_is_needed() -> None:
    imported = "import sys, tocsin.worker, tocsin.targets.messages.target; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True, check=True).stdout.split()
    assert "tocsin.targets.messages.target" in said
    assert not {*PACKAGES.values(), "aiormq"} & set(said)
