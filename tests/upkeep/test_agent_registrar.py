"""Registration and reconciliation: what is missing is added, what is there keeps its time, what is not ours stays."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from tests.support.servers import Server
from tests.support.stepping_clock import SteppingClock
from tests.support.waiting import run_dry
from tocsin import Every, StoreUnavailable, Tocsin
from tocsin.testing import run_until_idle
from tocsin.upkeep.agent_registrar import PAGE, AgentRegistrar, RegistrationRules

pytestmark = pytest.mark.agents

AGENTS = "agents"


def declare(app: Tocsin, *names: str, every: str = "30s", **options: object) -> None:
    for name in names:

        @app.agent(every=every, name=name, **options)
        async def agent() -> None:
            pass


class Owner:
    """A program's own sharding, which changes while it runs."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def __call__(self, name: str) -> bool:
        if name == "broken":
            raise RuntimeError("no such shard")
        return name in self.names


@pytest.fixture
async def make(tocsin_app):
    """A reconciler of the app's agents, and what it says is ours."""
    where = await tocsin_app.store.open_queue(tocsin_app.declarations.queues[AGENTS])

    def build(owns=lambda _: True, rules: RegistrationRules | None = None, clock=None) -> AgentRegistrar:
        owned: set[str] = set()

        def own(gained, lost) -> None:
            assert not owned & {*gained}
            assert owned >= {*lost}
            owned.update(gained)
            owned.difference_update(lost)

        made = AgentRegistrar(
            store=tocsin_app.store, queue=where, declared=tocsin_app._parts.agents.puts, owns=owns, on_owned=own,
            on_waiting=lambda waiting: None, clock=clock or tocsin_app.store.clock, ring=lambda *_: None,
            rules=rules or RegistrationRules(),
        )  # fmt: skip
        made.owned = owned
        return made

    return build


async def due(app: Tocsin, name: str) -> int | None:
    job = await app.get(name, queue=AGENTS)
    return None if job is None else job.due_ms


async def script_calls(app: Tocsin) -> int:
    return (await app.store.client.info("commandstats"))["cmdstat_evalsha"]["calls"]


async def test_what_is_missing_is_registered_for_now(tocsin_app, tocsin_clock, make):
    declare(tocsin_app, "a", "b")
    reconciler = make()
    assert await reconciler.step() == pytest.approx(RegistrationRules().every_s)
    assert [await due(tocsin_app, name) for name in "ab"] == [tocsin_clock.ms] * 2
    assert (reconciler.registered, reconciler.added) == (2, 2)


async def test_new_agents_are_spread_over_the_jitter(tocsin_app, tocsin_clock, make):
    declare(tocsin_app, *[f"a{n}" for n in range(200)])
    await make(rules=RegistrationRules(jitter_s=60)).step()
    dues = [await due(tocsin_app, f"a{n}") - tocsin_clock.ms for n in range(200)]
    assert min(dues) >= 0
    assert max(dues) <= 60_000
    assert len({at // 10_000 for at in dues}) >= 5


async def test_what_is_there_keeps_its_time_and_is_not_even_written(tocsin_app, tocsin_clock, make):
    declare(tocsin_app, "a")
    reconciler = make()
    await reconciler.step()
    first = await due(tocsin_app, "a")
    version = (await tocsin_app.get("a")).version
    tocsin_clock.advance("1h")
    before = await script_calls(tocsin_app)
    for _ in range(3):
        await reconciler.step()
    assert await script_calls(tocsin_app) == before
    await make().step()
    assert (await due(tocsin_app, "a"), (await tocsin_app.get("a")).version) == (first, version)


async def test_one_that_was_removed_comes_back_and_one_that_is_paused_stays_paused(tocsin_app, make):
    declare(tocsin_app, "a", "b")
    reconciler = make()
    await reconciler.step()
    await tocsin_app.remove("a")
    await tocsin_app.pause("b")
    await reconciler.step()
    assert (await tocsin_app.get("a")).stage == "waiting"
    assert (await tocsin_app.get("b")).stage == "paused"
    assert reconciler.added == 3


async def test_another_definition_is_taken_over_once(tocsin_app, tocsin_clock, other_app, make):
    declare(tocsin_app, "a", "b")
    await make().step()
    first = await due(tocsin_app, "a")
    tocsin_clock.advance("10s")
    declare(other_app, "a", error_interval="5m")
    declare(other_app, "b", every="1m")
    await other_app.worker()
    assert await due(tocsin_app, "a") == first
    job = await tocsin_app.get("b")
    assert (job.trigger, job.due_ms) == (Every("1m"), tocsin_clock.ms + 60_000)


async def test_what_is_no_longer_ours_is_given_up_here_and_stays_in_redis(tocsin_app, make):
    declare(tocsin_app, "a", "b", "c")
    owner = Owner("a", "b")
    reconciler = make(owner)
    await reconciler.step()
    assert await due(tocsin_app, "c") is None
    assert reconciler.owned == {"a", "b"}
    owner.names = {"b", "c"}
    await reconciler.step()
    assert reconciler.owned == {"b", "c"}
    assert None not in [await due(tocsin_app, name) for name in "abc"]


async def test_one_on_which_the_sharding_fails_does_not_stop_the_others(tocsin_app, make):
    declare(tocsin_app, "a", "broken", "c")
    reconciler = make(Owner("a", "c"))
    await reconciler.step()
    assert reconciler.owned == {"a", "c"}


async def test_a_round_that_is_longer_than_its_budget_goes_on_in_the_next_pass(tocsin_app, make):
    names = [f"a{n:04d}" for n in range(2 * PAGE + 10)]
    declare(tocsin_app, *names)
    reconciler = make(rules=RegistrationRules(budget_s=1.0), clock=SteppingClock())
    rests = [await reconciler.step() for _ in range(3)]
    assert rests[:2] == [0.0, 0.0]
    assert 0 < rests[2] <= RegistrationRules().every_s
    assert (reconciler.registered, reconciler.added) == (len(names), len(names))


class Busy:
    """The longest that the loop's thread computed without a turn for other tasks, in seconds of its own CPU time: what
    else the machine has to do does not count."""

    longest = 0.0

    async def __aenter__(self) -> Busy:
        # It looks at all objects of the process at once, whoever made them.
        gc.disable()
        self._looking = asyncio.create_task(self._look())
        await asyncio.sleep(0)
        return self

    async def _look(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - before)

    async def __aexit__(self, *_: object) -> None:
        gc.enable()
        self._looking.cancel()


async def test_a_round_over_twenty_thousand_agents_gives_way_every_few_milliseconds(tocsin_app, make):
    async def agent() -> None:
        pass

    for n in range(20_000):
        tocsin_app.agent(every="30s", name=f"agent-{n}")(agent)
    reconciler = make()
    async with Busy() as first:
        await reconciler.step()
    async with Busy() as next_one:
        await reconciler.step()
    assert (reconciler.registered, reconciler.added) == (20_000, 20_000)
    assert first.longest < 0.02
    assert next_one.longest < 0.02


async def test_a_sharding_function_that_takes_its_time_gives_way_too(tocsin_app, make):
    declare(tocsin_app, *[f"a{n}" for n in range(PAGE)])

    def ours(name: str) -> bool:
        until = time.thread_time() + 0.0001
        while time.thread_time() < until:
            pass
        return True

    async with Busy() as busy:
        await make(ours).step()
    assert busy.longest < 0.02


async def test_the_average_interval_is_that_of_the_agents_that_are_ours_now(tocsin_app, make):
    async def agent() -> None:
        pass

    for name, every in (("a", "10s"), ("b", "20s"), ("c", "60s")):
        tocsin_app.agent(every=every, name=name)(agent)
    owner = Owner("a", "b", "c")
    reconciler = make(owner)
    await reconciler.step()
    assert reconciler.interval_s == 30
    owner.names = {"a", "b"}
    await reconciler.step()
    assert reconciler.interval_s == 15
    tocsin_app.agent(every="30s", name="a")(agent)
    await reconciler.step()
    assert reconciler.interval_s == 25
    owner.names = set()
    await reconciler.step()
    assert (reconciler.interval_s, reconciler.registered) == (0, 0)


async def test_an_agent_that_is_declared_anew_is_put_anew(tocsin_app, make):
    async def agent() -> None:
        pass

    reconciler = make()
    for every in ("30s", "1m"):
        tocsin_app.agent(every=every, name="a")(agent)
        await reconciler.step()
        assert (await tocsin_app.get("a")).trigger == Every(every)


async def test_a_changed_agent_is_looked_at_without_a_round_over_the_others(tocsin_app, tocsin_clock, make):
    declare(tocsin_app, "a", "b", "c")
    owner = Owner("a", "b")
    reconciler = make(owner)
    await reconciler.step()
    await tocsin_app.remove("a")
    owner.names = {"a", "c"}
    tocsin_clock.advance("10s")
    reconciler.reconsider("c")
    assert await reconciler.step() == pytest.approx(20)
    assert reconciler.owned == {"a", "b", "c"}
    assert [await due(tocsin_app, name) for name in "ac"] == [None, tocsin_clock.ms]
    # When the round is due as well, both are done.
    tocsin_clock.advance("20s")
    reconciler.reconsider("c")
    assert await reconciler.step() == pytest.approx(30)
    assert reconciler.owned == {"a", "c"}
    assert await due(tocsin_app, "a") == tocsin_clock.ms


async def test_an_outage_in_the_middle_of_a_round_leaves_nobody_out(monkeypatch):
    monkeypatch.setattr("tocsin.store.calls.PATIENCE_S", 0.0)
    names = [f"a{n:04d}" for n in range(2 * PAGE + 10)]
    with Server.valkey(aof=True) as server:
        async with Tocsin(server.url) as app:
            declare(app, *names)
            where = await app.store.open_queue(app.declarations.queues[AGENTS])
            seen: list[str] = []

            def owns(name: str) -> bool:
                seen.append(name)
                if len(seen) == PAGE + 1:
                    server.kill()
                return True

            reconciler = AgentRegistrar(
                store=app.store, queue=where, declared=app._parts.agents.puts, owns=owns, on_owned=lambda *_: None,
                on_waiting=lambda _: None, clock=app.store.clock, ring=lambda *_: None, rules=RegistrationRules(),
            )  # fmt: skip
            with pytest.raises(StoreUnavailable):
                await reconciler.step()
            server.start()
            await reconciler.step()
            assert reconciler.added == len(names)
            assert seen == [*names[: 2 * PAGE], *names[PAGE:]]


async def test_a_thousand_agents_take_a_few_calls(tocsin_app, make):
    declare(tocsin_app, *[f"a{n}" for n in range(1000)])
    before = await script_calls(tocsin_app)
    reconciler = make()
    await reconciler.step()
    assert await script_calls(tocsin_app) - before <= 4
    assert reconciler.added == 1000


async def test_after_the_server_was_emptied_all_are_registered_again(tocsin_app, make):
    declare(tocsin_app, "a", "b")
    reconciler = make()
    await reconciler.step()
    client = tocsin_app.store.client
    async for key in client.scan_iter(f"{tocsin_app.store.keys.prefix}*"):
        await client.delete(key)
    await reconciler.step()
    await reconciler.step()
    assert None not in [await due(tocsin_app, name) for name in "ab"]


async def test_the_head_of_the_line_may_be_full_of_what_a_worker_may_not_run(tocsin_app, tocsin_clock, make_worker):
    ran: list[str] = []
    for n in range(120):

        @tocsin_app.agent(every="30s", name=f"agent-{n:03d}")
        async def agent(run):
            ran.append(run.job_id)

    await tocsin_app.register_agents()
    tocsin_clock.advance("1s")
    mine = {f"agent-{n:03d}" for n in range(110, 120)}
    worker = await make_worker(owns=mine.__contains__, concurrency=3)
    await run_dry(worker)
    assert sorted(ran) == sorted(mine)


async def test_two_shards_run_every_agent_once_and_a_change_of_shards_takes_effect_without_a_restart(
    tocsin_app, tocsin_clock, make_worker
):
    ran: list[str] = []
    names = [f"agent-{n}" for n in range(20)]
    for name in names:

        @tocsin_app.agent(every="30s", name=name)
        async def agent(run):
            ran.append(run.job_id)

    one, two = Owner(*names[:10]), Owner(*names[10:])
    workers = [await make_worker(owns=owner) for owner in (one, two)]
    for worker in workers:
        await run_dry(worker)
    assert sorted(ran) == sorted(names)
    one.names, two.names = set(names[:5]), set(names[5:])
    ran.clear()
    tocsin_clock.advance("30s")
    for worker in workers:
        await worker.reconciler.step()
    await run_dry(workers[0])
    assert sorted(ran) == sorted(names[:5])
    await run_dry(workers[1])
    assert sorted(ran) == sorted(names)


async def test_an_extra_run_of_an_agent_reaches_the_worker_that_owns_it(tocsin_app, tocsin_clock, make_worker):
    ran: list[str] = []

    @tocsin_app.agent(every="1h", name="mine")
    async def mine(run):
        ran.append(run.id)

    @tocsin_app.agent(every="1h", name="foreign")
    async def foreign():
        ran.append("foreign")

    await tocsin_app.register_agents()
    worker = await make_worker(owns={"mine"}.__contains__)
    await run_dry(worker)
    tocsin_clock.advance("1m")
    extra = await tocsin_app.fire("mine")
    await tocsin_app.fire("foreign")
    worker.served[AGENTS].mark_due(0)
    await run_dry(worker)
    assert ran[1:] == [extra.id]


async def test_all_agents_of_a_program_run_whatever_other_programs_left_in_the_line(tocsin_app, other_app):
    declare(other_app, *[f"b{n}" for n in range(30)])
    await other_app.register_agents()
    declare(tocsin_app, "a")
    assert await run_until_idle(tocsin_app) == 1
    assert {(await other_app.get(f"b{n}")).stage for n in range(30)} == {"waiting"}
