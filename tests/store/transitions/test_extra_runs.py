"""Runs that a job is given beside its own: they are added once, end once and count for the job."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tocsin.model.outcome import FAILED, SUCCEEDED
from tocsin.store.transitions.settle import finish_item


class TestExtraRuns:
    async def test_firing_adds_a_run_and_leaves_the_cadence_alone(self, line: Line):
        await line.put("a", 5000, every=5, keep=60)
        assert await line.fire("a") == [line.now]
        assert await line.not_before("a") == line.now + 5000
        [extra] = await line.claim()
        assert (extra.job_id, extra.run_id, extra.member) == ("a", f"a@{line.now}", f"a\x1f{line.now}")
        job = await line.job(extra.member)
        assert (job.recurring, job.header.keep, job.attempts) == (False, 0, 0)

    async def test_two_fires_in_one_millisecond_are_two_runs(self, line: Line):
        await line.put("a", 5000, every=5)
        assert await line.fire("a") + await line.fire("a") == [line.now, line.now + 1]
        assert await line.fire("a", 0, 0) == [line.now + 2, line.now + 3]
        assert (await line.jobs.count(line.queue))["waiting"] == 5

    async def test_the_same_occurrence_is_added_once(self, line: Line):
        await line.put("a", 5000, every=5)
        past = [line.now - 10_000, line.now - 5000]
        assert await line.fire("a", *past) == past
        assert await line.fire("a", *past, line.now - 15_000, line.now - 15_000) == [line.now - 15_000]
        assert (await line.meta())["put"] == 4

    async def test_the_run_that_the_job_is_about_to_have_or_has_is_not_added(self, line: Line):
        await line.put("a", every=5)
        assert await line.fire("a", line.now, line.now - 5000) == [line.now - 5000]
        assert await line.fire("a") == [line.now + 1]
        await line.take("a")
        assert await line.fire("a", line.now, line.now - 10_000) == [line.now - 10_000]

    async def test_the_run_that_a_paused_job_would_have_had_can_be_added(self, line: Line):
        await line.put("a", every=5)
        await line.pause("a")
        assert await line.fire("a", line.now) == [line.now]

    async def test_its_end_counts_for_the_job(self, line: Line):
        await line.put("a", 5000, every=5)
        await line.fire("a", line.now, line.now - 1, line.now - 2)
        outcomes = [finish_item(claim, 0, n) for n, claim in enumerate(await line.claim())]
        await line.settle("finish", *outcomes)
        job = await line.job("a")
        assert (job.succeeded, job.failed, job.attempts) == (1, 1, 2)
        assert (job.due_ms, job.version) == (line.now + 5000, 1)

    async def test_it_and_the_job_may_end_in_one_batch(self, line: Line):
        await line.put("a", every=5)
        await line.fire("a", line.now - 1)
        extra, job = await line.claim()
        await line.settle("finish", finish_item(extra, 0, SUCCEEDED), finish_item(job, job.due + 5000, FAILED))
        counted = await line.job("a")
        assert (counted.succeeded, counted.failed, counted.attempts) == (1, 1, 2)

    @pytest.mark.parametrize("first", ["job", "extra"])
    async def test_a_one_shot_that_ends_with_its_extra_run_leaves_nothing(self, line: Line, first: str):
        await line.put("a")
        await line.fire("a", line.now - 1)
        items = [finish_item(claim, 0, SUCCEEDED) for claim in await line.claim()]
        await line.settle("finish", *(items if first == "extra" else items[::-1]))
        assert await line.stage("a") is None
        assert await line.put("a") == 1

    async def test_it_runs_also_if_the_job_has_been_removed(self, line: Line):
        await line.put("a", 5000, every=5)
        await line.fire("a")
        await line.delete("a")
        [extra] = await line.claim()
        assert await line.finish(extra) == []
        assert await line.stage("a") is None

    async def test_a_job_that_has_become_garbage_does_not_stop_its_extra_runs(self, line: Line):
        await line.put("a", 5000, every=5)
        await line.put("b")
        await line.fire("a")
        claims = await line.claim()
        await line.spoil("a", b"junk")
        assert await line.settle("finish", *(finish_item(claim, 0, SUCCEEDED) for claim in claims)) == []
        assert await line.store.client.hget(line.keys["jobs"], "a") == b"junk"

    async def test_no_job_no_extra_run(self, line: Line):
        assert (await line.raw("job_fire", ["a", b"\x91\x00"])) == [1, 0, [], -1]
