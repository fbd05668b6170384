"""Start several worker processes, replace them when they die, and stop them."""

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

# The pause before a dead process is replaced doubles with each death. It is back at the shortest once a process has
# lived for HEALTHY_S.
SHORTEST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
HEALTHY_S = 60.0
# After the grace period, a process may need this long to write its outcomes.
LEAVE_S = 30.0
# Makes a tied process end without waiting for its grace period. SIGTERM only stops it, however often it comes.
HURRY = signal.SIGUSR1


async def spawn(
    arguments: Sequence[str], output: Path | None = None, env: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Run a `tocsin` command as a child process.

    It has a process group of its own, so that Ctrl-C in the terminal reaches only us: we pass the signal on. Its stdin
    is a pipe from us, which closes when we die.
    """
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
    """Stop the process, kill it if it takes longer than `patience_s`, and return its exit code."""
    _send_signal(process, signal.SIGTERM)
    ending = asyncio.ensure_future(process.wait())
    hastening = asyncio.ensure_future((hurry or asyncio.Event()).wait())
    try:
        await asyncio.wait([ending, hastening], timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if hastening.done():
            _send_signal(process, HURRY)
            await asyncio.wait([ending], timeout=LEAVE_S)
        if not ending.done():
            log.error("worker process does not end: killing it", pid=process.pid)
            _send_signal(process, signal.SIGKILL)
        return await ending
    finally:
        hastening.cancel()


def _send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


class WorkerProcesses:
    """A fixed number of worker processes."""

    def __init__(self, size: int, arguments: Sequence[str], grace_s: float) -> None:
        self._size = size
        self._arguments = arguments
        self._patience_s = grace_s + LEAVE_S

    async def work(self, stop: asyncio.Event, hurry: asyncio.Event) -> int:
        """Keep the processes running until `stop`. Returns 0 if all of them then ended cleanly, else 1."""
        clean = await asyncio.gather(*(self._keep(place, stop, hurry) for place in range(1, self._size + 1)))
        return 0 if all(clean) else 1

    async def _keep(self, place: int, stop: asyncio.Event, hurry: asyncio.Event) -> bool:
        """Keep one of the processes running: replace it when it dies. Returns whether the last one ended cleanly."""
        pause = SHORTEST_PAUSE_S
        while True:
            process, started = await spawn(self._arguments), monotonic()
            log.info("worker process started", place=place, pid=process.pid)
            if await self._until_dead_or_stopped(process, stop):
                # A process that a signal ended had no handlers yet, so it had claimed no run: that is clean too.
                return await end(process, self._patience_s, hurry) in (0, -signal.SIGTERM, -HURRY)
            if monotonic() - started > HEALTHY_S:
                pause = SHORTEST_PAUSE_S
            log.warning("worker process died, starting another", place=place, code=process.returncode, in_s=pause)
            if await wait(stop, pause):
                return True
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _until_dead_or_stopped(self, process: asyncio.subprocess.Process, stop: asyncio.Event) -> bool:
        """Whether the process was still alive when `stop` was set."""
        dying, stopping = asyncio.ensure_future(process.wait()), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([dying, stopping], return_when=asyncio.FIRST_COMPLETED)
            return not dying.done()
        finally:
            dying.cancel()
            stopping.cancel()
