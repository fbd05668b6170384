"""Strays: what stands in `waiting` or `working` as no transition leaves it. Found page by page, mended by scripts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from tocsin.model import codec
from tocsin.model.durations import Millis
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.claims import Deadlines, check_clock

# A look at so many takes the server less than a millisecond, also among a million.
PAGE = 200
STAGES = ("waiting", "working")


class StrayKind(IntEnum):
    """What lua/audit_look_strays.lua says of a member."""

    NO_RECORD = 1
    SCORE = 2
    OVERDUE = 3
    CLAIM = 4


class StrayPage(msgspec.Struct, frozen=True):
    """The strays of one page, and where the next begins; `b"0"`: there is none."""

    cursor: bytes
    found: dict[bytes, StrayKind]


class StrayReader:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def look(
        self, queue: OpenQueue, partition: int, stage: str, cursor: bytes, overdue: Millis | None
    ) -> StrayPage:
        """The page at `cursor`, from `b"0"` on. `overdue`: how far past its deadline a run is told; None: never."""
        look, now = script("audit_look_strays"), self._store.clock.override()
        args = ["" if now is None else now, stage, cursor, "" if overdue is None else overdue, PAGE]
        answer = await self._store.read(lambda c: look(c, queue.keys_of(look, partition), args))
        return StrayPage(
            answer[0], {member: StrayKind(code - 48) for member, code in zip(answer[1], answer[2], strict=True)}
        )

    async def rescore(self, queue: OpenQueue, partition: int, members: Sequence[bytes]) -> int:
        """How many were given a score."""
        mended = 0
        for items in _batches(members):
            mended += (await self._store.change("audit_mend_score", queue, partition, items))[1].count(b"1")
        return mended

    async def park(self, queue: OpenQueue, partition: int, members: Sequence[bytes], overdue: Millis) -> int:
        """Set aside those that have been due for so many ms. How many."""
        parked = 0
        for items in _batches(members):
            parked += (await self._store.change("job_park", queue, partition, overdue, items))[1].count(b"1")
        return parked

    async def recover(self, queue: OpenQueue, partition: int, members: Sequence[bytes], deadlines: Deadlines) -> int:
        """Bring back those of them that are overdue, as Runs.recover does with all. How many."""
        brought = 0
        for items in _batches(members):
            answer = await self._store.change("run_recover", queue, partition, "", b"0", *deadlines.args(items))
            check_clock(answer, deadlines)
            brought += len(answer[2])
        return brought


def _batches(members: Sequence[bytes]) -> list[bytes]:
    pages = [members[first : first + LARGEST_BATCH] for first in range(0, len(members), LARGEST_BATCH)]
    return [codec.array(len(page), map(codec.text, page)) for page in pages]
