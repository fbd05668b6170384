"""Cancelling a run that a worker in another process executes."""

from __future__ import annotations

import os
import time

import pytest

from tests.support.waiting import eventually
from tests.support.worker_fleet import Fleet


@pytest.mark.parametrize(("chore", "noted"), [("linger", "cancelled"), ("wait", "told")])
async def test_a_cancelled_run_is_told_within_a_second(fleet: Fleet, chore: str, noted: str) -> None:
    """One on the loop is cancelled; one in a thread sees it in its run, and ends when it likes."""
    # No permit is left: it must hear its mail also then.
    await fleet.start(concurrency=1)
    handle = await fleet.app.enqueue(fleet.does[chore], "a", id="n")
    await eventually(lambda: fleet.diary.started() == {"n"}, "it runs", within=30)
    asked = time.monotonic()
    assert await handle.cancel()
    await eventually(lambda: fleet.diary.entries(noted), "it is told", within=5)
    assert fleet.diary.entries(noted)[0].at - asked < 2
    fleet.open_gate("a")
    await fleet.app.enqueue(fleet.does["nap"], 0, id="next", keep=0)
    await eventually(lambda: "next" in fleet.diary.started(), "its worker goes on", within=30)
    await fleet.all_done(within=5)
    if chore == "linger":
        assert await handle.status() == "cancelled"


async def test_a_cancelled_run_in_a_process_is_killed(fleet: Fleet) -> None:
    [member] = await fleet.start()
    handle = await fleet.app.enqueue(fleet.does["toil"], "never", id="n")
    await eventually(lambda: fleet.diary.started() == {"n"}, "it runs", within=30)
    [start] = fleet.diary.starts_of("n")
    assert start.pid != member.pid
    assert await handle.cancel()
    await eventually(lambda: not _is_alive(start.pid), "its process is gone", within=5)

    async def is_over() -> bool:
        return await handle.status() == "cancelled"

    await eventually(is_over, "it is cancelled", within=30)
    assert not fleet.diary.entries("end")
    fleet.open_gate("b")
    again = await fleet.app.enqueue(fleet.does["toil"], "b", id="again")
    await again.result(timeout=30)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
