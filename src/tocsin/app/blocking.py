"""The calls of the app, blocking, for Django, Flask and scripts. They run on an event loop in a thread of their own."""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol

from tocsin.app.handle import Handle


class Openable(Protocol):
    """An app."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


class BlockingApp:
    """`app.sync.enqueue(...)` is `await app.enqueue(...)` without the await. The handles that it returns block too."""

    def __init__(self, make: Callable[[], Openable]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._app: Openable | None = None
        self._inherited: list[object] = []
        os.register_at_fork(after_in_child=functools.partial(_start_over, weakref.ref(self)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._blocking(getattr(self._opened(), name))

    def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """`await work(app)` on that thread, for work that takes several calls."""
        return self._plain(work(self._opened()))

    def close(self) -> None:
        """End the thread and the connections. The next call opens them again."""
        with self._lock:
            if self._app is not None:
                self._wait(self._app.close())
                self._app = None
                self._end_loop()

    def _opened(self) -> Openable:
        with self._lock:
            if self._app is None:
                self._begin_loop()
                app = self._make()
                try:
                    self._wait(app.open())
                except BaseException:
                    self._end_loop()
                    raise
                self._app = app
                atexit.register(self.close)
            return self._app

    def _begin_loop(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name="tocsin sync", daemon=True)
        self._thread.start()

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None
        atexit.unregister(self.close)

    def _blocking(self, thing: Any) -> Any:
        if not callable(thing):
            return thing

        @functools.wraps(thing)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._plain(thing(*args, **kwargs))

        return call

    def _plain(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            return self._plain(self._wait(value))
        if inspect.isasyncgen(value):
            return self._iterate(value)
        return BlockingHandle(value, self._plain) if isinstance(value, Handle) else value

    def _wait(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        assert self._loop is not None
        if threading.current_thread() is self._thread:
            awaitable.close()
            raise RuntimeError("app.sync was called from inside its own event loop: use the async call there")
        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    def _iterate(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield self._wait(anext(values))
            except StopAsyncIteration:
                return


def _start_over(sync: weakref.ref[BlockingApp]) -> None:
    """Called in a forked child, for example of a pre-forking web server. The thread and the connections belong to the
    parent; keeping a reference to them prevents the child from closing them."""
    here = sync()
    if here is not None:
        here._inherited += [here._loop, here._app]
        here._lock = threading.Lock()
        here._loop = here._thread = here._app = None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then close all that belongs to it."""
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


class BlockingHandle:
    """A handle whose calls block."""

    def __init__(self, handle: Handle, plain: Callable[[Any], Any]) -> None:
        self.id = handle.id
        self.new = handle.new
        self._handle = handle
        self._plain = plain

    @property
    def queue(self) -> str | None:
        return self._handle.queue

    def status(self) -> str:
        return str(self._plain(self._handle.status()))

    def result(self, timeout: Any = None) -> Any:
        return self._plain(self._handle.result(timeout))

    def cancel(self) -> bool:
        return bool(self._plain(self._handle.cancel()))
