"""The worst case of a retry policy is compared with the recurrence, for whatever a job does."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.support.captured_logs import capture_logs
from tocsin import Cron, Every, Http, InvalidTrigger, Message, Retry, Subprocess, Tocsin
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.testing import ManualClock

TRIES = Retry(3, "200ms", "500ms")
# Their own time does not count: it is what they may take, not what they wait.
TARGETS = [
    Http.get("https://example.org/", timeout="30s"),
    Subprocess(["true"], timeout="30s"),
    Message("redis:///stream", value={}),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
@pytest.mark.parametrize(("interval", "told"), [("2899ms", 1), ("2900ms", 0)])
async def test_retries_of_a_target_that_may_outlast_the_interval_are_told(
    tocsin_app: Tocsin, target: Any, interval: str, told: int
) -> None:
    with capture_logs() as logs:
        await tocsin_app.schedule(target, Every(interval), id="j", retry=TRIES)
        rows = [(f"k{n}", Every(interval), target) for n in range(9)]
        await tocsin_app.schedule_many(type(target), rows, retry=TRIES)
        await tocsin_app.schedule(target, Every("1h"), id="l", retry=TRIES)
        await tocsin_app.update("l", trigger=Every(interval))
    assert [(line["retries_ms"], line["apart_ms"]) for line in logs] == [(2900, 2899)] * 3 * told


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
async def test_they_are_refused_where_the_configuration_says_so(
    tocsin_server: EmbeddedServer, tocsin_clock: ManualClock, tmp_path: Path, target: Any
) -> None:
    path = tmp_path / "tocsin.yaml"
    path.write_text("schedules:\n  retry-exceeds-interval: error\n")
    prefix = f"strict-{secrets.token_hex(4)}:"
    often = Cron("* * * * * *")
    async with Tocsin(tocsin_server.url, prefix=prefix, clock=tocsin_clock, config=str(path)) as app:
        for wrong in (
            lambda: app.schedule(target, often, id="j", retry=TRIES),
            lambda: app.schedule_many(type(target), [("j", often, target)], retry=TRIES),
        ):
            with pytest.raises(InvalidTrigger, match="take up to 2900 ms, and its runs can be 1000 ms apart"):
                await wrong()
        assert await app.get("j") is None
        await app.schedule(target, often, id="j")
        with pytest.raises(InvalidTrigger, match="2900 ms"):
            await app.update("j", retry=TRIES)
        job = await app.get("j")
        assert job is not None
        assert job.retry is None
