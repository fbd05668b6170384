"""Key and effect in one transaction: the effect is there exactly once, whatever happens to the receiver."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from tests.support.once_work import KEY, Work
from tests.support.python_path import PYTHON_PATH
from tests.support.waiting import until
from tocsin.receive import KeyReused, Once, StillRunning

pytestmark = pytest.mark.parametrize("where", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
async def engine(where: str) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(where)
    async with made.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS effects (name TEXT NOT NULL)"))
    yield made
    await made.dispose()


@pytest.fixture
async def once(engine: AsyncEngine, name: str) -> Once:
    made = Once(engine, name=name)
    await made.setup()
    return made


class Ledger:
    """The receiver's own table, in the database in which keys are remembered."""

    def __init__(self, engine: AsyncEngine, once: Once, name: str) -> None:
        self._engine, self._once, self._name = engine, once, name

    async def enter(self, *, fails: bool = False, digest: bytes = b"") -> int:
        async with self._engine.begin() as connection:
            return await self._once.within(connection, KEY, lambda: self._work(connection, fails), digest=digest)

    async def _work(self, connection: AsyncConnection, fails: bool) -> int:
        await connection.execute(text("INSERT INTO effects VALUES (:name)"), {"name": self._name})
        if fails:
            raise ValueError("no")
        return 7

    async def entries(self) -> int:
        async with self._engine.connect() as connection:
            found = await connection.execute(
                text("SELECT count(*) FROM effects WHERE name = :name"), {"name": self._name}
            )
            count: int = found.scalar_one()
            return count


@pytest.fixture
def ledger(engine: AsyncEngine, once: Once, name: str) -> Ledger:
    return Ledger(engine, once, name)


async def test_a_repeated_key_gets_the_first_answer(ledger):
    assert [await ledger.enter(), await ledger.enter()] == [7, 7]
    assert await ledger.entries() == 1


async def test_those_who_come_at_once_are_held_up_until_the_first_has_committed(ledger):
    assert await asyncio.gather(*(ledger.enter() for _ in range(10))) == [7] * 10
    assert await ledger.entries() == 1


async def test_a_failure_takes_the_effect_back_and_frees_the_key(ledger):
    with pytest.raises(ValueError, match="no"):
        await ledger.enter(fails=True)
    assert await ledger.entries() == 0
    assert await ledger.enter() == 7
    assert await ledger.entries() == 1


async def test_the_key_is_free_also_if_the_failure_did_not_end_the_transaction(engine, once, ledger):
    async with engine.begin() as connection:
        with pytest.raises(ValueError, match="no"):
            await once.within(connection, KEY, Work(ValueError("no")).quickly)
    assert await ledger.enter() == 7


async def test_the_same_key_for_something_else_is_refused(ledger):
    await ledger.enter(digest=b"this")
    with pytest.raises(KeyReused):
        await ledger.enter(digest=b"that")
    assert await ledger.entries() == 1


async def test_it_respects_those_without_a_transaction_and_they_respect_it(once, ledger):
    work = Work("done")
    other = asyncio.create_task(once(KEY, work.slowly))
    await work.started.wait()
    with pytest.raises(StillRunning):
        await ledger.enter()
    work.go_on.set()
    assert await other == "done"
    assert await ledger.enter() == "done"
    assert await ledger.entries() == 0


@pytest.mark.parametrize("dies", [True, False], ids=["killed before the commit", "committed"])
async def test_effect_and_key_are_there_together_or_not_at_all(ledger, where, name, tmp_path: Path, dies):
    noted = tmp_path / "noted"
    what = "within-die" if dies else "within"
    command = [sys.executable, "-m", "tests.support.once_process", what, where, name, KEY, str(noted)]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": PYTHON_PATH})
    if dies:
        until(noted.exists, "the effect is written", within=30)
        process.kill()
    assert process.wait(30) == (-9 if dies else 0)
    assert await ledger.entries() == (0 if dies else 1)
    answer = await ledger.enter()
    assert answer == (7 if dies else process.pid)
    assert await ledger.entries() == 1


async def test_it_does_not_create_its_table_in_the_middle_of_a_transaction(engine, name):
    async with engine.connect() as connection:
        with pytest.raises(ValueError, match=r"call `await once.setup\(\)`"):
            await Once(engine, name=name).within(connection, KEY, Work().quickly)


async def test_rows_whose_time_is_over_are_removed_on_the_way(engine, name, monkeypatch):
    monkeypatch.setattr("tocsin.receive.sql_memory._PRUNE_EVERY_S", 0.0)
    once = Once(engine, name=name, keep="100ms", lease="100ms")
    rows = text("SELECT count(*) FROM tocsin_receive_turns WHERE name = :name")
    await once.setup()
    for n in range(20):
        await once(f"{n}", Work().quickly)
    async with asyncio.timeout(20), engine.connect() as connection:
        while True:
            async with engine.begin() as mine:
                await once.within(mine, "last", Work().quickly)
            if (await connection.execute(rows, {"name": name})).scalar_one() <= 1:
                break
            await connection.rollback()
    once_with_longer_keep = Once(engine, name=name)
    assert await once_with_longer_keep("kept", Work("kept").quickly) == "kept"
    await once("another", Work().quickly)
    assert await once_with_longer_keep("kept", Work("again").quickly) == "kept"
