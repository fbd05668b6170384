"""Strays: members of `waiting` or `working` in a state in which no transition leaves them. Scripts find and mend
them, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.store.formats import codes_of
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.claims import Deadlines, check_clock

# A look at so many takes the server less than a millisecond, even among a million.
PAGE = 200
STAGES = ("waiting", "working")


class StrayKind(IntEnum):
    """What lua/audit_look_strays.lua found wrong with a member."""

    NO_RECORD = 1
    SCORE = 2
    OVERDUE = 3
    CLAIM = 4


class StrayPage(msgspec.Struct, frozen=True):
    """The strays of one page, and the cursor of the next; `b"0"`: none."""

    cursor: bytes
    found: dict[bytes, StrayKind]


class StrayReader:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def look(
        self, queue: OpenQueue, partition: int, stage: str, cursor: bytes, overdue: Millis | None
    ) -> StrayPage:
        """The page at `cursor`; the first is `b"0"`. `overdue`: how many ms past its deadline a run counts as a stray;
        None: never."""
        look, now = script("audit_look_strays"), self._store.clock.override()
        args = ["" if now is None else now, stage, cursor, "" if overdue is None else overdue, PAGE]
        answer = await self._store.run_repeatable(lambda c: look(c, queue.keys_of(look, partition), args))
        kinds = map(StrayKind, codes_of(answer[2]))
        return StrayPage(answer[0], dict(zip(answer[1], kinds, strict=True)))

    async def rescore(self, queue: OpenQueue, partition: int, members: Sequence[bytes]) -> int:
        """Returns how many got a new score."""
        mended = 0
        for items in _batches(members):
            mended += (await self._store.change("audit_mend_score", queue, partition, items))[1].count(b"1")
        return mended

    async def park(self, queue: OpenQueue, partition: int, members: Sequence[bytes], overdue: Millis) -> int:
        """Park those that have been due for `overdue` ms. Returns how many."""
        parked = 0
        for items in _batches(members):
            parked += (await self._store.change("job_park", queue, partition, overdue, items))[1].count(b"1")
        return parked

    async def recover(self, queue: OpenQueue, partition: int, members: Sequence[bytes], deadlines: Deadlines) -> int:
        """Bring back those of these runs that are overdue, like Runs.recover. Returns how many."""
        brought = 0
        for items in _batches(members):
            answer = await self._store.change("run_recover", queue, partition, "", b"0", *deadlines.args(items))
            check_clock(answer, deadlines)
            brought += len(answer[2])
        return brought


def _batches(members: Sequence[bytes]) -> list[bytes]:
    pages = [members[first : first + LARGEST_BATCH] for first in range(0, len(members), LARGEST_BATCH)]
    return [msgpack.texts(page) for page in pages]
