"""What callers get wrong: each gets a clear error, and nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pytest

from tocsin import Every, InvalidArgument, StoreUnavailable, Tocsin, TocsinError
from tocsin.testing import run_until_idle


async def nothing_was_written(app) -> bool:
    return [job async for job in app.jobs()] == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"id": ""}, "1 to 512 bytes"),
        ({"id": "x" * 513}, "this one has 513"),
        ({"id": "a\0b"}, "NUL"),
        ({"id": "a\x1fb"}, "x1f"),
        ({"id": 5}, "must be text"),
        ({"id": "\udcff"}, "not valid Unicode"),
        ({"delay": -1}, "delay must be between 0"),
        ({"delay": "-5s"}, "delay must be"),
        ({"delay": "soon"}, "delay must be"),
        ({"delay": True}, "delay must be"),
        ({"delay": timedelta(seconds=-1)}, "delay must be"),
        ({"at": datetime(2030, 1, 1)}, r"at must say its zone.*datetime\.now\(UTC\)"),
        ({"at": date(2030, 1, 1)}, "at must be a datetime"),
        ({"at": "2030-01-01"}, "at must be a datetime"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, "not both"),
        ({"timeout": 0}, "timeout must be"),
        ({"timeout": "60d"}, "timeout must be"),
        ({"keep": -1}, "keep must be"),
        ({"retry": {"retries": 3}}, "must be a Retry"),
        ({"tenant": ""}, "a tenant is text"),
        ({"tenant": "a\0"}, "a tenant is text"),
        ({"tenant": "x" * 256}, "a tenant is text"),
        ({"tenant": 5}, "a tenant is text"),
        ({"cost": 0}, "cost must be"),
        ({"cost": 70_000}, "cost must be"),
        ({"cost": 1.5}, "cost must be"),
        ({"criticality": "high"}, "criticality must be"),
        ({"criticality": 2**40}, "criticality must be"),
        ({"queue": "a b"}, "queue name"),
    ],
    ids=lambda value: ascii(value)[:40],
)
async def test_an_option_that_cannot_be_is_refused(tocsin_app, note, options, why):
    with pytest.raises(InvalidArgument, match=why):
        await tocsin_app.enqueue(note, **options)
    assert await nothing_was_written(tocsin_app)


@pytest.mark.parametrize(
    ("option", "meant"),
    [("dely", "delay"), ("tenent", "tenant"), ("time_out", "timeout"), ("wat", "what"), ("retries", "retry")],
)
async def test_an_unknown_option_names_the_nearest(tocsin_app, note, option, meant):
    for call in (
        lambda options: tocsin_app.enqueue(note, **options),
        lambda options: tocsin_app.schedule(note, Every("1m"), **options),
    ):
        with pytest.raises(InvalidArgument, match=f"'{option}' is no option.*did you mean '{meant}'"):
            await call({option: 1})
    assert await nothing_was_written(tocsin_app)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"a": 1}), ((), {"b": 1})])
async def test_arguments_that_do_not_fit_are_refused_at_the_call(tocsin_app, args, kwargs):
    @tocsin_app.job
    async def handler(a, b=2):
        pass

    with pytest.raises(InvalidArgument, match="cannot be called with these arguments"):
        await tocsin_app.enqueue(handler, *args, **kwargs)


async def test_the_run_is_not_the_callers_to_give(tocsin_app, note):
    with pytest.raises(InvalidArgument, match="leave run= out"):
        await tocsin_app.enqueue(note, run=1)


@pytest.mark.parametrize("what", [lambda: None, "note", None, object(), 5])
async def test_only_a_decorated_function_can_be_enqueued(tocsin_app, what):
    for call in (
        lambda: tocsin_app.enqueue(what),
        lambda: tocsin_app.schedule(what, Every("1m")),
        lambda: tocsin_app.enqueue_many(what, []),
        lambda: tocsin_app.schedule_many(what, []),
    ):
        with pytest.raises(InvalidArgument, match=r"is not a job: decorate the function with @app\.job\(\)"):
            await call()


class Custom:
    pass


def _loop() -> list:
    loop: list = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [object(), Custom(), lambda: None, {"deep": [Custom()]}, {Custom(): 1}, 2**70, _loop(), open, iter([])],
    ids=lambda value: type(value).__name__,
)
async def test_arguments_that_cannot_be_stored_are_refused_and_told_what_can(tocsin_app, note, value):
    with pytest.raises(InvalidArgument, match=r"cannot be stored.*use None, bool, int"):
        await tocsin_app.enqueue(note, value)
    with pytest.raises(InvalidArgument, match="cannot be stored"):
        await tocsin_app.enqueue_many(note, [(value,)])
    assert await nothing_was_written(tocsin_app)


async def test_rich_arguments_arrive_as_plain_data(tocsin_app, note, ran):
    @dataclass
    class Point:
        x: int
        y: int

    await tocsin_app.enqueue(note, {"point": Point(1, 2), "pair": (3, 4), "none": None})
    await run_until_idle(tocsin_app)
    assert ran == [{"point": {"x": 1, "y": 2}, "pair": [3, 4], "none": None}]


async def test_arguments_may_take_half_a_mebibyte_and_no_more(tocsin_app, note, ran):
    limit = 512 * 1024
    with pytest.raises(
        InvalidArgument,
        match=r"the limit is 524288 \(limits\.arguments-bytes\): store them elsewhere and pass a reference",
    ):
        await tocsin_app.enqueue(note, "x" * limit)
    await tocsin_app.enqueue(note, "x" * (limit - 100))
    assert await run_until_idle(tocsin_app) == 1
    assert len(ran[0]) == limit - 100


@pytest.mark.parametrize("job_id", ["", "x" * 513, "a\0b", "a\x1fb", 5, None])
@pytest.mark.parametrize("call", ["get", "update", "remove", "pause", "resume", "fire", "next_runs", "retry_dead"])
async def test_every_call_by_id_refuses_what_is_no_id(tocsin_app, call, job_id):
    with pytest.raises(InvalidArgument):
        await getattr(tocsin_app, call)(job_id)


NOW = datetime(2030, 1, 1, tzinfo=UTC)
CALLS = {
    "get": ("j",),
    "update": ("j",),
    "remove": ("j",),
    "pause": ("j",),
    "resume": ("j",),
    "fire": ("j",),
    "backfill": ("j", NOW, NOW),
    "cancel": ("j@1",),
    "next_runs": ("j",),
    "retry_dead": ("j",),
    "drop_dead": ("j",),
    "unpark": ("j",),
    "pause_queue": ("default",),
    "resume_queue": ("default",),
    "work": (),
    "worker": (),
    "register_agents": (),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("closed", [False, True], ids=["before open", "after close"])
async def test_an_app_that_is_not_open_says_so(tocsin_server, call, closed):
    app = Tocsin(tocsin_server.url, prefix="not-open:")
    if closed:
        async with app:
            pass
    with pytest.raises(TocsinError, match="the app is not open: use `async with app:`"):
        await getattr(app, call)(*CALLS[call])


@pytest.mark.parametrize("call", ["jobs", "dead", "runs"])
async def test_lists_of_an_app_that_is_not_open_say_so(call):
    with pytest.raises(TocsinError, match="the app is not open"):
        [job async for job in getattr(Tocsin("redis://nowhere"), call)()]


async def test_puts_of_an_app_that_is_not_open_say_so():
    app = Tocsin("redis://nowhere")

    @app.job
    async def handler():
        pass

    for call in (
        lambda: app.enqueue(handler),
        lambda: app.schedule(handler, Every("1m")),
        lambda: app.enqueue_many(handler, [()]),
        lambda: app.schedule_many(handler, [("a", Every("1m"), ())]),
    ):
        with pytest.raises(TocsinError, match="the app is not open"):
            await call()


async def test_an_app_opens_once_and_can_be_opened_again(tocsin_app):
    with pytest.raises(TocsinError, match="open already"):
        await tocsin_app.open()
    await tocsin_app.close()
    await tocsin_app.close()
    await tocsin_app.open()
    assert await tocsin_app.get("nobody") is None


async def test_a_server_that_is_not_there_is_unavailable(tmp_path):
    with pytest.raises(StoreUnavailable):
        async with Tocsin(f"unix://{tmp_path}/nothing"):
            pass
