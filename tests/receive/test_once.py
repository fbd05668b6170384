"""Once: one effect for a key, and its answer for everybody, in each memory."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.support.once_work import KEY, OnceMaker, Work, tried
from tocsin.model.clock import monotonic
from tocsin.receive import KeyReused, Once, StillRunning, TurnLost


@pytest.mark.parametrize(
    "answer",
    [b"\x00\xff", b"", {"id": 7, "names": ["ø", None]}, [], "text", 1.5, True, None],
    ids=lambda answer: type(answer).__name__ + str(len(str(answer))),
)
async def test_a_repeated_key_gets_the_first_answer(once, answer):
    work = Work(answer)
    assert await once(KEY, work.quickly) == answer
    assert await once(KEY, work.quickly) == answer
    assert work.effects == 1


async def test_the_first_caller_gets_what_the_others_get(once):
    assert await once(KEY, Work((1, 2)).quickly) == [1, 2]
    assert await once(KEY, Work().quickly) == [1, 2]


async def test_other_keys_and_other_names_are_nothing_to_it(once, where):
    work = Work()
    assert [await once(key, work.quickly) for key in ("a", "b", "a ", "A")] == [1, 2, 3, 4]
    async with Once(where, name="another") as another:
        assert await another("a", work.quickly) == 5


async def test_of_fifty_callers_one_does_the_work_and_all_get_its_answer(once):
    work = Work()
    callers = [asyncio.create_task(once(KEY, work.slowly, wait="30s")) for _ in range(50)]
    await work.started.wait()
    work.go_on.set()
    assert await asyncio.gather(*callers) == [1] * 50
    assert work.effects == 1


async def test_who_does_not_wait_is_told_to_come_again(once):
    work = Work()
    first = asyncio.create_task(once(KEY, work.slowly))
    await work.started.wait()
    with pytest.raises(StillRunning, match="still at work: try again in") as told:
        await once(KEY, work.quickly)
    assert 0 < told.value.retry_after_s <= 30
    assert told.value.key == KEY
    with pytest.raises(StillRunning):
        await once(KEY, work.quickly, wait="50ms")
    work.go_on.set()
    assert await first == 1
    assert await once(KEY, work.quickly) == 1


async def test_a_failure_frees_the_key(once):
    work = Work(ValueError("no"), "done")
    with pytest.raises(ValueError, match="no"):
        await once(KEY, work.quickly)
    assert await once(KEY, work.quickly) == "done"
    assert await once(KEY, work.quickly) == "done"
    assert work.effects == 2


async def test_who_waits_for_one_that_fails_does_the_work(once):
    failing, waiting = Work(ValueError("no")), Work("done")
    first = asyncio.create_task(once(KEY, failing.slowly))
    await failing.started.wait()
    second = asyncio.create_task(once(KEY, waiting.quickly, wait="20s"))
    failing.go_on.set()
    with pytest.raises(ValueError, match="no"):
        await first
    assert await second == "done"


async def test_who_is_cancelled_frees_the_key(once):
    work = Work()
    first = asyncio.create_task(once(KEY, work.slowly))
    await work.started.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await once(KEY, work.quickly) == 1


async def test_an_answer_that_cannot_be_remembered_is_a_failure(once):
    with pytest.raises(ValueError, match="bytes or a JSON value"):
        await once(KEY, Work(object()).quickly)
    assert await once(KEY, Work("done").quickly) == "done"


async def test_the_same_key_for_something_else_is_refused(once):
    work = Work()
    first = asyncio.create_task(once(KEY, work.slowly, digest=b"this"))
    await work.started.wait()
    async with asyncio.timeout(20):
        with pytest.raises(KeyReused, match="came with another request"):
            # There is nothing to wait for.
            await once(KEY, work.quickly, wait="1h", digest=b"that")
    work.go_on.set()
    await first
    with pytest.raises(KeyReused):
        await once(KEY, work.quickly, digest=b"that")
    assert await once(KEY, work.quickly, digest=b"this") == 1


async def test_an_answer_is_forgotten_when_its_keep_is_over(make_once):
    once, work = make_once(keep="200ms", lease="200ms"), Work()
    async with asyncio.timeout(20):
        while await once(KEY, work.quickly) == 1:
            await asyncio.sleep(0.01)
    assert work.effects == 2


async def test_a_lease_is_renewed_while_the_work_goes_on(make_once: OnceMaker):
    # On a busy machine the loop itself may come late: not by a second.
    once, work = make_once(lease="1500ms"), Work()
    first = asyncio.create_task(once(KEY, work.slowly))
    await work.started.wait()
    renewed, before = 0, 2.0
    async with asyncio.timeout(20):
        while renewed < 3:
            with pytest.raises(StillRunning) as told:
                await once(KEY, work.quickly)
            renewed += told.value.retry_after_s > before
            before = told.value.retry_after_s
            await asyncio.sleep(0.01)
    work.go_on.set()
    assert await first == 1


class Stalled:
    """Work that keeps its event loop from turning, so that nothing is renewed, until another has come."""

    def __init__(self, make_once: OnceMaker, *, other_ends: bool) -> None:
        self._make_once = make_once
        self._other_ends = other_ends
        self.other_answered = threading.Event()
        self._other_runs = threading.Event()
        self.let_other_end = threading.Event()

    async def __call__(self) -> str:
        self.other = threading.Thread(target=lambda: asyncio.run(self._another()))
        self.other.start()
        waited_for = self.other_answered if self._other_ends else self._other_runs
        assert waited_for.wait(20)
        return "mine"

    async def _another(self) -> None:
        once = self._make_once(lease="20s")
        assert await tried(once, KEY, self._others_work) == "the other's"
        self.other_answered.set()
        await once.close()

    async def _others_work(self) -> str:
        self._other_runs.set()
        while not self._other_ends and not self.let_other_end.is_set():
            await asyncio.sleep(0.01)
        return "the other's"


@pytest.mark.parametrize("other_ends", [True, False], ids=["answered", "running"])
async def test_who_lost_the_turn_cannot_overwrite_the_answer_and_is_told(make_once, other_ends, caplog):
    stalled = Stalled(make_once, other_ends=other_ends)
    once = make_once(lease="100ms")
    with pytest.raises(TurnLost, match="was lost to another, so this answer was not remembered"):
        await once(KEY, stalled)
    if not other_ends:
        with pytest.raises(StillRunning):
            await once(KEY, Work().quickly)
    stalled.let_other_end.set()
    await asyncio.to_thread(stalled.other.join)
    assert await once(KEY, Work().quickly) == "the other's"


async def test_who_lost_the_turn_and_failed_does_not_free_the_turn_of_the_other(make_once):
    stalled = Stalled(make_once, other_ends=False)

    async def fails() -> None:
        await stalled()
        raise ValueError("no")

    once = make_once(lease="100ms")
    with pytest.raises(ValueError, match="no"):
        await once(KEY, fails)
    with pytest.raises(StillRunning):
        await once(KEY, Work().quickly)
    stalled.let_other_end.set()
    await asyncio.to_thread(stalled.other.join)


async def test_a_lease_that_was_over_does_no_harm_if_nobody_came(make_once):
    once, work = make_once(lease="100ms"), Work("done")

    async def stalls() -> Any:
        until = monotonic() + 0.3
        while monotonic() < until:
            threading.Event().wait(0.01)
        return await work.quickly()

    assert await once(KEY, stalls) == "done"
    assert await once(KEY, work.quickly) == "done"


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", "a\x00b", "\ud800", None, b"key"], ids=repr)
async def test_a_key_that_is_none_is_refused(once, key):
    work = Work()
    with pytest.raises(ValueError, match="1 to 255 printable characters"):
        await once(key, work.quickly)
    assert work.effects == 0


@pytest.mark.parametrize("key", ["x" * 255, "{a}", "}{", "a b", "ø😀", "'; DROP TABLE x; --", "%s:{}", "*"])
async def test_a_key_may_have_odd_characters(once, key):
    work = Work()
    assert [await once(key, work.quickly), await once(key, work.quickly)] == [1, 1]


async def test_what_was_called_too_early_is_refused(once):
    coroutine = Work().quickly()
    with pytest.raises(ValueError, match="pass the function"):
        await once(KEY, coroutine)
    coroutine.close()


async def test_who_is_cancelled_when_the_work_is_done_has_done_it(once):
    work = Work("done")

    async def ends_in_cancellation() -> Any:
        asyncio.current_task().cancel()
        return await work.quickly()

    first = asyncio.create_task(once(KEY, ends_in_cancellation))
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await tried(once, KEY, work.quickly) == "done"
    assert work.effects == 1
