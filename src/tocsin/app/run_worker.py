"""A worker in this process, from start to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tocsin.engine.loop import end
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument, StoreUnavailable
from tocsin.telemetry.logs import get_logger
from tocsin.worker import Worker

if TYPE_CHECKING:
    from tocsin.app.tocsin import Tocsin

log = get_logger("tocsin.worker")


async def serve(
    app: Tocsin,
    queues: Iterable[str] | Mapping[str, int] | None,
    concurrency: int | None,
    until: str,
    grace: Duration,
    shard: Callable[[str], bool] | None = None,
    *,
    signals: bool = False,
) -> None:
    """Work until it is cancelled, or with `signals` until a signal; with until="idle", while there is work to do."""
    if until not in ("stopped", "idle"):
        raise InvalidArgument(f"until must be 'stopped' or 'idle', not {until!r}")
    if concurrency is not None and (not isinstance(concurrency, int) or isinstance(concurrency, bool)):
        raise InvalidArgument(f"concurrency must be a whole number, 0 for no bound, not {concurrency!r}")
    wait = seconds(grace, "grace")
    stop, hurry = asyncio.Event(), asyncio.Event()
    with caught(stop, hurry) if signals else contextlib.nullcontext():
        worker = await app.worker(queues=queues, concurrency=concurrency, shard=shard)
        waiting: list[asyncio.Task[Any]] = []
        try:
            await worker.start()
            waiting.append(asyncio.create_task(stop.wait()))
            if until == "idle":
                waiting.append(asyncio.create_task(_idle(worker)))
            _notice_cancellation()
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also when this task is cancelled: the stop must not be.
            await asyncio.shield(asyncio.ensure_future(_stop(worker, waiting, wait, hurry)))


def _notice_cancellation() -> None:
    """While we started it may have been swallowed, as `end` tells."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _stop(worker: Worker, waiting: list[asyncio.Task[Any]], grace: float, hurry: asyncio.Event) -> None:
    await end(*waiting)
    await worker.stop(grace, hurry)


async def _idle(worker: Worker) -> None:
    """Until there is nothing left to do. A server that is away for long says nothing about that."""
    while True:
        try:
            return await worker.wait_until_idle()
        except StoreUnavailable:
            await asyncio.sleep(0.1)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Also SIGHUP, which a closed terminal sends and which would end the process at once; but not under `nohup`, which
    asks to ignore it."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if hangs_up else (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def caught(stop: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP stop; the second hurries. Only where they can be caught: in the main thread.
    Afterwards they do again what they did before, which the signal handlers of an event loop would not let us
    restore."""

    def obey(name: str) -> None:
        if stop.is_set():
            log.warning("hurrying", signal=name)
            hurry.set()
        else:
            log.info("stopping: running jobs may end within the grace period, a second signal hurries", signal=name)
            stop.set()

    def catch(number: int, _: object) -> None:
        # Between two instructions of whatever runs: the loop is to do it in its turn.
        loop.call_soon_threadsafe(obey, signal.Signals(number).name)

    loop = asyncio.get_running_loop()
    numbers = stop_signals() if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, catch) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was set outside Python, and nobody can set it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
