"""`tocsin demo`: an embedded server, worker processes, example jobs, and a killed worker whose runs are recovered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tocsin.cli.demo import jobs as demo_jobs
from tocsin.cli.demo.story import Story
from tocsin.cli.options import Given, WrongUsage
from tocsin.cli.printing import Listing, console, interruptible, local, print_json, wait
from tocsin.cli.processes import end, spawn
from tocsin.cli.queues import queue_listing
from tocsin.cli.workers import worker_listing
from tocsin.inspection.inspector import Inspector
from tocsin.model.clock import monotonic
from tocsin.model.errors import TocsinError, UnknownJob
from tocsin.model.job import Stage
from tocsin.store.views.events import PastRun

TARGET = "tocsin.cli.demo.jobs:app"
TICK_S = 0.25
FEED_S = 4.0
# When reports are enqueued, and when a worker that runs some of them is killed.
REPORTS_AT_S = 2.0
KILL_AT_S = 3.5
# Without a terminal the demo lasts LENGTH_S (about 20 s with start and end), or up to LONGEST_S until all was seen.
LENGTH_S = 16.0
LONGEST_S = 60.0
GRACE_S = 1.0
# How long the first two workers may take to start.
JOIN_S = 30.0


async def demo(
    *,
    seconds: Annotated[float | None, Parameter(validator=Number(gt=0), help="End after this long.")] = None,
    options: Given,
) -> int:
    """Run workers on an embedded server of their own and show agents, delays, retries, batches and recovery."""
    if options.where():
        raise WrongUsage("the demo brings its own server: leave out --url, --prefix and --hash-tag")
    quiet, live = options.json, sys.stdout.isatty() and not options.json
    length = seconds if seconds is not None else None if live else LENGTH_S
    with interruptible() as stop, tempfile.TemporaryDirectory(prefix="tocsin-demo-") as folder:
        show = DemoRun(Path(folder), quiet or live)
        async with show.opened():
            with show.on_screen() if live else contextlib.nullcontext():
                await show.run(stop, length, extend=seconds is None)
    summary = show.story.summary()
    if options.json:
        print_json({name: {"shown": shown, "what": what} for name, (shown, what) in summary.items()})
    else:
        for shown, what in summary.values():
            print(f"{'shown' if shown else 'not shown'}: {what}")
    missing = seconds is None and not live and not stop.is_set() and not all(shown for shown, _ in summary.values())
    return 1 if missing else 0


class DemoRun:
    """Starts workers, enqueues jobs and kills a worker. The story comes from the outcomes that the server recorded."""

    def __init__(self, folder: Path, quiet: bool) -> None:
        self.story = Story()
        self._folder = folder
        self._quiet = quiet
        self._app = demo_jobs.app.with_same_declarations(data=folder)
        self._workers: list[asyncio.subprocess.Process] = []
        self._live: Live | None = None
        self._reports = self._batches = 0
        self._seen: set[PastRun] = set()
        self._begun = monotonic()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Start the server and two workers, and end them all on exit."""
        async with self._app:
            self._inspector = Inspector(self._app.store)
            try:
                await self._start_workers(2)
                yield
            finally:
                await asyncio.gather(*(end(process, GRACE_S + 15) for process in self._workers))

    async def run(self, stop: asyncio.Event, length: float | None, extend: bool) -> None:
        """Run until `stop` or until `length` seconds are over; with `extend`, go on until everything was seen."""
        await self._until_joined(2, stop)
        self._begun, fed = monotonic(), -FEED_S
        while not stop.is_set():
            at = monotonic() - self._begun
            if at - fed >= FEED_S:
                fed = at
                await self._feed()
            if at >= REPORTS_AT_S and not self._reports:
                await self._enqueue_reports(8)
            if at >= KILL_AT_S and not self.story.victim:
                await self._kill_one()
            await self._look()
            if length is not None and at >= length and not (extend and at < LONGEST_S and self._unseen()):
                return
            await wait(stop, TICK_S)

    def _unseen(self) -> bool:
        return not all(shown for shown, _ in self.story.summary().values())

    # Workers

    async def _start_workers(self, count: int) -> None:
        arguments = ["worker", TARGET, "--grace", f"{GRACE_S}s", "--tied"]
        env = {name: value for name, value in os.environ.items() if name != "TOCSIN_URL"}
        env["TOCSIN_DATA"] = str(self._folder)
        for _ in range(count):
            self._workers.append(await spawn(arguments, self._log, env))

    @property
    def _log(self) -> Path:
        return self._folder / "workers.log"

    async def _until_joined(self, count: int, stop: asyncio.Event) -> None:
        give_up = monotonic() + JOIN_S
        while not stop.is_set() and len(await self._inspector.workers()) < count:
            if monotonic() > give_up or any(process.returncode is not None for process in self._workers):
                raise TocsinError(f"the demo's workers did not start:\n{self._log.read_text()[-2000:]}")
            await wait(stop, 0.05)
        self._print(self.story.joined(count, await self._inspector.now()))

    async def _kill_one(self) -> None:
        """Kill the worker that runs most reports, and start another."""
        working = [job async for job in self._app.jobs(queue="shop", stage=Stage.WORKING) if job.name == "report"]
        owners = Counter(job.owner for job in working if job.owner)
        pids = {worker.id: worker.about.pid for worker in await self._inspector.workers()}
        for owner, _ in owners.most_common(1):
            [victim] = [process for process in self._workers if process.pid == pids.get(owner)]
            held = {job.id for job in working if job.owner == owner}
            victim.kill()
            await victim.wait()
            self._print(self.story.killed(owner, held, await self._inspector.now()))
            await self._start_workers(1)

    # Jobs

    async def _feed(self) -> None:
        self._batches += 1
        number, app = self._batches, self._app
        await app.enqueue(demo_jobs.remind, "ada", id=f"reminder {number}", delay="3s")
        await app.enqueue(demo_jobs.order, "tea", id=f"order {number}")
        ids = [f"record {number}.{n}" for n in range(100)]
        await app.enqueue_many(demo_jobs.index, [() for _ in ids], ids=ids)
        if self._reports:
            await self._enqueue_reports(2)

    async def _enqueue_reports(self, count: int) -> None:
        for _ in range(count):
            self._reports += 1
            await self._app.enqueue(demo_jobs.report, self._reports, id=f"report {self._reports}")

    # Showing it

    async def _look(self) -> None:
        for line in self.story.add_runs(await self._ended()):
            self._print(line)
        await self._look_for_recovery()
        if not self.story.batch:
            self.story.batch = await self._batch_size()
        if self._live is not None:
            self._live.update(await self._screen(), refresh=True)

    async def _ended(self) -> list[PastRun]:
        """The attempts that ended since the last look, oldest first."""
        new: list[PastRun] = []
        for queue in ("agents", "shop"):
            walk: Any = self._app.runs(queue=queue)
            async with contextlib.aclosing(walk):
                async for run in walk:
                    if run in self._seen:
                        break
                    new.append(run)
        self._seen |= set(new)
        return sorted(new, key=lambda run: run.ended_ms)

    async def _look_for_recovery(self) -> None:
        if self.story.victim and not self.story.recovered_at:
            queues = {queue.name: queue for queue in await self._inspector.queues()}
            if queues["shop"].counters["recovered"]:
                self._print(self.story.recovered(await self._inspector.now()))

    async def _batch_size(self) -> int:
        """How many runs the handler that indexed the first record got in one call: it returned that number."""
        try:
            found = await self._inspector.find("record 1.0", "shop")
        except UnknownJob:
            return 0
        return int(found.outcome.result) if found.outcome else 0

    def _print(self, line: str) -> None:
        if not self._quiet:
            print(f"{monotonic() - self._begun:6.1f} s  {line}", flush=True)

    @contextlib.contextmanager
    def on_screen(self) -> Iterator[None]:
        with Live(console=console(), auto_refresh=False) as self._live:
            yield

    async def _screen(self) -> RenderableType:
        now = await self._inspector.now()
        tables: list[Listing] = [
            queue_listing(await self._inspector.queues()),
            worker_listing(await self._inspector.workers(), now),
            Listing(["time", "what happened"], [[local(at)[11:19], line] for at, line in self.story.recent]),
        ]
        summary = [f"{'✓' if shown else '·'} {what}" for shown, what in self.story.summary().values()]
        parts: list[RenderableType] = [Text("tocsin demo, on an embedded server; Ctrl-C ends it", style="bold")]
        for table in tables:
            parts += [Text(), table.table()]
        return Group(*parts, Text(), Text("\n".join(summary)))
