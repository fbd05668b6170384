"""`enqueue_many` and `schedule_many`: rows of any kind, consumed lazily."""

from __future__ import annotations

import asyncio

import pytest
import redis

from tocsin import Every, InvalidArgument, InvalidTrigger, Once, Retry
from tocsin.model.queue import Queue
from tocsin.store.transitions.jobs import Jobs
from tocsin.testing import run_until_idle


async def count(app) -> int:
    queue = await app.store.find_queue("default")
    return 0 if queue is None else sum((await Jobs(app.store).count(queue)).values())


async def listed(app) -> list[str]:
    return [job.id async for job in app.jobs()]


async def slowly(rows):
    for row in rows:
        await asyncio.sleep(0)
        yield row


@pytest.mark.parametrize("kind", [list, tuple, iter, lambda rows: (row for row in rows), slowly])
async def test_rows_are_any_iterable_also_an_async_one(tocsin_app, note, ran, kind):
    assert await tocsin_app.enqueue_many(note, kind([(n,) for n in range(50)])) == 50
    assert await run_until_idle(tocsin_app) == 50
    assert sorted(ran) == list(range(50))


async def test_a_row_is_a_tuple_a_list_or_a_mapping_of_arguments(tocsin_app):
    seen = []

    @tocsin_app.job
    async def handler(a, b="default", *, c=None):
        seen.append((a, b, c))

    rows = [(1,), [2, "two"], {"a": 3}, {"a": 4, "c": "c"}, {"b": "b", "a": 5}]
    assert await tocsin_app.enqueue_many(handler, rows) == 5
    await run_until_idle(tocsin_app)
    assert sorted(seen) == [
        (1, "default", None), (2, "two", None), (3, "default", None), (4, "default", "c"), (5, "b", None),
    ]  # fmt: skip


async def test_no_rows_are_no_jobs(tocsin_app, note):
    assert await tocsin_app.enqueue_many(note, []) == 0
    assert await tocsin_app.enqueue_many(note, [], ids=["spare"]) == 0


async def test_a_hundred_thousand_rows_are_consumed_in_step_with_what_is_written(tocsin_app, note):
    """At most what fits into the partitions' batches is ahead of the server, whatever the number of rows."""
    consumed, furthest_ahead = 0, 0

    async def rows():
        nonlocal consumed, furthest_ahead
        for n in range(100_000):
            consumed += 1
            yield (n,)
            if n % 10_000 == 9_999:
                furthest_ahead = max(furthest_ahead, consumed - await count(tocsin_app))

    assert await tocsin_app.enqueue_many(note, rows()) == 100_000
    assert await count(tocsin_app) == 100_000
    assert 0 < furthest_ahead <= 16 * 1000 + 4 * 1000


@pytest.mark.one_server(reason="has a plain client of one server")
async def test_a_plain_generator_is_consumed_in_step_too(tocsin_app, tocsin_server, note):
    queue = await tocsin_app.store.open_queue(Queue("default"))
    ahead = []

    def rows():
        with redis.Redis.from_url(tocsin_server.url) as client:
            for n in range(40_000):
                if n % 10_000 == 9_999:
                    ahead.append(n - sum(client.hlen(keys["jobs"]) for keys in queue.keys))
                yield (n,)

    assert await tocsin_app.enqueue_many(note, rows()) == 40_000
    assert len(ahead) == 4
    assert max(ahead) <= 16 * 1000 + 4 * 1000


async def test_other_tasks_get_turns_while_rows_are_collected(tocsin_app, note):
    turns, at_the_last_row = 0, []

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def rows():
        for n in range(10_000):
            yield (n,)
        at_the_last_row.append(turns)

    await tocsin_app.enqueue(note)
    ticking = asyncio.create_task(others())
    await tocsin_app.enqueue_many(note, rows())
    ticking.cancel()
    assert at_the_last_row[0] >= 10


async def test_ids_name_the_jobs_and_are_remembered(tocsin_app, note, ran):
    ids = (f"job-{n}" for n in range(20))
    assert await tocsin_app.enqueue_many(note, [(n,) for n in range(20)], ids=ids) == 20
    assert await tocsin_app.enqueue_many(note, [(99,)] * 3, ids=["job-3", "job-4", "new"]) == 1
    await run_until_idle(tocsin_app)
    assert await tocsin_app.enqueue_many(note, [(99,)], ids=["job-5"]) == 0
    assert sorted(ran) == [*range(20), 99]


@pytest.mark.parametrize(("if_exists", "last"), [("ignore", "first"), ("replace", "second")])
async def test_an_id_that_comes_twice_is_one_job(tocsin_app, note, ran, if_exists, last):
    rows = [("first",), ("other",), ("second",)]
    assert await tocsin_app.enqueue_many(note, rows, ids=["j", "k", "j"], if_exists=if_exists) == 2
    await run_until_idle(tocsin_app)
    assert sorted(ran) == sorted(["other", last])


async def test_fewer_ids_than_rows_is_an_error(tocsin_app, note):
    with pytest.raises(InvalidArgument, match="fewer ids than rows"):
        await tocsin_app.enqueue_many(note, [(1,), (2,)], ids=["one"])


async def test_an_id_that_cannot_be_is_refused_in_bulk_too(tocsin_app, note):
    with pytest.raises(InvalidArgument, match="NUL"):
        await tocsin_app.enqueue_many(note, [(1,)], ids=["a\0"])


async def test_the_options_of_enqueue_hold_for_every_row(tocsin_app, tocsin_clock, note):
    tocsin_app.queue("mail")
    options = {"tenant": "acme", "timeout": "9s", "retry": Retry(2, 1), "criticality": 4, "cost": 3, "delay": "1m"}
    await tocsin_app.enqueue_many(note, [(1,), (2,)], ids="ab", queue="mail", keep="1h", **options)
    for job_id in "ab":
        job = await tocsin_app.get(job_id)
        assert (job.queue, job.tenant, job.timeout, job.retry) == ("mail", "acme", 9, Retry(2, 1))
        assert (job.criticality, job.header.cost, job.header.keep) == (4, 3, 3600)
        assert job.due_ms == tocsin_clock.ms + 60_000


@pytest.mark.parametrize("row", [5, "text", None, b"bytes", {1, 2}])
async def test_a_row_that_is_none_is_refused(tocsin_app, note, row):
    with pytest.raises(InvalidArgument, match="a row is a tuple of arguments or a mapping"):
        await tocsin_app.enqueue_many(note, [row])


@pytest.mark.parametrize("row", [(1, 2), {"nope": 1}, {"run": 1}])
async def test_a_row_that_does_not_fit_the_handler_is_refused(tocsin_app, note, row):
    with pytest.raises(InvalidArgument):
        await tocsin_app.enqueue_many(note, [(), row])


async def test_bound_arguments_and_rows_do_not_go_together(tocsin_app, note):
    with pytest.raises(InvalidArgument, match="bind"):
        await tocsin_app.enqueue_many(note.bind("x"), [()])


async def test_an_iterator_that_raises_ends_the_call_with_its_error(tocsin_app, note):
    def rows():
        yield (1,)
        raise OSError("the file ended")

    with pytest.raises(OSError, match="the file ended"):
        await tocsin_app.enqueue_many(note, rows())


async def test_large_rows_are_sent_in_parts_that_a_script_can_take(tocsin_app, note):
    rows = ((b"x" * 400_000,) for _ in range(40))
    assert await tocsin_app.enqueue_many(note, rows) == 40
    assert await run_until_idle(tocsin_app) == 40


async def test_many_schedules_are_put_and_only_new_ones_are_counted(tocsin_app, tocsin_clock, note):
    rows = [(f"s{n}", Every(60 + n), (n,)) for n in range(30)]
    assert await tocsin_app.schedule_many(note, rows, tenant="acme", misfire="all") == 30
    before = [job async for job in tocsin_app.jobs()]
    tocsin_clock.advance("10s")
    assert await tocsin_app.schedule_many(note, rows, tenant="acme", misfire="all") == 0
    assert [job async for job in tocsin_app.jobs()] == before
    assert [(job.id, job.args, job.tenant) for job in before] == [(f"s{n}", (n,), "acme") for n in range(30)]


async def test_rows_of_schedules_may_have_mappings_and_other_triggers(tocsin_app, tocsin_clock, note):
    rows = slowly([("a", Every("1m"), {"what": 1}), ("b", Once(tocsin_clock.now), ()), ["c", Every("1h"), [2]]])
    assert await tocsin_app.schedule_many(note, rows, queue="default") == 3
    assert await run_until_idle(tocsin_app) == 1
    assert await listed(tocsin_app) == ["a", "c"]


@pytest.mark.parametrize(
    ("row", "options", "error", "why"),
    [
        (("a", Every("1m")), {}, InvalidArgument, r"\(id, trigger, args\)"),
        ("abc", {}, InvalidTrigger, "a trigger is"),
        (5, {}, InvalidArgument, r"\(id, trigger, args\)"),
        (("", Every("1m"), ()), {}, InvalidArgument, "1 to 512 bytes"),
        (("a", "1m", ()), {}, InvalidTrigger, "a trigger is"),
        (("a", Every("1m"), (1, 2)), {}, InvalidArgument, "cannot be called"),
        (("a", Every("1m"), ()), {"tenent": "x"}, InvalidArgument, "did you mean 'tenant'"),
        (("a", Every("1m"), ()), {"priority": "high"}, InvalidArgument, "leave priority out"),
        (("a", Every("1m"), ()), {"if_exists": "postpone"}, InvalidArgument, "if_exists"),
    ],
    ids=str,
)
async def test_a_schedule_that_cannot_be_is_refused(tocsin_app, note, row, options, error, why):
    with pytest.raises(error, match=why):
        await tocsin_app.schedule_many(note, [row], **options)
