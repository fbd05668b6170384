"""Three task schedulers, and one of them in trouble: no occurrence is pushed twice, none is passed over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.task_scheduler_process import CLERK, QUEUE
from tests.support.waiting import eventually
from tests.support.worker_fleet import Fleet
from tocsin.patterns import Schedule, TaskQueue, TaskScheduler

# Many, so that whoever is in trouble has some of them in its hands.
SCHEDULES = 40
SECOND = 1000


@pytest.fixture
async def proxy(valkey: Server) -> AsyncIterator[Proxy]:
    async with Proxy(valkey) as proxy:
        yield proxy


@pytest.fixture
async def planner(fleet: Fleet) -> AsyncIterator[TaskScheduler]:
    """Adds and shows schedules, and never runs."""
    yield await asyncio.to_thread(lambda: TaskScheduler(TaskQueue(fleet.app, QUEUE, print), "planner"))
    fleet.app.sync.close()


def seconds_of(fleet: Fleet) -> dict[str, list[int]]:
    """By schedule: the occurrences whose tasks were handled."""
    found: dict[str, set[int]] = {}
    for entry in fleet.diary.entries("start"):
        schedule, _, due = entry.job.partition("@")
        found.setdefault(schedule, set()).add(int(due))
    return {schedule: sorted(dues) for schedule, dues in found.items()}


def last_second(fleet: Fleet) -> int:
    return max((dues[-1] for dues in seconds_of(fleet).values()), default=0)


async def pass_seconds(fleet: Fleet, more: int) -> None:
    """Until so many more seconds have tasks of all schedules."""
    after = last_second(fleet)

    def done() -> bool:
        return sum(due > after for dues in seconds_of(fleet).values() for due in dues) >= SCHEDULES * more

    await eventually(done, f"{more} more seconds", within=20)


async def in_the_middle(fleet: Fleet) -> None:
    """Until the first tasks of another second are there, and not all."""
    before = last_second(fleet)
    await eventually(lambda: last_second(fleet) > before, "another second begins", within=20)


async def put_to_rest(planner: TaskScheduler) -> dict[str, Schedule]:
    def rest() -> None:
        for schedule in planner.list_schedules():
            planner.update_schedule(schedule.schedule_id, is_active=False)

    def shown() -> list[Schedule]:
        return planner.list_schedules()

    await asyncio.to_thread(rest)

    async def all_rest() -> bool:
        # What somebody held when he was told rests when that has ended.
        return not any(schedule.is_active for schedule in await asyncio.to_thread(shown))

    await eventually(all_rest, "all rest", within=30)
    return {schedule.schedule_id: schedule for schedule in await asyncio.to_thread(shown)}


async def check(fleet: Fleet, planner: TaskScheduler, firsts: dict[str, int]) -> None:
    last = await put_to_rest(planner)
    await fleet.all_done(within=20, queue=QUEUE)
    handled = seconds_of(fleet)
    assert handled.keys() == firsts.keys()
    for schedule, dues in handled.items():
        run = last[schedule].last_run
        assert run is not None
        # Each second, from the first that was due to the last that was pushed.
        assert dues == list(range(firsts[schedule], int(run.timestamp() * SECOND) + 1, SECOND))
    # As many tasks were ever put in line as there were occurrences.
    assert await fleet.count("put", queue=QUEUE) == sum(map(len, handled.values()))
    # What somebody had begun to handle when he was lost, another handled again: the same task, under the same id.
    again = sum(len(starts) - 1 for starts in fleet.diary.started_twice().values())
    assert again <= await fleet.count("recovered", queue=QUEUE)


@pytest.mark.parametrize("trouble", ["killed", "stopped", "cut off"])
async def test_no_occurrence_is_doubled_or_skipped(
    fleet: Fleet, planner: TaskScheduler, proxy: Proxy, trouble: str
) -> None:
    others = [fleet.launch(**CLERK), fleet.launch(**CLERK)]
    victim = fleet.launch(**CLERK | {"url": proxy.url})
    for member in (*others, victim):
        await eventually(member.is_ready, "the scheduler runs", within=30)

    def add() -> dict[str, int]:
        made = [planner.add_schedule("* * * * * *", f"user-{n % 7}") for n in range(SCHEDULES)]
        shown = {schedule.schedule_id: schedule.created_at for schedule in planner.list_schedules()}
        return {name: int(shown[name].timestamp()) * SECOND + SECOND for name in made}  # type: ignore[union-attr]

    firsts = await asyncio.to_thread(add)
    await in_the_middle(fleet)
    if trouble == "killed":
        victim.kill()
    elif trouble == "stopped":
        victim.send(signal.SIGSTOP)
    else:
        proxy.cut_off()
    await pass_seconds(fleet, 3)
    # Back among the others, if it can be.
    if trouble == "stopped":
        victim.send(signal.SIGCONT)
    elif trouble == "cut off":
        proxy.mend()
    await pass_seconds(fleet, 1)
    await check(fleet, planner, firsts)
    for member in others:
        await member.end()
        [how] = fleet.diary.entries("stopped", pid=member.pid)
        assert how.worker == "graceful"
