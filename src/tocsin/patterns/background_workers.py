"""Workers on a thread and an event loop of their own, with a blocking start and a blocking stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from tocsin.app import Tocsin
from tocsin.model.clock import monotonic
from tocsin.model.errors import TocsinError
from tocsin.telemetry.logs import get_logger
from tocsin.worker import Worker

log = get_logger("tocsin.background")

# How long a stop can take beyond its timeout, in seconds: for runs to react to their cancellation, for handing them
# over, and, if the thread still does not end because the server is away, until it is left behind.
CANCEL_S = 0.25
HAND_OVER_S = 0.4
ABANDON_S = 0.05


class BackgroundWorkers:
    """Starts and ends once. It opens an app of its own on the thread, because connections belong to one event loop."""

    def __init__(
        self,
        name: str,
        app: Tocsin,
        build: Callable[[Tocsin], Awaitable[list[Worker]]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_failure` is called on the thread when the workers end because of an error."""
        self._app = app
        self._build = build
        self._on_failure = on_failure
        self._began: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"tocsin {name}", daemon=True)
        self._grace = 0.0
        self._handed_over = 0
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Return when the workers work. Raises what kept them from it; then the thread has ended."""
        self._thread.start()
        self._began.result()

    def refuse_own_thread(self) -> None:
        """Raise TocsinError on the workers' own thread: it would wait for itself."""
        if threading.current_thread() is self._thread:
            raise TocsinError("a handler cannot stop the scheduler that runs it: stop it from another thread")

    def end(self, timeout: float) -> bool:
        """Let runs end within the timeout and hand over the rest. False if something had to be cut off."""
        deadline = monotonic() + timeout + CANCEL_S + HAND_OVER_S
        self._grace = timeout
        self._call_soon(self._over.set)
        self._thread.join(deadline - monotonic())
        if self._thread.is_alive():
            self._call_soon(self._task.cancel)
            self._thread.join(ABANDON_S)
            return False
        return not self._handed_over and self._error is None

    def fail(self, error: BaseException) -> None:
        """End the workers because of an error that a retry cannot mend. Called on their event loop."""
        self._error = self._error or error
        self._over.set()

    def _call_soon(self, what: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            log.debug("the workers have ended already")

    # On the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except asyncio.CancelledError:
            log.warning("workers were cut off: their runs are recovered when their heartbeat is seen to stand still")
        except BaseException as error:
            self._error = error
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        if self._began.done():
            self._on_failure(error)
        else:
            self._began.set_exception(error)

    async def _work(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        async with self._app.with_same_declarations() as app:
            workers: list[Worker] = []
            try:
                workers += await self._build(app)
                for worker in workers:
                    await worker.start()
                self._began.set_result(None)
                await self._over.wait()
                if self._error is not None:
                    raise self._error
                ended = await asyncio.gather(*(worker.stop(self._grace, cancel_s=CANCEL_S) for worker in workers))
                self._handed_over = sum(ended)
            except BaseException:
                await asyncio.gather(*(worker.kill() for worker in workers))
                raise
