"""`executor="process"`: handlers that can be killed."""

from __future__ import annotations

import os

import process_handlers

from engine.waiting import eventually
from tocsin import Retry
from tocsin.model.ids import idempotency_key


async def until_dead(app, handle) -> str:
    async def dead() -> bool:
        return await handle.status() == "dead"

    await eventually(dead, "the job is dead", within=20)
    return (await app.get(handle.id)).failure.error


async def test_results_and_errors_come_back_from_another_process(tocsin_app, tocsin_clock, make_worker):
    double = tocsin_app.job(executor="process")(process_handlers.double)
    about = tocsin_app.job(executor="process")(process_handlers.about)
    odd = tocsin_app.job(executor="process")(process_handlers.returns_an_object)
    fails = tocsin_app.job(executor="process")(process_handlers.fails)
    extends = tocsin_app.job(executor="process")(process_handlers.extends)
    doubled = await tocsin_app.enqueue(double, 21, id="d")
    told = await tocsin_app.enqueue(about, id="{odd} id\n🔔", tenant="acme")
    unstorable = await tocsin_app.enqueue(odd, id="odd")
    failed = await tocsin_app.enqueue(fails, "not in there")
    extended = await tocsin_app.enqueue(extends)
    await make_worker(start=True)

    result = await doubled.result("20s")
    assert result["double"] == 42
    assert result["pid"] != os.getpid()

    due = tocsin_clock.ms
    key = idempotency_key(tocsin_app.store.keys.prefix, "default", told.id, due)
    assert await told.result("20s") == [f"{told.id}@{due}", told.id, 1, "acme", key, []]

    # As for a handler on the loop or in a thread: it has succeeded, only its result is not kept.
    assert await unstorable.result("20s") is None

    error = await until_dead(tocsin_app, failed)
    assert error.startswith("LookupError: not in there")
    assert "raise LookupError(message)" in error
    assert "give it a longer timeout" in await until_dead(tocsin_app, extended)


async def test_batches_return_one_outcome_per_run_or_nothing(tocsin_app, make_worker):
    some = tocsin_app.job(executor="process", batch=10)(process_handlers.batch)
    nothing = tocsin_app.job(executor="process", batch=10)(process_handlers.batch_of_nothing)
    handles = [await tocsin_app.enqueue(some, n, id=f"some{n}") for n in range(4)]
    others = [await tocsin_app.enqueue(nothing, n, id=f"nothing{n}") for n in range(3)]
    await make_worker(start=True)
    assert [await handles[n].result("20s") for n in (0, 2)] == [0, 20]
    assert "ValueError: odd" in await until_dead(tocsin_app, handles[1])
    assert [await handle.result("20s") for handle in others] == [None] * 3


async def test_a_process_that_ends_fails_its_run_and_the_next_run_finds_another(tocsin_app, make_worker):
    exits = tocsin_app.job(executor="process")(process_handlers.exits)
    double = tocsin_app.job(executor="process")(process_handlers.double)
    ways = ["os._exit", "sys.exit", "KeyboardInterrupt", "SIGKILL"]
    handles = [await tocsin_app.enqueue(exits, how, id=how) for how in ways]
    await make_worker(start=True)
    errors = [await until_dead(tocsin_app, handle) for handle in handles]
    assert "died (exit code 7)" in errors[0]
    assert "SystemExit" in errors[1]
    assert "KeyboardInterrupt" in errors[2]
    assert "died" in errors[3]
    after = await tocsin_app.enqueue(double, 1, id="after")
    assert (await after.result("20s"))["double"] == 2


async def test_a_run_past_its_timeout_is_killed_and_its_retry_follows(tocsin_app, tocsin_clock, make_worker, tmp_path):
    hangs = tocsin_app.job(executor="process", timeout="30s", retry=Retry(1, "1h"))(process_handlers.hangs)
    handle = await tocsin_app.enqueue(hangs, str(tmp_path))
    await make_worker(start=True)
    [file] = await eventually(lambda: list(tmp_path.iterdir()), "it runs", within=20)
    tocsin_clock.advance("31s")
    await eventually(lambda: not _alive(int(file.name)), "its process is gone")

    async def waits() -> bool:
        return await handle.status() == "waiting"

    await eventually(waits, "its retry waits")
    job = await tocsin_app.get(handle.id)
    assert job.attempt == 2
    assert "timed out" in job.failure.error


async def test_a_cancelled_run_is_killed_and_a_worker_that_stops_leaves_no_process_behind(
    tocsin_app, make_worker, tmp_path
):
    hangs = tocsin_app.job(executor="process")(process_handlers.hangs)
    folders = [tmp_path / "cancelled", tmp_path / "stopped"]
    for folder in folders:
        folder.mkdir()
    handles = [await tocsin_app.enqueue(hangs, str(folder), id=folder.name) for folder in folders]
    worker = await make_worker(start=True)
    pids = []
    for folder in folders:
        [file] = await eventually(lambda folder=folder: list(folder.iterdir()), "it runs", within=20)
        pids.append(int(file.name))

    assert await handles[0].cancel()
    await eventually(lambda: not _alive(pids[0]), "its process is gone")
    assert _alive(pids[1])

    await worker.stop(grace=0)
    assert not _alive(pids[1])
    assert [await handle.status() for handle in handles] == ["cancelled", "waiting"]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
