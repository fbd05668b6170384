"""Blocked jobs, as the store is asked to put them."""

from __future__ import annotations

from typing import Any

from tests.support.one_queue import Line
from tests.support.records import packed_block, record
from tocsin.model.outcome import IGNORE


async def block(
    line: Line, member: str = "d", *sources: str, life: str = "1", delay: int = 0, mode: int = IGNORE, **about: Any
) -> str:
    anyway = about.pop("anyway", False)
    item = packed_block(
        member, record(**about), line.now + delay, life, *(sources or ("line\0u",)), anyway=anyway, mode=mode
    )
    return (await line.raw("dependency_block", [item], session="program"))[1].decode()
