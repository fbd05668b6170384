"""The memory of keys in SQL: one row per key, in SQLite or PostgreSQL.

Each change is one statement that decides and writes at once, by the database's clock, and can be repeated. `until_ms`
is the end of the lease or, once the row has an answer, of the keep. A row past its `until_ms` is ignored.
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
    # Not now(), which returns the begin of the transaction.
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}

Found: TypeAlias = Row[Any] | None

# For each try. SQLite waits up to 5 s for other writers.
_TIMEOUT_S = 6.0
_TRIES = 3
# Answers remove expired rows too, a few at a time.
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
        self._pruned_at = monotonic()

    async def setup(self) -> None:
        # Two processes that create the same table at once may collide in PostgreSQL, even with `if not exists`.
        await self._call(CreateTable(TURNS, if_not_exists=True), collides=True)
        await self._call(CreateIndex(BY_TIME, if_not_exists=True), collides=True)

    async def take(self, key: str, token: str, digest: bytes, lease_ms: Millis) -> TurnTaken | Busy | Answered:
        while True:
            # Read first: waiting callers poll often, and in SQLite a writer blocks all others.
            held = await self._call(self._select(key))
            if held is not None and (held.answer is not None or held.token != token):
                return _state_of(held)
            if await self._call(self._take(key, token, digest, lease_ms)) is not None:
                return TurnTaken()

    async def answer(self, key: str, token: str, digest: bytes, answer: bytes, keep_ms: Millis) -> bool:
        remembered = await self._call(self._remember(key, token, digest, answer, keep_ms)) is not None
        if self._is_time_to_prune():
            # A failure is ignored: the next time removes the rest.
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
        """In the caller's transaction. The database makes other callers with this key wait until it has ended."""
        # Without a lease: other callers see the row only after the commit, with its answer or, without one, expired.
        while (await connection.execute(self._take(key, token, digest, 0))).first() is None:
            if (held := (await connection.execute(self._select(key))).first()) is not None:
                return _state_of(held)
        return TurnTaken()

    async def answer_within(
        self, connection: AsyncConnection, key: str, token: str, digest: bytes, answer: bytes, keep_ms: Millis
    ) -> None:
        await connection.execute(self._remember(key, token, digest, answer, keep_ms))
        if self._is_time_to_prune():
            await connection.execute(self._prune())

    def _row(self, key: str) -> tuple[Any, Any]:
        return TURNS.c.name == self._name, TURNS.c.key == key

    def _select(self, key: str) -> Executable:
        left = (TURNS.c.until_ms - self._now).label("left_ms")
        return select(TURNS.c.token, TURNS.c.digest, TURNS.c.answer, left).where(
            *self._row(key), TURNS.c.until_ms > self._now
        )

    def _take(self, key: str, token: str, digest: bytes, lease_ms: Millis) -> Executable:
        mine = and_(TURNS.c.token == token, TURNS.c.answer.is_(None))
        return self._write(key, token, digest, None, lease_ms, or_(mine, TURNS.c.until_ms <= self._now))

    def _remember(self, key: str, token: str, digest: bytes, answer: bytes, keep_ms: Millis) -> Executable:
        # Also if the lease is over and no other caller came: the work is done, so it must not be done again.
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

    def _is_time_to_prune(self) -> bool:
        due = monotonic() - self._pruned_at > _PRUNE_EVERY_S
        self._pruned_at = monotonic() if due else self._pruned_at
        return due

    def _prune(self) -> Executable:
        over = TURNS.c.until_ms <= self._now
        some = select(TURNS.c.name, TURNS.c.key).where(over).order_by(TURNS.c.until_ms).limit(_PRUNED_AT_ONCE)
        # Skips rows that another process removes, and checks the time again: a row may have been taken meanwhile.
        chosen = tuple_(TURNS.c.name, TURNS.c.key).in_(some.with_for_update(skip_locked=True))
        return delete(TURNS).where(chosen, over)

    async def _call(self, statement: Executable, *, collides: bool = False) -> Found:
        for tries_left in reversed(range(_TRIES)):
            try:
                async with asyncio.timeout(_TIMEOUT_S), self._calls.connect() as connection:
                    result = await connection.execute(statement)
                    return result.first() if result.returns_rows else None
            except (SQLAlchemyError, OSError) as error:
                lost = isinstance(error, DBAPIError) and error.connection_invalidated
                if not (tries_left and (lost or collides)):
                    raise _translated(error) from error
        raise AssertionError


def _state_of(held: Row[Any]) -> Busy | Answered:
    return Busy(held.digest, held.left_ms) if held.answer is None else Answered(held.digest, held.answer)


def _translated(error: Exception) -> StoreUnavailable:
    # The database's own words, without the statement and its parameters.
    reason = error.orig if isinstance(error, DBAPIError) else error
    return StoreUnavailable(f"the database of the memory cannot be used for now ({reason})")


def open_engine(url: str) -> AsyncEngine:
    try:
        return create_async_engine(url)
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        # The address is not quoted: it may hold a password.
        raise InvalidConfig(
            "the address of the memory cannot be used: write redis://HOST:PORT, sqlite+aiosqlite:///FILE or "
            "postgresql+asyncpg://HOST/DATABASE"
        ) from error
