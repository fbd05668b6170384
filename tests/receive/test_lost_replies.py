"""A call of the memory whose reply is lost, or which never arrived, is made again and changes nothing more."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import AsyncIterator, Callable
from importlib.resources import files

import pytest

from tests.support.asgi_client import Shop, ask
from tests.support.once_work import KEY, Work
from tests.support.postgres import Postgres
from tests.support.proxy import CUTS, Proxy
from tests.support.servers import Server, flavours
from tocsin.model.errors import StoreUnavailable
from tocsin.receive import Once, Receiver

FAILED = ValueError("no")


def sha_of(verb: str) -> bytes:
    text = files("tocsin.receive").joinpath("lua", f"turn_{verb}.lua").read_bytes()
    return hashlib.sha1(text).hexdigest().encode()


@pytest.fixture(params=flavours())
async def proxy(request: pytest.FixtureRequest, redis_of: Callable[[str], Server]) -> AsyncIterator[Proxy]:
    async with Proxy(redis_of(request.param)) as running:
        yield running


@pytest.fixture
async def sql_proxy(postgres: Postgres) -> AsyncIterator[Proxy]:
    async with Proxy(postgres) as running:
        yield running


async def effects_of_two_calls(once: Once, proxy: Proxy, *, first_fails: bool) -> int:
    """A call around which something was cut, and the next attempt."""
    work = Work(FAILED, "done") if first_fails else Work("done")
    if first_fails:
        with pytest.raises(ValueError, match="no"):
            await once(KEY, work.quickly)
    else:
        assert await once(KEY, work.quickly) == "done"
    assert proxy.cuts == 1
    assert await once(KEY, work.quickly) == "done"
    return work.effects


@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize("verb", ["take", "answer", "free"])
async def test_in_redis(proxy: Proxy, name, verb, when):
    async with Once(proxy.url, name=name) as once:
        # The server knows the scripts from here on, so that they are called by their digests.
        await once("before", Work().quickly)
        with pytest.raises(ValueError, match="no"):
            await once("before it", Work(FAILED).quickly)
        proxy.cut_at(when, sha_of(verb))
        effects = await effects_of_two_calls(once, proxy, first_fails=verb == "free")
    assert effects == (2 if verb == "free" else 1)


@pytest.mark.parametrize("when", CUTS)
# In the order in which they name the key: a look, a take, then an answer, or the key is freed.
@pytest.mark.parametrize("statement", ["look", "take", "answer", "free"])
async def test_in_postgresql(sql_proxy: Proxy, postgres: Postgres, name, statement, when):
    async with Once(postgres.url_at(sql_proxy.folder), name=name) as once:
        sql_proxy.cut_at(
            when, KEY.encode(), passing=["look", "take", "answer"].index(statement.replace("free", "answer"))
        )
        effects = await effects_of_two_calls(once, sql_proxy, first_fails=statement == "free")
    assert effects == (2 if statement == "free" else 1)


class TestAway:
    """The server cannot be reached at all."""

    async def test_nothing_is_done_if_the_key_cannot_be_looked_up(self, proxy: Proxy, name):
        work = Work()
        async with Once(proxy.url, name=name) as once:
            proxy.cut_off()
            with pytest.raises(StoreUnavailable, match="the Redis of the memory cannot be used for now"):
                await once(KEY, work.quickly)
        assert work.effects == 0

    async def test_who_did_the_work_is_not_told_of_a_failure(self, proxy: Proxy, name, caplog):
        """Else it would be done again for certain."""
        async with Once(proxy.url, name=name) as once:

            async def work() -> str:
                proxy.cut_off()
                return "done"

            assert await once(KEY, work) == "done"
        assert "the answer for key" in caplog.text

    async def test_a_failure_stays_the_failure_that_it_was(self, proxy: Proxy, name, caplog):
        async with Once(proxy.url, name=name) as once:

            async def work() -> None:
                proxy.cut_off()
                raise FAILED

            with pytest.raises(ValueError, match="no"):
                await once(KEY, work)
        assert "is free only when its lease is over" in caplog.text

    async def test_the_sender_of_a_request_is_told_to_come_again(self, caplog):
        shop, once = Shop(), Once("unix:///nowhere/at/all")
        told = await ask(Receiver(shop, once))
        await once.close()
        assert (told.status, told.headers["retry-after"]) == (503, "5")
        assert told.problem["detail"] == "keys cannot be looked up"
        assert shop.orders == []
        assert "no request can be received" in caplog.text

    @pytest.mark.parametrize("kind", ["redis", "sql"])
    async def test_a_server_that_says_nothing_is_not_waited_for_for_ever(self, kind, tmp_path, monkeypatch):
        monkeypatch.setattr("tocsin.receive.redis_memory._TIMEOUT_S", 0.05)
        monkeypatch.setattr("tocsin.receive.sql_memory._TIMEOUT_S", 0.05)
        # Whoever connects is in its line, and never called.
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(tmp_path / ".s.PGSQL.5432"))
            silent.listen()
            urls = {"redis": f"unix://{tmp_path}/.s.PGSQL.5432", "sql": f"postgresql+asyncpg://u@/d?host={tmp_path}"}
            once = Once(urls[kind])
            with pytest.raises(StoreUnavailable):
                await once(KEY, Work().quickly)
            await once.close()

    async def test_in_sql_it_is_told_without_what_was_to_be_remembered(
        self, sql_proxy: Proxy, postgres: Postgres, name
    ):
        work = Work()
        async with Once(postgres.url_at(sql_proxy.folder), name=name) as once:
            sql_proxy.cut_off()
            with pytest.raises(StoreUnavailable, match="the database of the memory cannot be used") as told:
                await once(KEY, work.quickly)
        assert KEY not in str(told.value)
        assert work.effects == 0
