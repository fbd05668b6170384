"""For each script that changes a partition: a state in which it does change something, and the call that does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from tests.support.one_queue import Line
from tests.support.records import packed, packed_block, record
from tocsin.model.outcome import SUCCEEDED
from tocsin.store.scripts.script import orders_of, script, script_names
from tocsin.store.store import RESULTS_MAX
from tocsin.store.transitions.settle import (
    advance_item,
    bury_or_park_item,
    extra_run_item,
    finish_item,
    park_item,
    release_item,
    retry_item,
)

CALL = ["epoch", "clock", "session", "seq"]
Prepare = Callable[[Line], Awaitable[list[Any]]]

encode = msgspec.msgpack.encode


def changing_scripts() -> list[str]:
    """Those that belong to a session, so that they can be repeated."""
    return [name for name in script_names() if script(name, orders_of(name)[0]).args[:4] == CALL]


def in_each_order(names: Iterable[str]) -> list[tuple[str, str]]:
    """Each script with each order of a queue that it is for."""
    return [(name, order) for name in names for order in orders_of(name)]


async def _put(line: Line) -> list[Any]:
    return [packed("a", record(), line.now)]


async def _delete(line: Line) -> list[Any]:
    await line.put("a")
    return ["", encode(["a"])]


async def _pause(line: Line) -> list[Any]:
    await line.put("a")
    return ["a"]


async def _resume(line: Line) -> list[Any]:
    await line.put("a")
    await line.pause("a")
    return ["a", 0, 0]


async def _cancel(line: Line) -> list[Any]:
    await line.put("a", keep=60)
    return ["a", 0, RESULTS_MAX]


async def _fire(line: Line) -> list[Any]:
    await line.put("a", 1000, every=1)
    return ["a", encode([0, line.now - 5])]


async def _revive(line: Line) -> list[Any]:
    await line.put("a")
    await line.bury(await line.take("a"))
    return [encode(["a"])]


async def _unpark(line: Line) -> list[Any]:
    await line.put("a")
    await line.park(await line.take("a"))
    return ["a"]


async def _claim(line: Line) -> list[Any]:
    await line.put("a")
    return [line.runs.owner, line.now, b"", 0, 1000, "1", 10]


async def _claim_ids(line: Line) -> list[Any]:
    await line.put("a")
    return [line.runs.owner, line.now, b"", 0, 1000, "1", encode(["a"])]


async def _extend(line: Line) -> list[Any]:
    await line.put("a")
    claim = await line.take("a")
    return [line.runs.owner, "a", claim.token, 120_000]


async def _recover(line: Line) -> list[Any]:
    await line.put("a")
    await line.take("a")
    return [line.runs.owner, "0", 0, 1000]


async def _finish(line: Line) -> list[Any]:
    await line.put("a", keep=60)
    item = finish_item(await line.take("a"), 0, SUCCEEDED, keep=60, result=encode(7))
    return list(line.runs.settle("finish", line.queue, 0, [item]).args)


async def _plan(line: Line) -> list[Any]:
    await line.put("a", every=5)
    claim = await line.take("a")
    item = extra_run_item(claim, claim.due + 5000, alone=False)
    return list(line.runs.settle("plan", line.queue, 0, [item]).args)


async def _retry(line: Line) -> list[Any]:
    await line.put("a")
    item = retry_item(await line.take("a"), 1000, b"bad")
    return list(line.runs.settle("retry", line.queue, 0, [item]).args)


async def _release(line: Line) -> list[Any]:
    await line.put("a")
    item = release_item(await line.take("a"))
    return list(line.runs.settle("release", line.queue, 0, [item]).args)


async def _bury(line: Line) -> list[Any]:
    await line.put("a")
    item = bury_or_park_item(await line.take("a"), b"bad")
    return list(line.runs.settle("bury", line.queue, 0, [item]).args)


async def _park(line: Line) -> list[Any]:
    await line.put("a")
    item = bury_or_park_item(await line.take("a"), b"odd")
    return list(line.runs.settle("park", line.queue, 0, [item]).args)


async def _advance(line: Line) -> list[Any]:
    await line.put("a", every=5)
    await line.settle("park", park_item(await line.take("a"), b"odd", outcome=SUCCEEDED))
    await line.unpark("a")
    claim = await line.take("a")
    item = advance_item(claim, claim.due + 5000)
    return list(line.runs.settle("advance", line.queue, 0, [item]).args)


async def _park_overdue(line: Line) -> list[Any]:
    await line.put("a", every=5)
    return [0, encode(["a"])]


async def _pause_queue(line: Line) -> list[Any]:
    return ["1"]


async def _update_queue(line: Line) -> list[Any]:
    return ["1", encode(["max_active", "max_active", "5"]), encode(["acme", "2.0"])]


async def _mend(line: Line) -> list[Any]:
    await line.put("a")
    await line.lose("a")
    return [encode(["a"])]


async def _mend_line(line: Line) -> list[Any]:
    await line.put("a")
    await line.store.client.hdel(line.keys["spots"], "a")
    [place] = await line.store.client.zrange(line.keys["ready2"], 0, -1)
    await line.store.client.zrem(line.keys["turns2"], "")
    return [encode([2, place.decode()]), encode([""])]


async def _mend_score(line: Line) -> list[Any]:
    await line.put("a", 1000)
    await line.store.client.zadd(line.keys["waiting"], {"a": -1})
    return [encode(["a"])]


async def _block(line: Line) -> list[Any]:
    await line.put("u")
    return [packed_block("a", record(), line.now, "life", "line\0u")]


async def _watch(line: Line) -> list[Any]:
    await line.put("u")
    return [encode(["u", "line\0a\0life"])]


async def _unblock(line: Line) -> list[Any]:
    await line.raw("dependency_block", await _block(line), session="blocker")
    return [encode(["a", "life", "line\0u", SUCCEEDED]), encode(["W\0a\0life\0line\0u"])]


async def _end_watch(line: Line) -> list[Any]:
    await line.raw("dependency_watch", await _watch(line), session="watcher")
    await line.delete("u")
    return [encode([["E\0u\x003", "u", "u\0line\0a\0life"]])]


async def _renew(line: Line) -> list[Any]:
    await line.raw("dependency_block", await _block(line), session="blocker")
    await line.store.client.delete(line.keys["outbox"])
    return [encode(["a"])]


CHANGES: dict[str, Prepare] = {
    "audit_mend": _mend,
    "dependency_block": _block,
    "job_cancel": _cancel,
    "job_delete": _delete,
    "job_fire": _fire,
    "job_park": _park_overdue,
    "job_pause": _pause,
    "job_put": _put,
    "job_resume": _resume,
    "job_revive": _revive,
    "dependency_unblock": _unblock,
    "job_unpark": _unpark,
    "dependency_watch": _watch,
    "dependency_renew": _renew,
    "audit_mend_line": _mend_line,
    "queue_pause": _pause_queue,
    "queue_update": _update_queue,
    "run_advance": _advance,
    "run_bury": _bury,
    "run_claim": _claim,
    "run_claim_ids": _claim_ids,
    "run_extend": _extend,
    "run_claim_ordered": _claim,
    "run_finish": _finish,
    "run_park": _park,
    "run_plan": _plan,
    "run_recover": _recover,
    "run_release": _release,
    "run_retry": _retry,
    "audit_mend_score": _mend_score,
    "dependency_end": _end_watch,
}

# Calls that find nothing to do, in an empty queue.
IDLE: dict[str, list[Any]] = {
    "audit_mend": [encode(["a"])],
    "job_cancel": ["a", 0, RESULTS_MAX],
    "job_delete": ["", encode(["a"])],
    "job_fire": ["a", encode([0])],
    "job_park": [0, encode(["a"])],
    "job_pause": ["a"],
    "job_put": [packed("a", record(), 0, mode=4)],
    "job_resume": ["a", 0, 0],
    "job_revive": [encode(["a"])],
    "dependency_unblock": [encode(["a", "life", "line\0u", SUCCEEDED]), encode([])],
    "job_unpark": ["a"],
    "dependency_watch": [encode(["u", "line\0a\0life"])],
    "dependency_renew": [encode(["a"])],
    "audit_mend_line": [encode([2, "a"]), encode(["a"])],
    "queue_pause": [""],
    "queue_update": ["", encode([]), encode([])],
    "run_claim": ["w", 10**15, b"", 0, 1000, "1", 10],
    "run_claim_ordered": ["w", 10**15, b"", 0, 1000, "1", 10],
    "run_claim_ids": ["w", 10**15, b"", 0, 1000, "1", encode(["a"])],
    "run_extend": ["w", "a", 1, 1000],
    "run_recover": ["w", "0", 0, 1000],
    "audit_mend_score": [encode(["a"])],
}
