"""A rolling deployment: workers are replaced one after the other, and no agent misses a round because of that."""

from __future__ import annotations

import itertools
import signal
import time
from typing import Any

import pytest

from tests.support.agent_process import CREW, Agents
from tests.support.waiting import eventually
from tests.support.worker_fleet import QUICK, Diary, Entry, Fleet, Member

# Rounds of up to half a second, which end within the grace period. A round that ends after the next is due skips it:
# the intervals are that much longer than the rounds for a busy machine to be late and miss none.
BUSY: Agents = {f"a{i}": (1.5 + i % 5 / 4, "nap", 0.1 + i % 5 / 10) for i in range(300)}


@pytest.mark.parametrize("times", [1, pytest.param(8, marks=pytest.mark.soak)], ids=["once", "many times"])
async def test_three_workers_replaced_in_turn_under_load_skip_no_occurrence_and_double_none(
    fleet: Fleet, times: int
) -> None:
    diary, order = fleet.diary, CREW | {"agents": BUSY, "spread": 1.5}
    members = await fleet.start(3, **order)
    await eventually(lambda: len(diary.started()) == len(BUSY), "each agent has run", within=30)
    began = _now_ms()
    for turn in range(3 * times):
        replaced = members.pop(0)
        if turn % 2:
            await _end_in_the_middle_of_it(fleet, replaced)
            members += await fleet.start(1, **order)
        else:
            members += await fleet.start(1, **order)
            await _end_in_the_middle_of_it(fleet, replaced)
    over = _now_ms()
    await eventually(lambda: _due_after(over, diary) == BUSY.keys(), "each agent has run again", within=30)
    starts = diary.starts_by_job()
    assert all(starts[name][0].due <= began for name in BUSY)
    assert {name: dues for name in BUSY if (dues := _uneven(name, starts[name]))} == {}
    assert {(entry.attempt, entry.recoveries) for entry in diary.entries("start")} == {(1, 0)}
    assert not diary.entries("cancelled")
    assert await fleet.count("recovered", "agents") == 0
    assert await fleet.alive() == {member.first_name for member in members}


async def _end_in_the_middle_of_it(fleet: Fleet, member: Member) -> None:
    """What it is running ends, and is the last that it runs."""
    diary, pid = fleet.diary, member.pid
    await eventually(
        lambda: len(diary.entries("start", pid=pid)) > 2 + len(diary.entries("end", pid=pid)), "it is busy", within=30
    )
    told = time.monotonic()
    await member.end()
    starts, ends = diary.entries("start", pid=pid), diary.entries("end", pid=pid)
    assert {entry.token for entry in starts} == {entry.token for entry in ends}
    assert len(starts) == len(ends)
    assert ends[-1].at > told


def _due_after(ms: int, diary: Diary) -> set[str]:
    return {entry.job for entry in diary.entries("start") if entry.due > ms}


def _uneven(name: str, starts: list[Entry]) -> list[int]:
    """The intervals between its due times, if one is not the agent's own: 0 is a double, a multiple is a gap."""
    dues = [entry.due for entry in starts]
    steps = [later - earlier for earlier, later in itertools.pairwise(dues)]
    return steps if set(steps) - {BUSY[name][0] * 1000} else []


def _now_ms() -> int:
    """On the server's clock, which is this machine's."""
    return int(time.time() * 1000)


@pytest.mark.parametrize(("chore", "noted"), [("linger", "cancelled"), ("wait", "told")])
async def test_rounds_that_do_not_end_within_the_grace_are_run_by_another_at_once(
    fleet: Fleet, chore: str, noted: str
) -> None:
    diary, names = fleet.diary, {f"a{i}" for i in range(20)}
    agents: Agents = dict.fromkeys(names, (3600, chore, "a"))
    # Polls so seldom that what it starts soon was not found by polling.
    order: dict[str, Any] = CREW | {"agents": agents, "grace": 0.5, "settings": QUICK | {"poll_s": 600}}
    [first] = await fleet.start(1, **order)
    await eventually(lambda: diary.started(first.pid) == names, "it runs them all", within=30)
    [second] = await fleet.start(1, **order)
    first.send(signal.SIGTERM)
    # Threads are given 2 s more to see that they are cancelled.
    assert await first.ended(within=8) == 0
    left = time.monotonic()
    await eventually(lambda: diary.started(second.pid) == names, "the other runs them all", within=30)
    assert max(entry.at for entry in diary.entries("start", pid=second.pid)) - left < 3
    assert {entry.job for entry in diary.entries(noted, pid=first.pid)} == names
    before, after = ({e.job: e.run for e in diary.entries("start", pid=m.pid)} for m in (first, second))
    assert before == after
    assert {(entry.attempt, entry.recoveries) for entry in diary.entries("start")} == {(1, 0)}
    fleet.open_gate("a")
    await eventually(lambda: len(diary.entries("end", pid=second.pid)) == len(names), "they end there", within=30)
    await second.end()
    for start in diary.entries("start", pid=second.pid):
        agent = await fleet.app.get(start.job, queue="agents")
        assert agent is not None
        assert (agent.due_ms, agent.succeeded, agent.failed) == (start.due + 3_600_000, 1, 0)
