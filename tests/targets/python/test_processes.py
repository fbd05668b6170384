"""`executor="process"`: handlers that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import process_handlers
from tests.support.waiting import eventually
from tocsin import Retry
from tocsin.model.ids import idempotency_key


async def until_dead(app, handle) -> str:
    async def dead() -> bool:
        return await handle.status() == "failed"

    await eventually(dead, "the job is dead", within=60)
    return (await app.get(handle.id)).failure.error


async def test_results_and_errors_come_back_from_another_process(tocsin_app, tocsin_clock, make_worker):
    some = tocsin_app.job(executor="process", batch=10)(process_handlers.batch)
    nothing = tocsin_app.job(executor="process", batch=10)(process_handlers.batch_of_nothing)
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
    batch = [await tocsin_app.enqueue(some, n, id=f"some{n}") for n in range(4)]
    others = [await tocsin_app.enqueue(nothing, n, id=f"nothing{n}") for n in range(3)]
    await make_worker(start=True)

    result = await doubled.result("60s")
    assert result["double"] == 42
    assert result["pid"] != os.getpid()

    due = tocsin_clock.ms
    key = idempotency_key(tocsin_app.store.keys.prefix, "default", told.id, due)
    assert await told.result("60s") == [f"{told.id}@{due}", told.id, 1, "acme", key, []]

    # As for a handler on the loop or in a thread: it has succeeded, only its result is not kept.
    assert await unstorable.result("60s") is None

    error = await until_dead(tocsin_app, failed)
    assert error.startswith("LookupError: not in there")
    assert "raise LookupError(message)" in error
    assert "give it a longer timeout" in await until_dead(tocsin_app, extended)

    assert [await batch[n].result("60s") for n in (0, 2)] == [0, 20]
    assert "ValueError: odd" in await until_dead(tocsin_app, batch[1])
    assert [await handle.result("60s") for handle in others] == [None] * 3


async def test_a_process_that_ends_fails_its_run_and_the_next_run_finds_another(tocsin_app, make_worker):
    exits = tocsin_app.job(executor="process")(process_handlers.exits)
    double = tocsin_app.job(executor="process")(process_handlers.double)
    ways = ["os._exit", "sys.exit", "KeyboardInterrupt"]
    handles = [await tocsin_app.enqueue(exits, how, id=how) for how in ways]
    await make_worker(start=True)
    errors = [await until_dead(tocsin_app, handle) for handle in handles]
    assert "died (exit code 7)" in errors[0]
    assert "SystemExit" in errors[1]
    assert "KeyboardInterrupt" in errors[2]
    after = await tocsin_app.enqueue(double, 1, id="after")
    assert (await after.result("60s"))["double"] == 2


async def test_a_run_past_its_timeout_is_killed_and_its_retry_follows(tocsin_app, tocsin_clock, make_worker, tmp_path):
    hangs = tocsin_app.job(executor="process", timeout="30s", retry=Retry(1, "1h"))(process_handlers.hangs)
    handle = await tocsin_app.enqueue(hangs, str(tmp_path))
    await make_worker(start=True)
    [file] = await eventually(lambda: list(tmp_path.iterdir()), "it runs", within=60)
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
        [file] = await eventually(lambda folder=folder: list(folder.iterdir()), "it runs", within=60)
        pids.append(int(file.name))

    assert await handles[0].cancel()
    await eventually(lambda: not _alive(pids[0]), "its process is gone")
    assert _alive(pids[1])

    await worker.stop(grace=0)
    assert not _alive(pids[1])
    assert [await handle.status() for handle in handles] == ["cancelled", "waiting"]


PROGRAM = """
import asyncio, sys
from tests.support import process_handlers
from tocsin import Tocsin


async def main(url, folder):
    async with Tocsin(url, prefix="killed:") as app:
        await app.enqueue(app.job(executor="process")(process_handlers.hangs), folder)
        await app.work()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_worker_that_is_killed_takes_its_processes_with_it(tocsin_server, tmp_path):
    program, folder = tmp_path / "program.py", tmp_path / "runs"
    program.write_text(PROGRAM)
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = subprocess.Popen([sys.executable, program, tocsin_server.url, folder], env=env, stderr=subprocess.DEVNULL)
    try:
        [file] = await eventually(lambda: list(folder.iterdir()), "it runs", within=60)
    finally:
        worker.kill()
        worker.wait()
    await eventually(lambda: not _alive(int(file.name)), "its process is gone")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # What has ended and waits to be reaped by whoever adopted it has ended.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
