"""Requests, messages and programs as jobs: what is put, shown and changed. Their delivery is in tests/targets."""

from __future__ import annotations

import pytest

from tocsin import Every, Http, InvalidArgument, Job, Message, Retry, Stage, Subprocess, Tocsin
from tocsin.config.schema import Config
from tocsin.config.schema import HttpGroup as HttpConfig
from tocsin.model.target import Target, target_of
from tocsin.testing import ManualClock

HOOK = Http.post("https://example.org/hook", json={"a": 1})
TICK = Message("kafka://broker:9092/ticks", value={"a": 1}, key="a")
SYNC = Subprocess(["rsync", "-a", "{run.due}"], timeout="2h")


async def stored(app: Tocsin, id: str) -> tuple[Job, Target | None]:
    job = await app.get(id)
    assert job is not None
    return job, target_of(job.spec)


@pytest.mark.parametrize(
    ("target", "name"),
    [(HOOK, "tocsin.http"), (TICK, "tocsin.message.kafka"), (SYNC, "tocsin.subprocess")],
    ids=["http", "message", "subprocess"],
)
async def test_each_is_stored_whole_under_the_name_of_its_kind(tocsin_app: Tocsin, target: Target, name: str) -> None:
    await tocsin_app.enqueue(target, id="once", delay="1h")
    await tocsin_app.schedule(target, Every("1m"), id="again", retry=Retry(3, "200ms", "500ms"))
    for id in ("once", "again"):
        job, found = await stored(tocsin_app, id)
        assert (job.name, found) == (name, target)


async def test_a_run_outlasts_the_timeout_of_its_delivery(tocsin_app: Tocsin) -> None:
    for id, target in (("hook", HOOK), ("sync", SYNC)):
        await tocsin_app.enqueue(target, id=id, delay="1h")
    assert (await stored(tocsin_app, "hook"))[0].timeout == 300
    assert (await stored(tocsin_app, "sync"))[0].timeout == 7210


async def test_a_schedule_of_one_needs_an_id(tocsin_app: Tocsin) -> None:
    with pytest.raises(InvalidArgument, match=r"give the schedule an id=: POST https://example.org/hook"):
        await tocsin_app.schedule(HOOK, Every("1m"))


async def test_none_takes_arguments(tocsin_app: Tocsin) -> None:
    with pytest.raises(InvalidArgument, match="takes no arguments"):
        await tocsin_app.enqueue(HOOK, 1)
    with pytest.raises(InvalidArgument, match="takes no arguments"):
        await tocsin_app.enqueue(HOOK, verbose=True)


async def test_many_are_put_at_once(tocsin_app: Tocsin) -> None:
    hooks = [Http.get(f"https://example.org/{n}") for n in range(2500)]
    assert await tocsin_app.enqueue_many(Http, hooks, ids=[f"h{n}" for n in range(2500)], delay="1h") == 2500
    rows = [(f"t{n}", Every("1m"), Message(f"{scheme}://b/x")) for n, scheme in enumerate(["kafka", "nats", "amqp"])]
    assert await tocsin_app.schedule_many(Message, rows, retry=Retry(1, "1s")) == 3
    assert (await stored(tocsin_app, "h2499"))[1] == hooks[-1]
    assert [(await stored(tocsin_app, f"t{n}"))[0].name.rpartition(".")[2] for n in range(3)] == [
        "kafka",
        "nats",
        "rabbitmq",
    ]


async def test_a_row_of_another_kind_is_refused(tocsin_app: Tocsin) -> None:
    with pytest.raises(InvalidArgument, match=r"a row is one Http\(…\) here, not <Message"):
        await tocsin_app.enqueue_many(Http, [TICK])


async def test_a_target_can_be_changed_for_another_of_its_kind(tocsin_app: Tocsin, tocsin_clock: ManualClock) -> None:
    await tocsin_app.schedule(HOOK, Every("1m"), id="ping")
    due = (await stored(tocsin_app, "ping"))[0].due
    other = Http.get("https://example.org/other")
    assert await tocsin_app.update("ping", target=other)
    job, found = await stored(tocsin_app, "ping")
    assert (found, job.due, job.stage) == (other, due, Stage.WAITING)
    with pytest.raises(InvalidArgument, match=r"runs tocsin\.http"):
        await tocsin_app.update("ping", target=TICK)
    with pytest.raises(InvalidArgument, match="give target="):
        await tocsin_app.update("ping", args=("GET", "https://example.org"))


async def test_the_same_definition_again_changes_nothing(tocsin_app: Tocsin) -> None:
    await tocsin_app.schedule(HOOK, Every("1m"), id="ping")
    before = (await stored(tocsin_app, "ping"))[0]
    await tocsin_app.schedule(Http.post("https://example.org/hook", json={"a": 1}), Every("1m"), id="ping")
    assert (await stored(tocsin_app, "ping"))[0] == before


async def test_what_is_no_job_is_told_what_would_be_one(tocsin_app: Tocsin) -> None:
    with pytest.raises(InvalidArgument, match="decorate the function"):
        await tocsin_app.enqueue("https://example.org")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "target",
    [Http.get("https://example.org/", timeout="601s"), Message("nats://b/x", timeout="1h")],
    ids=["http", "message"],
)
async def test_a_delivery_longer_than_workers_wait_is_refused_when_it_is_put(
    tocsin_app: Tocsin, target: Target
) -> None:
    """Whichever call puts it: for so long a host that hangs would hold a permit."""
    kind: type = type(target)
    quick = Http.get("https://example.org/") if kind is Http else Message("nats://b/x")
    await tocsin_app.schedule(quick, Every("1h"), id="quick")
    for call in (
        lambda: tocsin_app.enqueue(target),
        lambda: tocsin_app.enqueue_many(kind, [target]),
        lambda: tocsin_app.schedule(target, Every("1h"), id="a"),
        lambda: tocsin_app.schedule_many(kind, [("a", Every("1h"), target)]),
        lambda: tocsin_app.update("quick", target=target),
    ):
        with pytest.raises(InvalidArgument, match=r"wait no longer than `http.max-timeout`, 600 s"):
            await call()


async def test_the_operator_says_how_long_deliveries_may_take(tocsin_app: Tocsin) -> None:
    config = Config(http=HttpConfig(max_timeout="2h"))
    async with Tocsin(tocsin_app.store.address.shown, prefix=tocsin_app.store.keys.prefix, config=config) as app:
        await app.enqueue(Http.get("https://example.org/", timeout="2h"), id="a", delay="1h")
    assert (await stored(tocsin_app, "a"))[0].timeout == 7210
