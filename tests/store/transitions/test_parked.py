"""A worker that knows its handler claims a parked job when its due time says, whatever else is due."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import HANDLER, STRANGE
from tocsin.store.transitions.claims import Runs


def names(claims) -> list[str]:
    return [claim.member for claim in claims]


@pytest.fixture
async def versed(line: Line) -> Runs:
    """Knows what no other worker does, and more handlers than anybody."""
    return line.worker("versed", HANDLER, STRANGE, *(f"tests.other{n}" for n in range(40)))


async def put_aside(line: Line, members: list[str]) -> None:
    await line.put_all(members, handler=STRANGE)
    assert (await line.ask()).parked == len(members)


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_it_comes_before_younger_ones_however_few_are_asked_for(line: Line, versed: Runs, limit: int):
    await put_aside(line, ["z"])
    line.clock.advance("1ms")
    await line.put_all([f"{n:03}" for n in range(100)])
    assert names(await line.claim(versed, limit=limit)) == ["z", *(f"{n:03}" for n in range(limit - 1))]


async def test_it_comes_behind_older_ones(line: Line, versed: Runs):
    for name, handler in (("a", HANDLER), ("b", STRANGE), ("c", HANDLER)):
        await line.put(name, handler=handler)
        line.clock.advance("1ms")
    claims = await line.claim()
    for claim in claims:
        await line.release(claim)
    assert [names(await line.claim(versed, limit=1)) for _ in range(4)] == [["a"], ["b"], ["c"], []]


async def test_who_does_not_know_it_sets_it_aside_again(line: Line, versed: Runs):
    await put_aside(line, ["x", "y"])
    assert names(await line.claim(versed, limit=1)) == ["x"]
    assert (await line.ask()).parked == 1
    assert names(await line.claim(versed)) == ["y"]


async def test_what_is_parked_for_others_costs_a_few_commands_however_many_handlers_a_worker_knows(line: Line):
    costs = []
    for handlers in (1, 40):
        worker = line.worker(f"w{handlers}", HANDLER, *(f"tests.other{n}" for n in range(handlers)))
        for parked in (0, 500):
            if parked:
                await put_aside(line, [f"{handlers}-{n}" for n in range(parked)])
            await line.put_all([f"{handlers}+{parked}+{n}" for n in range(5)])
            before = await line.commands()
            assert len(await line.claim(worker, limit=5)) == 5
            costs.append(await line.commands() - before)
    assert max(costs) - min(costs) <= 10
