"""What each memory asks of its server, how it leaves it, and addresses that are none."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from importlib.resources import files

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support.once_work import KEY, Work
from tests.support.servers import Server, ask, available
from tocsin.model.errors import InvalidConfig, StoreFull, StoreRefused
from tocsin.receive import Once

SCRIPTS = ["turn_take", "turn_answer", "turn_free"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_header_of_a_script_is_what_it_reads(script):
    code = files("tocsin.receive").joinpath("lua", f"{script}.lua").read_text()
    header = "\n".join(line for line in code.splitlines() if line.startswith("--"))
    assert header.startswith(f"-- {script}: ")
    assert re.findall(r"-- KEYS   (\w+)  HASH", header) == re.findall(r"^local (\w+) = KEYS\[1\]$", code, re.MULTILINE)
    [told] = re.findall(r"-- ARGV   ([^:\n]+)", header)
    [read] = re.findall(r"^local ([\w, ]+) = ARGV\[1\]", code, re.MULTILINE)
    assert told.replace("s ms", "s_ms").replace("e ms", "e_ms").replace("p ms", "p_ms") == read
    assert "-- RETURN " in header


def test_all_scripts_are_tested_here():
    found = sorted(path.name for path in files("tocsin.receive").joinpath("lua").iterdir())
    assert found == sorted(f"{script}.lua" for script in SCRIPTS)


class TestRedis:
    @pytest.mark.parametrize("where", ["valkey", "redis62"], indirect=True)
    async def test_nothing_stays_for_ever(self, make_once, where, name, redis_of):
        once, work = make_once(keep="1h", lease="1m"), Work()
        running = asyncio.create_task(once(KEY, work.slowly))
        await work.started.wait()
        await once("answered", Work().quickly)
        with pytest.raises(ValueError):
            await once("failed", Work(ValueError()).quickly)
        with next(server for server in map(redis_of, ("valkey", "redis62")) if server.url == where).client() as client:
            left = {key.decode(): client.ttl(key) for key in client.scan_iter(f"tocsin:receive:{name}:*")}
        assert sorted(left) == [f"tocsin:receive:{name}:{{{key}}}" for key in (KEY, "answered")]
        assert 0 < left[f"tocsin:receive:{name}:{{{KEY}}}"] <= 60
        assert 3500 < left[f"tocsin:receive:{name}:{{answered}}"] <= 3600
        work.go_on.set()
        await running

    @pytest.mark.parametrize("flavour", ["valkey", "redis62"])
    async def test_what_was_done_is_remembered_on_a_full_server(self, flavour):
        with Server(flavour, maxmemory_policy="noeviction") as server, server.client() as client:

            async def work() -> str:
                ask(client, "CONFIG SET", "maxmemory", 1)
                return "done" * 100

            async with Once(server.url) as once:
                assert await once(KEY, work) == "done" * 100
                with pytest.raises(StoreFull, match="raise maxmemory"):
                    await once("another", work)
                ask(client, "CONFIG SET", "maxmemory", 0)
                assert await once(KEY, Work().quickly) == "done" * 100

    async def test_a_server_that_may_forget_keys_is_refused(self):
        with Server.valkey(maxmemory="100mb", maxmemory_policy="volatile-lru") as server:
            once = Once(server.url)
            with pytest.raises(StoreRefused, match="set maxmemory-policy to noeviction"):
                await once(KEY, Work().quickly)
            await once.close()

    async def test_it_is_reached_with_tls_and_a_password(self):
        if "redis7" not in available():
            pytest.skip("no server with TLS is installed")
        with Server.redis7(tls=True, password="s3cret") as server:
            async with Once(server.url) as once:
                assert await once(KEY, Work().quickly) == 1
            wrong = Once(server.url.replace("s3cret", "another"))
            with pytest.raises(StoreRefused, match="does not accept the login") as refused:
                await wrong(KEY, Work().quickly)
            await wrong.close()
        assert "another" not in str(refused.value)


class TestSql:
    @pytest.mark.parametrize("where", ["sqlite", "postgres"], indirect=True)
    async def test_the_table_is_made_by_whoever_comes_first(self, where, name):
        engine = create_async_engine(where)
        async with engine.begin() as connection:
            await connection.execute(text("DROP TABLE IF EXISTS tocsin_receive_turns"))
        several = [Once(where, name=name) for _ in range(8)]
        work = Work()
        assert await asyncio.gather(*(once(KEY, work.quickly, wait="20s") for once in several)) == [1] * 8
        for once in several:
            await once.close()
        await engine.dispose()

    @pytest.mark.parametrize("where", ["sqlite"], indirect=True)
    async def test_an_engine_stays_its_owners(self, where):
        engine = create_async_engine(where)
        async with Once(engine) as once:
            await once(KEY, Work().quickly)
        assert engine.pool.checkedin() > 0  # type: ignore[attr-defined]
        await engine.dispose()


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("", "cannot be used"),
        ("localhost", "cannot be used"),
        ("redis://localhost:port:s3cret", "cannot be read"),
        ("redis://h?timeout=s3cret", "cannot be read"),
        ("postgresql://u:s3cret@h/d", "postgresql\\+asyncpg://"),
        ("sqlite:///keys.db", "sqlite\\+aiosqlite:///FILE"),
        ("sqlite+aiosqlite://", "forgets with its process"),
        ("sqlite+aiosqlite:///:memory:", "forgets with its process"),
        ("mysql+aiomysql://u:s3cret@h/d", "cannot be used|SQLite or PostgreSQL"),
        ("mongodb://u:s3cret@h/d", "cannot be used"),
    ],
)
def test_an_address_that_is_none_is_refused_and_not_quoted(where, says):
    with pytest.raises(InvalidConfig, match=says) as refused:
        Once(where)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"lease": "99ms"},
        {"lease": "1h", "keep": "1m"},
        {"keep": "soon"},
        {"name": ""},
        {"name": "x" * 65},
        {"name": "\n"},
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError):
        Once("redis://localhost", **options)


def test_a_receiver_loads_neither_the_scheduler_nor_what_it_does_not_use():
    code = """
import sys, tocsin.receive
tocsin.receive.Once("redis://localhost")
print([name for name in sys.modules if name.partition(".")[0] in ("aiohttp", "sqlalchemy")])
print(sorted({".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("tocsin.")}))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n['tocsin.model', 'tocsin.receive']\n"


def test_without_the_extra_it_says_which_is_missing():
    code = """
import sys
sys.modules["sqlalchemy"] = None
from tocsin.receive import Once
Once("sqlite+aiosqlite:///keys.db")
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert "pip install 'tocsin[sql]'" in said
