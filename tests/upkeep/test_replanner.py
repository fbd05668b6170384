"""A new zone database: what waits for a time to come is planned anew, once, and nothing else is touched."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import ClassVar
from zoneinfo import ZoneInfo

import pytest

from tests.support.captured_logs import capture_logs
from tocsin import Cron, Every, Retry, Tocsin
from tocsin.model.zones import find_zone
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.jobs import Jobs
from tocsin.testing import ManualClock, run_until_idle
from tocsin.triggers import wallclock, zone_version
from tocsin.upkeep import replanner as replan
from tocsin.upkeep.replanner import EVERY_S, Replanner

HOUR = 3_600_000
ZONE = "Africa/Casablanca"
MORNING = Cron("0 9 * * *", tz=ZONE)
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


class Land:
    """A country that changes its clocks: in version 2026a of the database it is at UTC+1, in 2026b at UTC, and in 2026c
    it has taken to summer time."""

    offsets: ClassVar = {"2026a": "Etc/GMT-1", "2026b": "Etc/GMT", "2026c": "Europe/Paris"}

    def __init__(self, app: Tocsin, clock: ManualClock, folder: Path) -> None:
        self.leads = True
        self.fleet = Fleet(app.store)
        self.replanner = self.worker(app, clock)
        self._folder = folder
        for version, like in self.offsets.items():
            for zone, bytes_of in ((ZONE, like), ("Etc/UTC", "Etc/UTC")):
                path = folder / version / zone
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes((files("tzdata") / "zoneinfo" / bytes_of).read_bytes())
            (folder / version / "tzdata.zi").write_text(f"# version {version}\n")

    def install(self, version: str) -> None:
        """As a process finds it that starts after an upgrade."""
        zoneinfo.reset_tzpath([self._folder / version])
        forget_zones()

    def worker(self, app: Tocsin, clock: ManualClock) -> Replanner:
        return Replanner(app.store, self.fleet, clock, lambda queue, partition: None, leading=lambda: self.leads)


def forget_zones() -> None:
    ZoneInfo.clear_cache()
    for cached in (find_zone, wallclock._changes, wallclock._stretches, zone_version.version):
        cached.cache_clear()


@pytest.fixture
def land(tocsin_app, tocsin_clock, tmp_path) -> Iterator[Land]:
    tocsin_clock.move_to(NOW)
    land = Land(tocsin_app, tocsin_clock, tmp_path)
    land.install("2026a")
    yield land
    zoneinfo.reset_tzpath()
    forget_zones()


@pytest.fixture
def note(tocsin_app, ran):
    @tocsin_app.job(name="note")
    async def note(what=None, fail=False) -> None:
        ran.append(what)
        if fail:
            raise ValueError("told to")

    return note


@pytest.fixture
def ran() -> list:
    return []


async def due(app: Tocsin, job_id: str) -> int:
    return (await app.get(job_id)).due_ms


async def test_what_waits_is_planned_anew_once_the_version_is_newer(tocsin_app, note, land):
    assert await land.replanner.step() == EVERY_S
    assert await land.fleet.zones() == "2026a"
    rows = [(f"j{n}", MORNING, (n,)) for n in range(50)]
    await tocsin_app.schedule_many(note, rows, jitter="1h")
    await tocsin_app.schedule(note, Every("7h"), id="every")
    before = {name: await due(tocsin_app, name) for name in ("every", *(row[0] for row in rows))}
    land.install("2026b")
    assert await land.replanner.step() == EVERY_S
    assert await land.fleet.zones() == "2026b"
    after = {name: await due(tocsin_app, name) for name in before}
    assert after == {name: at if name == "every" else at + HOUR for name, at in before.items()}
    assert land.replanner.moved == 50
    await land.replanner.step()
    assert land.replanner.moved == 50


async def test_queues_that_the_leader_does_not_serve_are_planned_too(tocsin_app, tocsin_clock, note, land, stranger):
    await land.replanner.step()
    tocsin_app.queue("elsewhere", partitions=3)
    await tocsin_app.schedule(note, MORNING, id="j", queue="elsewhere")
    before = await due(tocsin_app, "j")
    land.install("2026b")
    await land.worker(stranger, tocsin_clock).step()
    assert await due(tocsin_app, "j") == before + HOUR


@pytest.fixture
async def stranger(tocsin_app, tocsin_server, tocsin_clock):
    async with Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix, clock=tocsin_clock) as app:
        yield app


async def test_paused_jobs_are_planned_anew_and_stay_paused(tocsin_app, note, land):
    await land.replanner.step()
    await tocsin_app.schedule(note, MORNING, id="j")
    before = await due(tocsin_app, "j")
    await tocsin_app.pause("j")
    land.install("2026b")
    await land.replanner.step()
    job = await tocsin_app.get("j")
    assert (job.stage, job.due_ms) == ("paused", before + HOUR)


async def test_runs_that_are_due_or_retried_are_left_alone(tocsin_app, tocsin_clock, note, land, ran):
    await land.replanner.step()
    await tocsin_app.schedule(note, MORNING, "due", id="due")
    await tocsin_app.schedule(note, MORNING, "retried", id="retried", fail=True, retry=Retry(3, "6h"))
    tocsin_clock.move_to(datetime.fromtimestamp(await due(tocsin_app, "due") / 1000, UTC))
    await tocsin_app.pause("due")
    await run_until_idle(tocsin_app)
    await tocsin_app.resume("due", replay=True)
    before = [
        (job.due_ms, job.attempt, job.not_before_ms)
        for job in [await tocsin_app.get(name) for name in ("due", "retried")]
    ]
    land.install("2026b")
    await land.replanner.step()
    after = [
        (job.due_ms, job.attempt, job.not_before_ms)
        for job in [await tocsin_app.get(name) for name in ("due", "retried")]
    ]
    assert after == before
    assert [attempt for _, attempt, _ in after] == [1, 2]
    assert land.replanner.moved == 0


async def test_a_job_that_failed_is_planned_anew_unless_it_was_told_to_wait(tocsin_app, tocsin_clock, note, land):
    await land.replanner.step()
    await tocsin_app.schedule(note, MORNING, id="failed", fail=True)
    await tocsin_app.schedule(note, MORNING, id="waits", fail=True)
    await tocsin_app.update("waits", error_interval="5h")
    tocsin_clock.move_to(datetime.fromtimestamp(await due(tocsin_app, "failed") / 1000, UTC))
    await run_until_idle(tocsin_app)
    failed, waits = await due(tocsin_app, "failed"), await due(tocsin_app, "waits")
    land.install("2026b")
    await land.replanner.step()
    # By the new zones nine o'clock comes once more today: an hour after the old one.
    assert (await due(tocsin_app, "failed"), await due(tocsin_app, "waits")) == (failed - 23 * HOUR, waits)


async def test_a_job_whose_trigger_fails_by_the_new_zones_is_left_and_the_others_are_planned(tocsin_app, note, land):
    await land.replanner.step()
    # By the new zones each of its times falls into the hour that is left out.
    await tocsin_app.schedule(note, Cron("30 2 * 3 7L", tz=ZONE, dst="skip"), id="a")
    await tocsin_app.schedule(note, MORNING, id="j")
    before = await due(tocsin_app, "a"), await due(tocsin_app, "j")
    land.install("2026c")
    with capture_logs("tocsin.replan") as logs:
        await land.replanner.step()
    assert (await due(tocsin_app, "a"), await due(tocsin_app, "j")) == (before[0], before[1] - HOUR)
    assert await land.fleet.zones() == "2026c"
    [line] = [line for line in logs if line["log_level"] == "warning"]
    assert (line["job"], "not found in reasonable time" in line["error"]) == ("a", True)


async def test_an_older_database_changes_nothing_and_is_told(tocsin_app, note, land):
    land.install("2026b")
    await land.replanner.step()
    await tocsin_app.schedule(note, MORNING, id="j")
    before = await due(tocsin_app, "j")
    land.install("2026a")
    with capture_logs() as logs:
        await land.replanner.step()
        await land.replanner.step()
    assert [line["event"] for line in logs] == [
        "the zone database here is older than the one by which jobs are planned"
    ]
    assert (await due(tocsin_app, "j"), await land.fleet.zones()) == (before, "2026b")


async def test_only_the_leader_plans_anew_and_what_it_left_its_successor_does(
    tocsin_app, tocsin_clock, note, land, monkeypatch
):
    await land.replanner.step()
    await tocsin_app.schedule_many(note, [(f"j{n}", MORNING, ()) for n in range(20)])
    before = [await due(tocsin_app, f"j{n}") for n in range(20)]
    land.install("2026b")
    land.leads = False
    assert await land.replanner.step() == EVERY_S
    assert [await due(tocsin_app, f"j{n}") for n in range(20)] == before
    land.leads = True
    # A leader whose time is over before it has begun goes on in its next pass.
    monkeypatch.setattr(replan, "BUDGET_S", 0.0)
    assert await land.replanner.step() == 0.0
    assert await land.fleet.zones() == "2026a"
    monkeypatch.undo()
    monkeypatch.setattr(replan, "PAGE", 1)
    successor = land.worker(tocsin_app, tocsin_clock)
    assert await successor.step() == EVERY_S
    assert (await land.fleet.zones(), successor.moved) == ("2026b", 20)
    assert [await due(tocsin_app, f"j{n}") for n in range(20)] == [each + HOUR for each in before]


async def test_an_edit_that_came_between_wins_and_is_planned_by_the_new_zones(tocsin_app, note, land, monkeypatch):
    await land.replanner.step()
    await tocsin_app.schedule(note, MORNING, "old", id="j")
    real, edited = Jobs.put_many, []

    async def put_many(self, queue, puts):
        if not edited:
            edited.append(await tocsin_app.update("j", args=("new",)))
        return await real(self, queue, puts)

    before = await due(tocsin_app, "j")
    land.install("2026b")
    monkeypatch.setattr(Jobs, "put_many", put_many)
    await land.replanner.step()
    job = await tocsin_app.get("j")
    assert (job.args, job.due_ms, land.replanner.moved) == (("new",), before + HOUR, 1)


async def test_a_worker_stamps_the_version_it_reads(tocsin_app, note):
    worker = await tocsin_app.worker()
    await worker.parts.upkeep.elector.step()
    await worker.parts.upkeep.replanner.step()
    assert await Fleet(tocsin_app.store).zones() == zone_version.version()
    await worker.kill()


@pytest.mark.parametrize(
    ("ours", "theirs", "is_newer"),
    [
        ("2026b", "2026a", True),
        ("2026a", "2026b", False),
        ("2026a", "2026a", False),
        ("2027a", "2026z", True),
        ("2026aa", "2026z", True),
        ("files-00000001", "2026a", True),
        ("files-00000001", "files-00000001", False),
    ],
)
def test_versions_are_compared_as_they_follow_each_other(ours, theirs, is_newer):
    assert zone_version.newer(ours, theirs) is is_newer
