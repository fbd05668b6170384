"""Everything at random: workers are killed and stopped, scripts forgotten, connections cut, while agents and jobs run.

What can be said of a run that starts twice: the worker of the earlier start was killed, or was stopped for so long
that it was taken for dead. While a worker is stopped it cannot know that, and for a moment after it wakes both may be
running the same run; only the later one, with the greater token, can write what became of it.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.agent_process import CREW, Agents
from tests.support.servers import Server
from tests.support.waiting import eventually
from tests.support.worker_fleet import QUICK, Fleet, Member
from tocsin.inspection.doctor import Doctor
from tocsin.store.transitions.fleet import Fleet as Roll
from tocsin.store.views.audit import AuditReader

WORKERS = 3
TTL_S = QUICK["ttl_s"]
# Until a worker is seen to be dead (a look that comes late starts over), its runs are back in line and are found.
RECOVERY_S = 2 * TTL_S + 2.5
# `TOCSIN_SOAK_S=600 TOCSIN_SOAK_SEED=7 make soak`
SOAK_S = int(os.environ.get("TOCSIN_SOAK_S", "60"))
SEED = int(os.environ.get("TOCSIN_SOAK_SEED", "1"))


class Away(NamedTuple):
    """When a process was dead or stopped."""

    since: float
    until: float


class Trouble:
    """Does one bad thing after the other, each kind in its turn, and remembers what was done to whom."""

    def __init__(self, fleet: Fleet, server: Server, order: dict[str, Any], chance: random.Random) -> None:
        self.away: dict[int, list[Away]] = {}
        self.last = 0.0
        self._fleet = fleet
        self._server = server
        self._order = order
        self._chance = chance
        self._asleep: dict[Member, float] = {}
        self._kinds = self._in_turn([self._kill, self._stop, self._forget_scripts, self._cut_connections])

    def _in_turn(self, kinds: list[Callable[[], None]]) -> Iterator[Callable[[], None]]:
        while True:
            yield from self._chance.sample(kinds, len(kinds))

    @property
    def crew(self) -> list[Member]:
        return [member for member in self._fleet.members if member.alive]

    async def strike(self) -> None:
        """Once, and give it some time to do its harm."""
        next(self._kinds)()
        on = time.monotonic() + self._chance.uniform(0.2, 0.8)
        await eventually(lambda: self._wake() or time.monotonic() > on, "the time for the next", within=30)

    async def end(self) -> None:
        """No more of it, and as many workers as there were."""
        await eventually(lambda: self._wake() or not self._asleep, "all are awake", within=30)
        for member in self.crew:
            await eventually(member.is_ready, "the last of them is ready", within=30)
        self.last = time.monotonic()

    def _awake(self) -> list[Member]:
        return [member for member in self.crew if member not in self._asleep]

    def _kill(self) -> None:
        victim = self._chance.choice(self._awake() or self.crew)
        self._asleep.pop(victim, None)
        self.away.setdefault(victim.pid, []).append(Away(time.monotonic(), float("inf")))
        victim.kill()
        self._fleet.launch(**self._order)

    def _stop(self) -> None:
        """Beyond the time after which the others take it for dead."""
        if not self._awake():
            return
        sleeper = self._chance.choice(self._awake())
        self._asleep[sleeper] = time.monotonic() + TTL_S * self._chance.uniform(1.2, 2)
        self.away.setdefault(sleeper.pid, []).append(Away(time.monotonic(), float("inf")))
        sleeper.send(signal.SIGSTOP)

    def _wake(self) -> None:
        for sleeper, at in list(self._asleep.items()):
            if time.monotonic() > at:
                del self._asleep[sleeper]
                sleeper.send(signal.SIGCONT)
                self.away[sleeper.pid][-1] = self.away[sleeper.pid][-1]._replace(until=time.monotonic())

    def _forget_scripts(self) -> None:
        with self._server.client() as client:
            client.script_flush()

    def _cut_connections(self) -> None:
        with self._server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")


@pytest.mark.parametrize(
    ("seconds", "seed"),
    [(3, 1), pytest.param(SOAK_S, SEED, marks=pytest.mark.soak)],
    ids=["short", "long"],
)
async def test_nothing_is_lost_and_every_cadence_comes_back(tmp_path: Path, seconds: float, seed: int) -> None:
    chance = random.Random(seed)
    # Halves and quarters: whole milliseconds.
    agents: Agents = {f"a{i}": (chance.randrange(2, 9) / 4, "nap", chance.uniform(0, 0.3)) for i in range(60)}
    order = CREW | {"agents": agents, "concurrency": 30, "spread": 0.5}
    with Server.valkey(aof=True) as server:
        async with Fleet(server.url, tmp_path) as fleet:
            await fleet.start(WORKERS, **order)
            await eventually(lambda: agents.keys() <= fleet.diary.started(), "each agent has run", within=30)
            trouble, jobs = Trouble(fleet, server, order, chance), set[str]()
            over = time.monotonic() + seconds
            while time.monotonic() < over:
                more = [f"n{len(jobs) + i}" for i in range(10)]
                await fleet.app.enqueue_many(
                    fleet.does["nap"], [(chance.uniform(0, 0.3),) for _ in more], ids=more, keep=0
                )
                jobs.update(more)
                await trouble.strike()
            await trouble.end()
            await _each_agent_is_back(fleet, agents, trouble.last)
            await fleet.all_done(within=RECOVERY_S)
            await _nothing_was_lost(fleet, jobs)
            await _all_is_in_order(fleet, trouble)
            _keeps_its_cadence(fleet, agents)
            _starts_twice_only_after_a_death(fleet, trouble)
            assert "pass failed" not in fleet.log()


async def _each_agent_is_back(fleet: Fleet, agents: Agents, since: float) -> None:
    """Each within its interval and the time that recovery takes."""
    back: dict[str, float] = {}

    def are_back() -> bool:
        for start in fleet.diary.entries("start"):
            if start.at > since and start.job in agents:
                back.setdefault(start.job, start.at - since)
        return back.keys() == agents.keys()

    await eventually(are_back, "each agent has run again", within=RECOVERY_S + 3)
    assert {name: at for name, at in back.items() if at > agents[name][0] + RECOVERY_S} == {}


async def _nothing_was_lost(fleet: Fleet, jobs: set[str]) -> None:
    """Each is written down as done once, however often it was started."""
    assert {entry.job for entry in fleet.diary.entries("end")} >= jobs
    assert await fleet.count("succeeded") == len(jobs)
    assert await fleet.count("buried") == await fleet.count("failed") == 0


async def _all_is_in_order(fleet: Fleet, trouble: Trouble) -> None:
    store = fleet.app.store
    report = await Doctor(AuditReader(store), Roll(store), patience_s=TTL_S).run()
    assert [finding for finding in report.findings if finding.level != "note"] == []
    pids = sorted(f":{member.pid}:" for member in trouble.crew)
    assert len(report.workers) == len(pids) == WORKERS
    assert all(any(pid in worker for worker in report.workers) for pid in pids)


def _keeps_its_cadence(fleet: Fleet, agents: Agents) -> None:
    """Whatever happened, a round is due a whole number of intervals after the one before."""
    starts = fleet.diary.starts_by_job()
    phases = {name: {start.due % int(every * 1000) for start in starts[name]} for name, (every, *_) in agents.items()}
    assert {name: found for name, found in phases.items() if len(found) > 1} == {}


def _starts_twice_only_after_a_death(fleet: Fleet, trouble: Trouble) -> None:
    for starts in fleet.diary.started_twice().values():
        ordered = sorted(starts, key=lambda start: start.token)
        assert len({start.token for start in ordered}) == len(ordered)
        for earlier, later in itertools.pairwise(ordered):
            # One that was claimed and not yet started when its worker was stopped starts when it wakes.
            away = trouble.away.get(earlier.pid, [])
            assert any(each.since < later.at and earlier.at < each.until + TTL_S for each in away), (earlier, later)
