"""Several worker processes: started, told to stop, and replaced when they die."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tocsin.cli.printing import wait
from tocsin.model.clock import monotonic
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.cli")

# Between the death of a process and the start of its successor; back to the shortest after a healthy life.
SHORTEST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
HEALTHY_S = 60.0
# Beyond the grace period a process may need this long to write down what it did.
LEAVE_S = 30.0
# Tells a tied process to hurry; SIGTERM only tells it to stop, however often it comes.
HURRY = signal.SIGUSR1


async def spawn(
    arguments: Sequence[str], output: Path | None = None, env: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """The command line again, in a process group of its own (Ctrl-C is for us to pass on), its stdin in our hand."""
    sink = None if output is None else output.open("ab")
    with contextlib.closing(sink) if sink else contextlib.nullcontext():
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tocsin.cli", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            process_group=0,
            env=env,
        )


async def end(process: asyncio.subprocess.Process, patience_s: float, hurry: asyncio.Event | None = None) -> int:
    """Tell it to stop and wait for its end; past our patience it is killed. Its exit code."""
    _tell(process, signal.SIGTERM)
    ending = asyncio.ensure_future(process.wait())
    hastening = asyncio.ensure_future((hurry or asyncio.Event()).wait())
    try:
        await asyncio.wait([ending, hastening], timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if hastening.done():
            _tell(process, HURRY)
            await asyncio.wait([ending], timeout=LEAVE_S)
        if not ending.done():
            log.error("worker process does not end: killing it", pid=process.pid)
            _tell(process, signal.SIGKILL)
        return await ending
    finally:
        hastening.cancel()


def _tell(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


class WorkerProcesses:
    """A fixed number of worker processes."""

    def __init__(self, size: int, arguments: Sequence[str], grace_s: float) -> None:
        self._size = size
        self._arguments = arguments
        self._patience_s = grace_s + LEAVE_S

    async def work(self, stop: asyncio.Event, hurry: asyncio.Event) -> int:
        """Until `stop`. 0 if all processes then ended cleanly, else 1."""
        clean = await asyncio.gather(*(self._keep(place, stop, hurry) for place in range(1, self._size + 1)))
        return 0 if all(clean) else 1

    async def _keep(self, place: int, stop: asyncio.Event, hurry: asyncio.Event) -> bool:
        """One place in the crew, always taken."""
        pause = SHORTEST_PAUSE_S
        while True:
            process, started = await spawn(self._arguments), monotonic()
            log.info("worker process started", place=place, pid=process.pid)
            if await self._until_dead_or_stopped(process, stop):
                # One that was told so before it could listen has done nothing yet.
                return await end(process, self._patience_s, hurry) in (0, -signal.SIGTERM, -HURRY)
            if monotonic() - started > HEALTHY_S:
                pause = SHORTEST_PAUSE_S
            log.warning("worker process died, starting another", place=place, code=process.returncode, in_s=pause)
            if await wait(stop, pause):
                return True
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _until_dead_or_stopped(self, process: asyncio.subprocess.Process, stop: asyncio.Event) -> bool:
        """Whether it still lived when we were told to stop."""
        dying, stopping = asyncio.ensure_future(process.wait()), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([dying, stopping], return_when=asyncio.FIRST_COMPLETED)
            return not dying.done()
        finally:
            dying.cancel()
            stopping.cancel()
