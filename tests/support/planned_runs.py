"""A schedule whose occurrences get runs of their own."""

from __future__ import annotations

from tests.support.one_queue import Line
from tocsin.model.run import Claim


async def claimed(line: Line) -> Claim:
    """A job of 5 s that is due now and claimed, to be planned."""
    await line.put("a", every=5)
    return await line.take("a")


def extra(claim: Claim) -> str:
    return f"a\x1f{claim.due}"
