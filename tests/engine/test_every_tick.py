"""Whatever happens to a schedule, each of its ticks ends in exactly one decision."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.schedule_bench import JOB, QUEUE, ScheduleBench
from tests.support.servers import Server
from tocsin import Every, Retry, Tocsin
from tocsin.model.job import MISFIRES, OVERLAPS, Stage
from tocsin.testing import ManualClock

spans = st.integers(2, 40)
rules = st.fixed_dictionaries(
    {"misfire": st.sampled_from(MISFIRES)},
    optional={
        "grace": st.integers(0, 30),
        "catch_up": st.integers(0, 60),
        "retry": st.just(Retry(1, "7s")),
        "jitter": st.just("30s"),
    },
)
# What happens, and how long it takes before it does.
events = st.lists(
    st.tuples(
        st.sampled_from(
            ["work"] * 6 + ["end"] * 5 + ["fail"] * 2
            + ["pause", "resume", "replay", "edit", "touch", "cancel", "lose", "idle"]
        ),
        st.sampled_from([0, 0, 1, 5, 10, 10, 23, 37]),
        spans,
    ),
    max_size=25,
)  # fmt: skip


class Story:
    """What was planned: a cadence from its first tick until it was replaced."""

    def __init__(self, ticking: ScheduleBench) -> None:
        self.ticking = ticking
        self.cadences: list[tuple[int, int, int | None]] = []

    async def begin(self, seconds: int, **rules: Any) -> None:
        await self.ticking.schedule(seconds, **rules)
        job = await self.ticking.app.get(JOB)
        self.cadences.append((job.due_ms, seconds * 1000, None))

    async def edit(self, seconds: int) -> None:
        job = await self.ticking.app.get(JOB)
        if job.trigger == Every(seconds):
            return
        assert await self.ticking.app.update(JOB, trigger=Every(seconds))
        first, step, _ = self.cadences.pop()
        now = self.ticking.clock.ms
        self.cadences.append((first, step, now))
        shift = self.cadences[0][0] - self.cadences[0][1] - self.ticking.begun
        self.cadences.append((now + seconds * 1000 + shift, seconds * 1000, None))

    def ticks(self, last: int) -> list[int]:
        """All that were planned before `last`, the one that the job waits for now."""
        return [
            tick
            for first, step, edited in self.cadences
            for tick in range(first, last if edited is None else edited + 1, step)
        ]

    async def happen(self, what: str, span: int) -> None:
        ticking = self.ticking
        job = await ticking.app.get(JOB)
        assert job is not None
        if what == "work":
            await ticking.work()
        elif what == "end" and ticking.running:
            await ticking.end()
        elif what == "fail" and ticking.running:
            await ticking.end(how="fail")
        elif what == "pause":
            await ticking.app.pause(JOB)
        elif what in ("resume", "replay"):
            await ticking.app.resume(JOB, replay=what == "replay")
        elif what == "edit":
            await self.edit(span)
        elif what == "touch":
            await ticking.app.update(JOB, args=(span,))
        elif what == "cancel" and ticking.running:
            await ticking.app.cancel(next(iter(ticking.running))[0])
        elif what == "lose":
            await ticking.lose_worker()

    async def finish(self) -> int:
        """Until nothing runs and nothing is owed. When the job is due next."""
        ticking = self.ticking
        await ticking.app.resume(JOB)
        for _ in range(2000):
            await ticking.work()
            if ticking.running:
                await ticking.end()
                continue
            job = await ticking.app.get(JOB)
            others = [each async for each in ticking.app.jobs(queue=QUEUE) if each.stage is not Stage.DEAD]
            at_rest = job.stage is Stage.WAITING and job.attempt == 1 and job.not_before_ms > ticking.clock.ms
            if at_rest and len(others) == 1:
                return job.due_ms
            # A retry waits for its backoff.
            ticking.clock.advance("1s")
        raise AssertionError("it never came to rest")


async def tell(server: Server, overlap: str, seconds: int, given: dict[str, Any], events: list[Any]) -> None:
    clock = ManualClock()
    async with Tocsin(server.url, prefix=f"e{secrets.token_hex(4)}:", clock=clock) as app:
        ticking = ScheduleBench(app, clock)
        ticking.worker = await app.worker(queues=[QUEUE])
        try:
            story = Story(ticking)
            await story.begin(seconds, overlap=overlap, **given)
            for what, after, span in events:
                clock.advance(after)
                await story.happen(what, span)
            last = await story.finish()
            await check(ticking, story.ticks(last), overlap)
        finally:
            await ticking.close()


async def check(ticking: ScheduleBench, ticks: list[int], overlap: str) -> None:
    told = await ticking.decisions()
    for tick in ticks:
        found = [decision for decision in told if decision.first_ms <= tick < decision.until_ms]
        assert len(found) == 1, f"{ticking.at(tick)} s: {found}"
    ran = [decision.first_ms for decision in told if decision.what == "ran"]
    assert set(ran) <= set(ticks)
    assert all(decision.first_ms in ticks for decision in told if decision.what == "coalesced")


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_each_tick_ends_in_exactly_one_decision(valkey: Server, overlap: str):
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(spans, rules, events)
    def run(seconds: int, given: dict[str, Any], events: list[Any]) -> None:
        asyncio.run(tell(valkey, overlap, seconds, given, events))

    run()
