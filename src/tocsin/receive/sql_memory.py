"""The memory of keys in SQL: one row a key, on SQLite and PostgreSQL.

Each change is one statement that decides and writes at once, by the database's clock, and can be repeated. `until_ms`
is the end of the lease, and with an answer the end of the keep; a row whose time is over counts for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    and_,
    delete,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.base import Executable

from tocsin.model.clock import monotonic
from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidConfig, StoreUnavailable
from tocsin.receive.memory import Answered, Busy, TurnTaken

TURNS = Table(
    "tocsin_receive_turns",
    MetaData(),
    Column("name", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("token", String(64), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    Column("answer", LargeBinary),
)
BY_TIME = Index("tocsin_receive_turns_until", TURNS.c.until_ms)

_INSERT: dict[str, Callable[[Table], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
_NOW = {
    # Not now(), which is when the transaction began.
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}

Found: TypeAlias = Row[Any] | None

# For each try. SQLite waits up to 5 s for those who write.
_TIMEOUT_S = 6.0
_TRIES = 3
# Rows whose time is over are removed on the way, a few at a time.
_PRUNE_EVERY_S = 60.0
_PRUNED_AT_ONCE = 500


class SqlMemory:
    def __init__(self, engine: AsyncEngine, name: str, *, owned: bool) -> None:
        dialect = engine.dialect.name
        if dialect not in _NOW:
            raise InvalidConfig(f"keys are remembered in SQLite or PostgreSQL, not in {dialect}")
        if dialect == "sqlite" and (not engine.url.database or ":memory:" in engine.url.database):
            raise InvalidConfig("an SQLite database in memory forgets with its process: write sqlite+aiosqlite:///FILE")
        self._engine = engine
        # Every call is one statement: a transaction around it would only cost round trips.
        self._calls = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._owned = owned
        self._name = name
        self._insert = _INSERT[dialect]
        self._now = literal_column(_NOW[dialect], BigInteger)
        self._pruned = monotonic()

    async def setup(self) -> None:
        # Two that create the same at once may collide inside PostgreSQL, `if not exists` or not.
        await self._call(CreateTable(TURNS, if_not_exists=True), collides=True)
        await self._call(CreateIndex(BY_TIME, if_not_exists=True), collides=True)

    async def take(self, key: str, token: str, digest: bytes, lease_ms: Millis) -> TurnTaken | Busy | Answered:
        while True:
            # A look first: those who wait look often, and on SQLite one who writes keeps all others from it.
            held = await self._call(self._look(key))
            if held is not None and (held.answer is not None or held.token != token):
                return _told(held)
            if await self._call(self._take(key, token, digest, lease_ms)) is not None:
                return TurnTaken()

    async def answer(self, key: str, token: str, digest: bytes, answer: bytes, keep_ms: Millis) -> bool:
        remembered = await self._call(self._remember(key, token, digest, answer, keep_ms)) is not None
        if self._prunes():
            # What is left over is removed the next time.
            with contextlib.suppress(StoreUnavailable):
                await self._call(self._prune())
        return remembered

    async def free(self, key: str, token: str) -> None:
        mine = and_(*self._row(key), TURNS.c.token == token, TURNS.c.answer.is_(None))
        await self._call(delete(TURNS).where(mine))

    async def close(self) -> None:
        if self._owned:
            await self._engine.dispose()

    async def take_within(
        self, connection: AsyncConnection, key: str, token: str, digest: bytes
    ) -> TurnTaken | Busy | Answered:
        """In the caller's transaction. Whoever comes meanwhile is held up by the database until that has ended."""
        # Without a lease: the row is seen by others only with its answer, or if its writer wants to go on without one.
        while (await connection.execute(self._take(key, token, digest, 0))).first() is None:
            if (held := (await connection.execute(self._look(key))).first()) is not None:
                return _told(held)
        return TurnTaken()

    async def answer_within(
        self, connection: AsyncConnection, key: str, token: str, digest: bytes, answer: bytes, keep_ms: Millis
    ) -> None:
        await connection.execute(self._remember(key, token, digest, answer, keep_ms))
        if self._prunes():
            await connection.execute(self._prune())

    def _row(self, key: str) -> tuple[Any, Any]:
        return TURNS.c.name == self._name, TURNS.c.key == key

    def _look(self, key: str) -> Executable:
        left = (TURNS.c.until_ms - self._now).label("left_ms")
        return select(TURNS.c.token, TURNS.c.digest, TURNS.c.answer, left).where(
            *self._row(key), TURNS.c.until_ms > self._now
        )

    def _take(self, key: str, token: str, digest: bytes, lease_ms: Millis) -> Executable:
        mine = and_(TURNS.c.token == token, TURNS.c.answer.is_(None))
        return self._write(key, token, digest, None, lease_ms, or_(mine, TURNS.c.until_ms <= self._now))

    def _remember(self, key: str, token: str, digest: bytes, answer: bytes, keep_ms: Millis) -> Executable:
        # Also if the lease was over and nobody came: what was done is done, so the next one must not do it again.
        mine = or_(TURNS.c.token == token, TURNS.c.until_ms <= self._now)
        return self._write(key, token, digest, answer, keep_ms, mine)

    def _write(
        self, key: str, token: str, digest: bytes, answer: bytes | None, for_ms: Millis, allowed: Any
    ) -> Executable:
        row = {"name": self._name, "key": key, "token": token, "digest": digest, "answer": answer}
        insert = self._insert(TURNS).values(**row, until_ms=self._now + for_ms)
        new = {column: insert.excluded[column] for column in ("token", "digest", "answer", "until_ms")}
        keys = [TURNS.c.name, TURNS.c.key]
        written: Executable = insert.on_conflict_do_update(index_elements=keys, set_=new, where=allowed).returning(
            TURNS.c.token
        )
        return written

    def _prunes(self) -> bool:
        due = monotonic() - self._pruned > _PRUNE_EVERY_S
        self._pruned = monotonic() if due else self._pruned
        return due

    def _prune(self) -> Executable:
        over = TURNS.c.until_ms <= self._now
        some = select(TURNS.c.name, TURNS.c.key).where(over).order_by(TURNS.c.until_ms).limit(_PRUNED_AT_ONCE)
        # Never waits for another who removes them too; and looks again, because one may have been taken meanwhile.
        chosen = tuple_(TURNS.c.name, TURNS.c.key).in_(some.with_for_update(skip_locked=True))
        return delete(TURNS).where(chosen, over)

    async def _call(self, statement: Executable, *, collides: bool = False) -> Found:
        for again in reversed(range(_TRIES)):
            try:
                async with asyncio.timeout(_TIMEOUT_S), self._calls.connect() as connection:
                    result = await connection.execute(statement)
                    return result.first() if result.returns_rows else None
            except (SQLAlchemyError, OSError) as error:
                lost = isinstance(error, DBAPIError) and error.connection_invalidated
                if not (again and (lost or collides)):
                    raise _translated(error) from error
        raise AssertionError


def _told(held: Row[Any]) -> Busy | Answered:
    return Busy(held.digest, held.left_ms) if held.answer is None else Answered(held.digest, held.answer)


def _translated(error: Exception) -> StoreUnavailable:
    # What the database said, without the statement and what was to be remembered.
    said = error.orig if isinstance(error, DBAPIError) else error
    return StoreUnavailable(f"the database of the memory cannot be used for now ({said})")


def open_engine(url: str) -> AsyncEngine:
    try:
        return create_async_engine(url)
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        # Not quoted: it may hold a password.
        raise InvalidConfig(
            "the address of the memory cannot be used: write redis://HOST:PORT, sqlite+aiosqlite:///FILE or "
            "postgresql+asyncpg://HOST/DATABASE"
        ) from error
