"""`jobs pause|resume|fire|remove|unpark|update`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.command_line import Tool
from tocsin import Every, Tocsin


async def note(n: int = 0) -> None:
    """Nobody runs it here."""


@pytest.fixture
def some(tocsin: Tool) -> Tool:
    async def fill() -> None:
        app = Tocsin(tocsin.url, prefix=tocsin.prefix, hash_tag=tocsin.hash_tag)
        app.queue("line", order="priority")
        job: Any = app.job(name="note")(note)
        async with app:
            await app.schedule(job, Every("1h"), id="hourly")
            for n in range(2):
                await app.enqueue(job, n, id=f"p{n}", queue="line")

    asyncio.run(fill())
    return tocsin


def test_a_job_is_paused_resumed_fired_and_removed(some: Tool) -> None:
    assert some.quick("jobs", "pause", "hourly").strip() == "paused hourly"
    assert some.json("jobs", "show", "hourly")["stage"] == "paused"
    assert some.json("jobs", "resume", "hourly") == {"id": "hourly", "resumed": True}
    assert some.json("jobs", "show", "hourly")["stage"] == "waiting"
    assert some.json("jobs", "fire", "hourly") == {"id": "hourly", "fired": True}
    assert len(some.json("jobs", "list", "--queue", "default")) == 2
    assert some.json("jobs", "remove", "hourly") == {"id": "hourly", "removed": True}


def test_a_job_moves_in_its_line(some: Tool) -> None:
    assert some.json("jobs", "update", "p1", "--priority", "high") == {"id": "p1", "updated": True}
    assert [job["id"] for job in some.json("jobs", "list", "--queue", "line")] == ["p1", "p0"]


@pytest.mark.parametrize("what", ["pause", "resume", "remove", "unpark"])
def test_what_there_is_not_is_told_and_fails(some: Tool, what: str) -> None:
    assert "no job 'no such' could be" in some.quick("jobs", what, "no such", code=1)


@pytest.mark.parametrize(
    ("args", "why"), [((), "say what to change"), (("--priority", "hi"), "high"), (("--timeout", "soon"), "timeout")]
)
def test_a_change_that_cannot_be_is_wrong_usage(some: Tool, args: tuple[str, ...], why: str) -> None:
    assert why in some.quick("jobs", "update", "p0", *args, code=2)
