"""No program outlives its run: not its timeout, a cancellation, a stop, nor a worker that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.servers import Server
from tests.support.subprocess_programs import STAYS, gone, is_alive, make, noted
from tests.support.waiting import eventually
from tests.support.worker_fleet import Fleet
from tocsin import Retry, Subprocess, Tocsin
from tocsin.model.clock import monotonic
from tocsin.targets.external import TargetPermissions
from tocsin.targets.subprocess.target import GRACE_S
from tocsin.testing import ManualClock, run_until_idle
from tocsin.worker import Worker, WorkerSettings

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
# One that stays in its group, and one that leaves it.
CHILDREN = """
def child(name, leave):
    if not os.fork():
        if leave:
            os.setsid()
            if os.fork():
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(name, os.getpid())
        while True: time.sleep(60)
child("near", False)
child("far", True)
while not (os.path.exists(f"{HERE}/near") and os.path.exists(f"{HERE}/far")): time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOCSIN_SUBPROCESS__ALLOW", f"{tmp_path}/*")


@pytest.fixture
async def worker(tocsin_app: Tocsin, tmp_path: Path) -> AsyncIterator[Worker]:
    """Its loops run, on a clock that stands still."""
    made = await tocsin_app.worker(
        settings=WorkerSettings(beat_s=0.1, reach=TargetPermissions(programs={f"{tmp_path}/*": ()}))
    )
    await made.start()
    yield made
    await made.kill()


async def pids_of(folder: Path, *names: str) -> list[int]:
    return [int(await noted(folder, name)) for name in names]


async def test_a_program_past_its_timeout_is_asked_to_end_and_tried_again(tocsin_app: Tocsin, tmp_path: Path) -> None:
    """One that listens ends at once, with what it has to say."""
    body = """
def end(number, frame):
    print("good bye", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("hello", flush=True)
"""
    program = make(tmp_path, body + STAYS)
    await tocsin_app.enqueue(Subprocess([program], timeout="1s"), id="a", retry=Retry(1, 0))
    began = monotonic()
    await run_until_idle(tocsin_app)
    assert monotonic() - began < 2 + GRACE_S
    runs = [run async for run in tocsin_app.runs()]
    assert [run.outcome for run in runs] == ["dead", "retried"]
    assert runs[0].told == {"code": 0, "ms": 0, "head": "hello\ngood bye\n"}
    job = await tocsin_app.get("a")
    assert job is not None
    assert job.failure is not None
    assert "did not end within 1 s, and was ended: hello\ngood bye" in job.failure.error


async def test_one_that_does_not_listen_is_killed_with_its_children(tocsin_app: Tocsin, tmp_path: Path) -> None:
    program = make(tmp_path, DEAF + CHILDREN + STAYS)
    await tocsin_app.enqueue(Subprocess([program], timeout="1s"), id="a")
    await run_until_idle(tocsin_app)
    [run] = [run async for run in tocsin_app.runs()]
    assert (run.outcome, run.told["code"]) == ("dead", -9)
    assert not any(map(is_alive, await pids_of(tmp_path, "pid", "near", "far")))


@pytest.mark.parametrize("ending", ["", "sys.exit(1)", "os.kill(os.getpid(), 9)"], ids=["well", "badly", "killed"])
async def test_children_do_not_outlive_a_program_that_ends(tocsin_app: Tocsin, tmp_path: Path, ending: str) -> None:
    """Nor does the run wait for them, although they hold its output open."""
    program = make(tmp_path, f'{CHILDREN}\nprint("said", flush=True)\n{ending}')
    await tocsin_app.enqueue(Subprocess([program]), id="a")
    await run_until_idle(tocsin_app)
    [run] = [run async for run in tocsin_app.runs()]
    assert (run.outcome, run.told["head"]) == ("dead" if ending else "succeeded", "said\n")
    assert not any(map(is_alive, await pids_of(tmp_path, "near", "far")))


@pytest.mark.parametrize("deaf", [False, True], ids=["listens", "deaf"])
async def test_a_cancelled_run_ends_its_program(tocsin_app: Tocsin, worker: Worker, tmp_path: Path, deaf: bool) -> None:
    program = make(tmp_path, (DEAF if deaf else "") + CHILDREN + STAYS)
    handle = await tocsin_app.enqueue(Subprocess([program]), id="a")
    pids = await pids_of(tmp_path, "pid", "near", "far")
    assert await handle.cancel()
    await eventually(lambda: not worker.pool.busy, "the run has ended", within=30)
    assert not any(map(is_alive, pids))

    async def is_over() -> bool:
        return await handle.status() == "cancelled"

    await eventually(is_over, "it is cancelled", within=30)


async def test_a_run_past_its_own_timeout_ends_its_program(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, worker: Worker, tmp_path: Path
) -> None:
    await tocsin_app.enqueue(Subprocess([make(tmp_path, STAYS)], timeout="1h"), id="a", timeout="30s")
    pids = await pids_of(tmp_path, "pid")
    tocsin_clock.advance("31s")
    await eventually(lambda: not worker.pool.busy, "the run has ended", within=30)
    assert not is_alive(pids[0])


async def test_a_worker_that_stops_hands_over_a_run_whose_program_has_ended(
    tocsin_app: Tocsin, worker: Worker, tmp_path: Path
) -> None:
    await tocsin_app.enqueue(Subprocess([make(tmp_path, DEAF + STAYS)]), id="a")
    pids = await pids_of(tmp_path, "pid")
    began = monotonic()
    assert await worker.stop(grace=0) == 1
    assert monotonic() - began >= GRACE_S
    assert not is_alive(pids[0])
    job = await tocsin_app.get("a")
    assert job is not None
    assert (job.stage, job.attempt, job.recoveries) == ("waiting", 1, 0)


async def test_a_worker_that_ends_without_waiting_leaves_nothing(
    tocsin_app: Tocsin, worker: Worker, tmp_path: Path
) -> None:
    """Its runners are closed in the middle of ending their programs."""
    await tocsin_app.enqueue(Subprocess([make(tmp_path, DEAF + STAYS)]), id="a")
    pids = await pids_of(tmp_path, "pid")
    await worker.kill()
    await gone(*pids)
    # What reads the report of the supervisor outlives its runner, and not the supervisor.
    await eventually(lambda: not any("_report" in repr(task) for task in asyncio.all_tasks()), "the supervisor is gone")


async def test_one_that_is_cancelled_before_it_has_begun_ends_at_once(tocsin_app: Tocsin, tmp_path: Path) -> None:
    """A signal that comes before it does is not lost."""
    program = make(tmp_path, STAYS)
    for n in range(20):
        await tocsin_app.enqueue(Subprocess([program], timeout=0.001 * (n + 1)), id=f"{n}")
    began = monotonic()
    await run_until_idle(tocsin_app)
    assert [run.outcome async for run in tocsin_app.runs()] == ["dead"] * 20
    assert {run.told["code"] async for run in tocsin_app.runs()} == {-15}
    assert monotonic() - began < 20


async def test_a_supervisor_that_is_killed_takes_its_program_along(
    tocsin_app: Tocsin, worker: Worker, tmp_path: Path
) -> None:
    program = make(tmp_path, 'note("supervisor", os.getppid())\n' + STAYS)
    handle = await tocsin_app.enqueue(Subprocess([program]), id="a")
    supervisor, pid = await pids_of(tmp_path, "supervisor", "pid")
    os.kill(supervisor, signal.SIGKILL)
    await gone(pid)

    async def is_dead() -> bool:
        return await handle.status() == "failed"

    await eventually(is_dead, "the run has failed", within=30)
    job = await tocsin_app.get("a")
    assert job is not None
    assert job.failure is not None
    assert "the process that watches over" in job.failure.error


HOLDS_THE_PIPE = """
import os, subprocess, sys
from tocsin.targets.subprocess import supervisor
program = os.fsencode(sys.argv[1])
order = supervisor.StartOrder(
    worker=os.getpid(), head=0, tail=0, cwd=b"", file=program, argv=[program], env=[]
)
command = [sys.executable, "-I", "-S", supervisor.__file__]
started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
started.stdin.write(supervisor.pack_order(order))
started.stdin.flush()
if os.fork():
    sys.stdin.read(1)
    os.kill(os.getpid(), 9)
os.close(0)
os.read(int(sys.argv[2]), 1)
"""


async def test_a_process_that_a_worker_forked_does_not_keep_its_programs_alive(tmp_path: Path) -> None:
    """It has the worker's end of the pipe, and goes on when the worker is killed."""
    program = make(tmp_path, STAYS)
    until_then, end = os.pipe()
    command = [sys.executable, "-c", HOLDS_THE_PIPE, program, str(until_then)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[until_then]) as worker:
        pids = await pids_of(tmp_path, "pid")
        assert worker.stdin is not None
        worker.stdin.close()
        await gone(*pids)
    os.close(end)
    os.close(until_then)


# Workers that are processes


@pytest.fixture
async def fleet(valkey: Server, tmp_path: Path) -> AsyncIterator[Fleet]:
    folder = tmp_path / "fleet"
    folder.mkdir()
    async with Fleet(valkey.url, folder) as fleet:
        yield fleet


async def test_no_program_of_a_killed_worker_runs_beside_the_next_attempt(fleet: Fleet, tmp_path: Path) -> None:
    reach = {"programs": {f"{tmp_path}/*": []}}
    first = fleet.launch(reach=reach)
    body = """
with open(f"{HERE}/starts", "a") as file:
    print(os.environ["TOCSIN_RUN"], os.environ["TOCSIN_IDEMPOTENCY_KEY"], os.environ["TOCSIN_ATTEMPT"], file=file)
if os.path.exists(f"{HERE}/again"):
    left = [name for name in ("pid", "near", "far") if os.path.exists(f"/proc/{open(f'{HERE}/{name}').read()}")]
    note("left", left)
    sys.exit(0)
"""
    program = make(tmp_path, body + DEAF + CHILDREN + STAYS)
    await eventually(first.is_ready, "the worker is ready", within=30)
    await fleet.app.enqueue(Subprocess([program]), id="a", keep=0)
    pids = await pids_of(tmp_path, "pid", "near", "far")
    (tmp_path / "again").touch()
    await fleet.start(reach=reach)
    first.kill()
    # Long before anybody can know that its worker is dead.
    await gone(*pids, within=1)
    await fleet.all_done(within=30)
    assert await noted(tmp_path, "left") == "[]"
    starts = (tmp_path / "starts").read_text().splitlines()
    assert len(starts) == 2
    assert len(set(starts)) == 1


async def test_a_signal_for_the_whole_group_of_the_worker_is_not_for_its_programs(fleet: Fleet, tmp_path: Path) -> None:
    """Ctrl-C on a terminal: the worker lets its program end within the grace period."""
    member = fleet.launch(reach={"programs": {f"{tmp_path}/*": []}}, grace=20)
    program = make(tmp_path, 'note("pid", os.getpid())\nwhile not os.path.exists(f"{HERE}/gate"): time.sleep(0.01)\n')
    await eventually(member.is_ready, "the worker is ready", within=30)
    await fleet.app.enqueue(Subprocess([program]), id="a", keep=0)
    [pid] = await pids_of(tmp_path, "pid")
    assert os.getpgid(pid) != os.getpgid(member.pid)
    member.send(signal.SIGINT)
    await eventually(lambda: "claiming nothing more" in fleet.log(), "it has understood", within=30)
    await asyncio.sleep(0)
    (tmp_path / "gate").touch()
    assert await member.ended(within=10) == 0
    assert await fleet.count("succeeded") == 1
