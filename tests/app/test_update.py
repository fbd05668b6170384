"""`update`: each field of a job that can be changed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.waiting import Gate, eventually
from tocsin import Every, InvalidArgument, InvalidTrigger, Once, Retry
from tocsin.testing import run_until_idle


@pytest.fixture
async def job(tocsin_app, note):
    """A schedule `j`, each minute."""
    await tocsin_app.schedule(note, Every("1m"), "old", id="j", retry=Retry(1, 1), tenant="acme")


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"args": ["new"]}, lambda job: job.args == ("new",)),
        ({"kwargs": {"fail": "x"}}, lambda job: job.kwargs == {"fail": "x"}),
        ({"retry": Retry(7, "7s")}, lambda job: job.retry == Retry(7, 7)),
        ({"retry": None}, lambda job: job.retry is None),
        ({"timeout": "9s"}, lambda job: job.timeout == 9),
        ({"tenant": "other"}, lambda job: job.tenant == "other"),
        ({"tenant": None}, lambda job: job.tenant is None),
        ({"keep": "1h"}, lambda job: job.header.keep == 3600),
        ({"cost": 5}, lambda job: job.header.cost == 5),
        ({"misfire": "all"}, lambda job: job.spec.rules.misfire == "all"),
        ({"grace": "5s"}, lambda job: job.spec.rules.grace == 5),
        ({"catch_up": "1h"}, lambda job: job.spec.rules.catch_up == 3600),
        ({"criticality": 9}, lambda job: job.criticality == 9),
        ({"error_interval": "2m"}, lambda job: job.spec.rules.error_interval == 120),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_a_field_is_changed_and_everything_else_stays(tocsin_app, tocsin_clock, job, change, seen):
    before = await tocsin_app.get("j")
    assert not seen(before)
    tocsin_clock.advance("30s")
    assert await tocsin_app.update("j", **change)
    after = await tocsin_app.get("j")
    assert seen(after)
    assert (after.due, after.stage, after.name) == (before.due, before.stage, before.name)
    [field] = change
    same = [name for name in ("args", "kwargs", "retry", "timeout", "tenant", "criticality") if name != field]
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]


async def test_a_changed_trigger_counts_from_now(tocsin_app, tocsin_clock, job):
    tocsin_clock.advance("10m")
    assert await tocsin_app.update("j", trigger=Every("1h"))
    assert await run_until_idle(tocsin_app) == 0
    assert (await tocsin_app.get("j")).due_ms == tocsin_clock.ms + 3_600_000


async def test_the_same_trigger_again_keeps_the_due_time(tocsin_app, tocsin_clock, job):
    due = (await tocsin_app.get("j")).due
    tocsin_clock.advance("30s")
    assert await tocsin_app.update("j", trigger=Every(60))
    assert (await tocsin_app.get("j")).due == due


async def test_another_start_gives_another_cadence(tocsin_app, tocsin_clock, job):
    starts = tocsin_clock.now + timedelta(hours=5)
    assert await tocsin_app.update("j", starts=starts)
    assert (await tocsin_app.get("j")).due == starts


async def test_an_end_ends_the_schedule(tocsin_app, tocsin_clock, job, ran):
    assert await tocsin_app.update("j", ends=tocsin_clock.now + timedelta(minutes=2))
    for _ in range(5):
        tocsin_clock.advance("1m")
        await run_until_idle(tocsin_app)
    assert len(ran) == 2
    assert await tocsin_app.get("j") is None


async def test_another_end_keeps_the_due_time(tocsin_app, tocsin_clock, job):
    """The trigger is the same: nothing about when it is due has changed."""
    due = (await tocsin_app.get("j")).due
    tocsin_clock.advance("30s")
    assert await tocsin_app.update("j", ends=tocsin_clock.now + timedelta(days=2))
    assert (await tocsin_app.get("j")).due == due


async def test_several_fields_change_together(tocsin_app, job):
    assert await tocsin_app.update("j", args=("new",), timeout="9s", tenant=None)
    job = await tocsin_app.get("j")
    assert (job.args, job.timeout, job.tenant) == (("new",), 9, None)


async def test_a_one_shot_keeps_its_time(tocsin_app, tocsin_clock, note, ran):
    await tocsin_app.enqueue(note, "old", id="o", delay="1m")
    assert await tocsin_app.update("o", args=("new",))
    tocsin_clock.advance("1m")
    assert await run_until_idle(tocsin_app) == 1
    assert ran == ["new"]


@pytest.mark.parametrize("stage", ["paused", "dead"])
async def test_a_change_leaves_a_job_in_its_stage(tocsin_app, tocsin_clock, note, ran, stage):
    await tocsin_app.enqueue(note, "old", id="o", fail="x")
    await (tocsin_app.pause("o") if stage == "paused" else run_until_idle(tocsin_app))
    before = len(ran)
    assert await tocsin_app.update("o", args=("new",))
    job = await tocsin_app.get("o")
    assert (job.stage, job.args) == (stage, ("new",))
    assert await run_until_idle(tocsin_app) == 0
    assert len(ran) == before


async def test_a_job_that_is_changed_while_it_runs_changes_for_its_next_run(tocsin_app, tocsin_clock):
    gate, seen = Gate(), []

    @tocsin_app.job
    async def held(what):
        seen.append(what)
        await gate.enter()

    await tocsin_app.schedule(held, Every("1m"), "old", id="j")
    tocsin_clock.advance("1m")
    working = asyncio.create_task(run_until_idle(tocsin_app))
    await eventually(lambda: gate.inside, "it runs")
    assert await tocsin_app.update("j", args=("new",))
    assert await tocsin_app.update("j", timeout="9s")
    job = await tocsin_app.get("j")
    assert (job.stage, job.args, job.timeout) == ("working", ("new",), 9)
    gate.open()
    assert await working == 1
    job = await tocsin_app.get("j")
    assert (job.due_ms - tocsin_clock.ms, job.succeeded) == (60_000, 1)
    tocsin_clock.advance("1m")
    await run_until_idle(tocsin_app)
    assert seen == ["old", "new"]


async def test_concurrent_updates_of_different_fields_both_hold(tocsin_app, job):
    changes = [{"tenant": "t"}, {"timeout": "9s"}, {"criticality": 3}, {"args": ("new",)}, {"grace": "1s"}]
    assert all(await asyncio.gather(*(tocsin_app.update("j", **change) for change in changes)))
    job = await tocsin_app.get("j")
    assert (job.tenant, job.timeout, job.criticality, job.args, job.spec.rules.grace) == ("t", 9, 3, ("new",), 1)


class Unstorable:
    def __repr__(self) -> str:
        return "something"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"timout": 1}, "did you mean 'timeout'"),
        ({"tenent": "x"}, "did you mean 'tenant'"),
        ({"xyzzy": 1}, "there are: args, catch_up"),
        ({"timeout": 0}, "timeout must be"),
        ({"retry": 3}, "must be a Retry"),
        ({"tenant": ""}, "tenant is text"),
        ({"cost": 0}, "cost must be"),
        ({"keep": -1}, "keep must be"),
        ({"criticality": "high"}, "criticality must be"),
        ({"misfire": "al"}, "did you mean 'all'"),
        ({"args": ("a", "b", "c")}, "cannot be called"),
        ({"kwargs": {"nope": 1}}, "nope"),
        ({"args": (Unstorable(),)}, "cannot be stored"),
    ],
    ids=str,
)
async def test_a_change_that_cannot_be_is_refused_and_changes_nothing(tocsin_app, job, change, why):
    before = await tocsin_app.get("j")
    with pytest.raises(InvalidArgument, match=why):
        await tocsin_app.update("j", **change)
    assert await tocsin_app.get("j") == before


async def test_a_trigger_is_changed_to_one_of_its_kind(tocsin_app, tocsin_clock, note, job):
    with pytest.raises(InvalidTrigger):
        await tocsin_app.update("j", trigger="1m")
    with pytest.raises(InvalidTrigger, match="is recurring"):
        await tocsin_app.update("j", trigger=Once(tocsin_clock.now))
    await tocsin_app.enqueue(note, id="o", delay="1h")
    with pytest.raises(InvalidArgument, match="one-shot"):
        await tocsin_app.update("o", trigger=Every("1m"))
