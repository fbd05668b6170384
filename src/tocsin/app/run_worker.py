"""Builds a worker for this process and runs it, from its start to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from tocsin.app.agents import Agents
from tocsin.app.declarations import Declarations
from tocsin.engine.loop import end
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument, StoreUnavailable
from tocsin.model.queue import AGENTS_QUEUE, check_shares
from tocsin.store.store import Store
from tocsin.store.transitions.queue_settings import open_and_declare
from tocsin.telemetry.logs import get_logger
from tocsin.worker import Worker, WorkerSettings

log = get_logger("tocsin.worker")


async def build_worker(
    store: Store,
    declarations: Declarations,
    agents: Agents,
    settings: WorkerSettings,
    queues: Iterable[str] | Mapping[str, int] | None,
    concurrency: int | None,
) -> Worker:
    """Open the queues and register the agents. The worker is not started yet."""
    if concurrency is not None:
        if not isinstance(concurrency, int) or isinstance(concurrency, bool):
            raise InvalidArgument(f"concurrency must be a whole number, 0 for no bound, not {concurrency!r}")
        settings = replace(settings, concurrency=concurrency)
    if isinstance(queues, Mapping):
        settings = replace(settings, weights=check_shares(queues))
    names = list(declarations.queues) if queues is None else list(queues)
    if not declarations.agents and queues is None:
        names.remove(AGENTS_QUEUE)
    opened = [await open_and_declare(store, declarations.known_queue(name)) for name in names]
    worker = Worker(
        store,
        opened,
        declarations.catalog,
        settings,
        agents=agents.puts,
        classifier=declarations.classifier,
        failure_hooks=declarations.failure_hooks,
    )
    if worker.reconciler is not None:
        await worker.reconciler.register()
    return worker


async def run_worker(
    build: Callable[[], Awaitable[Worker]], until: str, grace: Duration, *, signals: bool = False
) -> None:
    """Work until cancelled, with `signals` also until a signal; with until="idle" until no work is left."""
    if until not in ("stopped", "idle"):
        raise InvalidArgument(f"until must be 'stopped' or 'idle', not {until!r}")
    wait = seconds(grace, "grace")
    stop, hurry = asyncio.Event(), asyncio.Event()
    with caught(stop, hurry) if signals else contextlib.nullcontext():
        worker = await build()
        waiting: list[asyncio.Task[Any]] = []
        try:
            await worker.start()
            waiting.append(asyncio.create_task(stop.wait()))
            if until == "idle":
                waiting.append(asyncio.create_task(_idle(worker)))
            _notice_cancellation()
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Shielded: if this task is cancelled, the stop goes on all the same.
            await asyncio.shield(asyncio.ensure_future(_stop(worker, waiting, wait, hurry)))


def _notice_cancellation() -> None:
    """Raise a cancellation that was swallowed while the worker started; `end` says how that happens."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _stop(worker: Worker, waiting: list[asyncio.Task[Any]], grace: float, hurry: asyncio.Event) -> None:
    await end(*waiting)
    await worker.stop(grace, hurry)


async def _idle(worker: Worker) -> None:
    """Return when no work is left. While the server is away we cannot know, so ask again."""
    while True:
        try:
            return await worker.wait_until_idle()
        except StoreUnavailable:
            await asyncio.sleep(0.1)


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM and SIGINT; also SIGHUP, which a closed terminal sends and which would end the process at once. Under
    `nohup` SIGHUP stays ignored, as its user wants."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if hangs_up else (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def caught(stop: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    """Within this context the first SIGTERM, SIGINT or SIGHUP sets `stop`, the second sets `hurry`. Signals can be
    caught in the main thread only. Afterwards they do what they did before; the signal handlers of an event loop would
    not let us restore that."""

    def obey(name: str) -> None:
        if stop.is_set():
            log.warning("hurrying", signal=name)
            hurry.set()
        else:
            log.info("stopping: running jobs may end within the grace period, a second signal hurries", signal=name)
            stop.set()

    def catch(number: int, _: object) -> None:
        # A signal handler runs between two instructions of any code. So leave the work to the event loop.
        loop.call_soon_threadsafe(obey, signal.Signals(number).name)

    loop = asyncio.get_running_loop()
    numbers = stop_signals() if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, catch) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was set outside Python, so Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
