"""Whatever a handler returns or raises, its run ends, and the worker goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import run_dry
from tocsin import ResultLost, RunFailed


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def recursive() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class Mute:
    def __str__(self) -> str:
        raise ValueError("nobody shows me")

    __repr__ = __str__


class Lying(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


@dataclasses.dataclass
class Shy:
    a: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "a":
            raise RuntimeError("not for you")
        return object.__getattribute__(self, name)


RESULTS: dict[str, tuple[Callable[[], Any], Any]] = {
    "nested": (lambda: nested(10_000), ResultLost),
    "nested a little": (lambda: nested(65), ResultLost),
    "recursive": (recursive, ResultLost),
    "a huge number": (lambda: 10**5000, ResultLost),
    "not a number": (lambda: math.nan, math.nan),
    "infinite": (lambda: -math.inf, -math.inf),
    "half a character": (lambda: "\ud800", ResultLost),
    "half a character in a key": (lambda: {"\udfff": 1}, ResultLost),
    "an object": (object, ResultLost),
    "an object that cannot be shown": (Mute, ResultLost),
    "a class": (lambda: Mute, ResultLost),
    "a dataclass that raises": (Shy, Any),
    "a dict that raises": (lambda: Lying(a=1), Any),
    "a generator": (lambda: (n for n in range(3)), ResultLost),
    "a coroutine that nobody awaits": (lambda: asyncio.Future, ResultLost),
    "large": (lambda: b"x" * 10_000_000, ResultLost),
    "an exception": (lambda: ValueError("returned"), ResultLost),
    "many keys": (lambda: {n: str(n) for n in range(1000)}, Any),
}


@pytest.mark.parametrize("what", RESULTS)
async def test_a_result_that_cannot_be_kept_is_lost_and_its_run_has_succeeded(tocsin_app, make_worker, what):
    make, expected = RESULTS[what]
    ran = []

    @tocsin_app.job
    async def odd():
        return make()

    @tocsin_app.job
    async def innocent(n):
        ran.append(n)

    worker = await make_worker()
    handle = await tocsin_app.enqueue(odd)
    await tocsin_app.enqueue_many(innocent, [(n,) for n in range(20)])
    with capture_logs() as logs:
        await run_dry(worker)
    assert sorted(ran) == list(range(20))
    assert await handle.status() == "succeeded"
    if expected is ResultLost:
        with pytest.raises(ResultLost):
            await handle.result("1s")
    elif expected is not Any:
        assert repr(await handle.result("1s")) == repr(expected)
    assert [line for line in logs if line["log_level"] == "error"] == []


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("nobody shows me")

    __repr__ = __str__


class FatalToShow(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Odd(Exception):
    __slots__ = ()

    @property
    def status_code(self) -> Any:
        raise RuntimeError("no status")

    @property
    def response(self) -> Any:
        return self


def chain(length: int) -> Exception:
    error: Exception = ValueError("first")
    for n in range(length):
        following = ValueError(f"number {n}")
        following.__cause__ = error
        error = following
    return error


def circle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    return first


def groups(depth: int) -> Exception:
    error: Exception = ValueError("inside")
    for _ in range(depth):
        error = ExceptionGroup("group", [error])
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "cannot be shown": MuteError,
    "ends the process when it is shown": FatalToShow,
    "100 MB": lambda: ValueError("x" * 100_000_000),
    "100 MB of what is not one byte each": lambda: ValueError("\N{SNOWMAN}" * 50_000_000),
    "half a character": lambda: ValueError("\ud800 \udfff"),
    "control characters": lambda: ValueError("\x1b[2J\0\r\n"),
    "many arguments": lambda: ValueError(*range(100_000)),
    "nested arguments": lambda: ValueError(nested(10_000)),
    "recursive arguments": lambda: ValueError(recursive()),
    "attributes that raise": Odd,
    "a long chain": lambda: chain(3000),
    "a circle": circle,
    "deep groups": lambda: groups(900),
    "wide groups": lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(20_000)]),
    "recursion": lambda: RecursionError("maximum recursion depth exceeded"),
    "memory": lambda: MemoryError(),
    "stop": lambda: StopIteration(3),
    "stop of an iteration": lambda: StopAsyncIteration(),
    "the end of a generator": lambda: GeneratorExit(),
    "a cancellation of its own": lambda: asyncio.CancelledError(),
}


@pytest.mark.parametrize("what", ERRORS)
async def test_an_error_that_cannot_be_shown_fails_its_run_and_no_other(tocsin_app, make_worker, what):
    ran = []

    @tocsin_app.job
    async def odd():
        raise ERRORS[what]()

    @tocsin_app.job
    async def innocent(n):
        ran.append(n)

    worker = await make_worker()
    handle = await tocsin_app.enqueue(odd)
    await tocsin_app.enqueue_many(innocent, [(n,) for n in range(20)])
    with capture_logs() as logs:
        await run_dry(worker)
    assert sorted(ran) == list(range(20))
    assert await handle.status() == "failed"
    with pytest.raises(RunFailed) as failed:
        await handle.result("1s")
    assert len(str(failed.value)) <= 1000
    assert len(failed.value.traceback) <= 4000
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["run failed, its job is dead"]


async def test_a_batch_may_hold_odd_outcomes_of_all_kinds(tocsin_app, make_worker):
    outcomes = [nested(10_000), MuteError(), FatalToShow(), Mute(), "\ud800", None]

    @tocsin_app.job(batch=10)
    async def batch(runs):
        return outcomes

    worker = await make_worker()
    handles = [await tocsin_app.enqueue(batch, id=f"{n}") for n in range(len(outcomes))]
    await run_dry(worker)
    assert sorted([await handle.status() for handle in handles]) == ["failed"] * 2 + ["succeeded"] * 4
