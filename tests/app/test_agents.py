"""`@app.agent`: runs for ever, one at a time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tocsin import Every, InvalidArgument, InvalidTrigger, Run, Tocsin
from tocsin.testing import run_until_idle

pytestmark = pytest.mark.agents


async def test_an_agent_is_registered_by_the_worker_and_runs_at_once_and_then_on_its_cadence(tocsin_app, tocsin_clock):
    dues = []

    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh(run: Run):
        dues.append(run.due)

    begun = tocsin_clock.now
    assert await tocsin_app.get("refresh") is None
    for late in (0, 5, 3, 0):
        # However late it runs, the next time is counted from when it was due.
        tocsin_clock.advance(late)
        assert await run_until_idle(tocsin_app) == 1
        assert await run_until_idle(tocsin_app) == 0
        tocsin_clock.advance(30 - late)
    assert dues == [begun + timedelta(seconds=30 * n) for n in range(4)]


async def test_an_agent_shows_what_it_is(tocsin_app):
    @tocsin_app.agent(every="30s", error_interval="5m", timeout="2m", name="refresh")
    async def refresh():
        pass

    await tocsin_app.worker()
    job = await tocsin_app.get("refresh")
    assert (job.queue, job.trigger, job.timeout, job.recurring) == ("agents", Every("30s"), 120, True)
    assert (job.spec.rules.agent, job.spec.rules.error_interval) == (True, 300)


async def test_after_an_error_an_agent_waits_for_its_error_interval_and_never_runs_out(tocsin_app, tocsin_clock):
    ran = []

    @tocsin_app.agent(every="30s", error_interval="5m", name="refresh")
    async def refresh():
        ran.append(tocsin_clock.ms)
        if len(ran) < 5:
            raise ValueError("vendor is down")

    for _ in range(4):
        assert await run_until_idle(tocsin_app) == 1
        job = await tocsin_app.get("refresh")
        wait = job.due_ms - tocsin_clock.ms
        assert job.stage == "waiting"
        assert 270_000 <= wait <= 330_000
        tocsin_clock.advance(wait / 1000)
    await run_until_idle(tocsin_app)
    job = await tocsin_app.get("refresh")
    assert (job.due_ms - tocsin_clock.ms, job.failed, job.succeeded) == (30_000, 4, 1)


async def test_without_an_error_interval_an_agent_keeps_its_cadence(tocsin_app, tocsin_clock):
    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh():
        raise ValueError

    await run_until_idle(tocsin_app)
    assert (await tocsin_app.get("refresh")).due_ms == tocsin_clock.ms + 30_000


async def test_registering_again_changes_nothing(tocsin_app, tocsin_clock):
    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh():
        pass

    await run_until_idle(tocsin_app)
    before = await tocsin_app.get("refresh")
    tocsin_clock.advance("10s")
    await tocsin_app.register_agents()
    assert await run_until_idle(tocsin_app) == 0
    assert await tocsin_app.get("refresh") == before


async def test_an_agent_that_is_declared_with_another_interval_does_not_fire_because_of_that(
    tocsin_app, tocsin_clock, stranger
):
    """Nothing fires because it was edited: a new deployment must not run everything at once."""

    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh():
        pass

    await run_until_idle(tocsin_app)
    tocsin_clock.advance("10s")

    @stranger.agent(every="1h", name="refresh")
    async def refresh_again():
        pass

    assert await run_until_idle(stranger) == 0
    job = await tocsin_app.get("refresh")
    assert job.trigger == Every("1h")
    assert job.due_ms == tocsin_clock.ms + 3_600_000


async def test_an_agent_whose_interval_is_updated_counts_from_now(tocsin_app, tocsin_clock):
    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh():
        pass

    await run_until_idle(tocsin_app)
    tocsin_clock.advance("10s")
    await tocsin_app.update("refresh", trigger=Every("1h"))
    assert (await tocsin_app.get("refresh")).due_ms == tocsin_clock.ms + 3_600_000


async def test_a_paused_agent_stays_paused_when_it_is_registered_again(tocsin_app, tocsin_clock):
    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh():
        pass

    await run_until_idle(tocsin_app)
    await tocsin_app.pause("refresh")
    tocsin_clock.advance("1h")
    assert await run_until_idle(tocsin_app) == 0
    assert (await tocsin_app.get("refresh")).stage == "paused"


async def test_an_agent_may_be_a_plain_function_and_may_be_called_as_one(tocsin_app):
    ran = []

    @tocsin_app.agent(every="30s")
    def refresh():
        """Fetches everything again."""
        ran.append(1)
        return 7

    assert refresh() == 7
    assert refresh.__doc__ == "Fetches everything again."
    assert await run_until_idle(tocsin_app) == 1
    assert ran == [1, 1]


async def test_only_workers_of_the_agents_queue_register_agents(tocsin_app):
    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh():
        pass

    await run_until_idle(tocsin_app, queues=["default"])
    assert await tocsin_app.get("refresh") is None
    assert await run_until_idle(tocsin_app, queues=["agents"]) == 1


@pytest.mark.one_server(reason="on a cluster they have a hash tag")
async def test_the_agents_queue_has_the_key_names_of_its_seed(tocsin_app, prefix):
    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh():
        pass

    await run_until_idle(tocsin_app)
    assert await tocsin_app.store.client.zrange(f"{prefix}waiting", 0, -1) == [b"refresh"]


@pytest.mark.parametrize("every", [0, -1, "soon", None])
def test_an_interval_that_cannot_be_is_refused_at_decoration(every):
    with pytest.raises((InvalidArgument, InvalidTrigger)):
        Tocsin("redis://nowhere").agent(every=every)


@pytest.mark.parametrize("options", [{"error_interval": -1}, {"error_interval": "soon"}, {"timeout": 0}], ids=str)
def test_an_option_that_cannot_be_is_refused_at_decoration(options):
    app = Tocsin("redis://nowhere")
    with pytest.raises(InvalidArgument):

        @app.agent(every="30s", **options)
        async def refresh():
            pass
