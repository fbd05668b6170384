"""A server that will not do is refused before any work is given to it, with what to do about it."""

from __future__ import annotations

import pytest

from tests.support.foreign_server import Foreign
from tests.support.servers import SERVICE, Server, ask, available, cluster, follow, sentinel
from tocsin.model.errors import StoreRefused, StoreUnavailable
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import open_client
from tocsin.store.connection.server_check import ServerInfo, check_server


async def check(url: str) -> ServerInfo:
    client = open_client(parse(url))
    try:
        return await check_server(client, parse(url))
    finally:
        await client.aclose()


async def refusal(url: str) -> str:
    with pytest.raises(StoreRefused) as caught:
        await check(url)
    assert parse(url).shown in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("flavour", available())
async def test_a_good_server_tells_what_it_is(flavour: str) -> None:
    product, version = {"valkey": ("valkey", "9."), "redis62": ("redis", "6.2"), "redis7": ("redis", "7.")}[flavour]
    for aof in (True, False):
        with Server(flavour, aof=aof) as server:
            info = await check(server.url)
        assert info == ServerInfo(product=product, version=info.version, primaries=1, aof=aof)
        assert info.version.startswith(version)


@pytest.mark.parametrize("version", ["5.0.14", "6.0.16", "2.8"])
async def test_an_old_redis_is_refused(version: str) -> None:
    async with Foreign(redis_version=version) as foreign:
        assert f"Redis {version}: Tocsin needs Redis 6.2" in await refusal(f"redis://127.0.0.1:{foreign.port}")


async def test_any_valkey_will_do() -> None:
    async with Foreign(redis_version="5.0.14", valkey_version="8.0.1") as foreign:
        info = await check(f"redis://127.0.0.1:{foreign.port}")
    assert (info.product, info.version) == ("valkey", "8.0.1")


async def test_a_server_that_is_loading_may_be_tried_again() -> None:
    async with Foreign(loading=1) as foreign:
        with pytest.raises(StoreUnavailable, match="loading"):
            await check(f"redis://127.0.0.1:{foreign.port}")


async def test_a_server_that_evicts_is_refused() -> None:
    with Server.valkey(maxmemory_policy="allkeys-lru") as server:
        text = await refusal(server.url)
    assert "maxmemory-policy allkeys-lru" in text
    assert "set maxmemory-policy to noeviction" in text


async def test_a_user_who_may_not_read_the_configuration_can_still_check_it() -> None:
    """Managed servers forbid CONFIG."""
    with Server.valkey(maxmemory_policy="allkeys-lru") as server, server.client() as plain:
        plain.acl_setuser("app", enabled=True, passwords=["+hunter2"], keys=["*"], commands=["+@all", "-config"])
        assert "allkeys-lru" in await refusal(f"unix://app:hunter2@{server.socket}")


async def test_a_user_who_may_not_ask_for_info_is_refused() -> None:
    with Server.valkey() as server, server.client() as plain:
        plain.acl_setuser("app", enabled=True, passwords=["+hunter2"], keys=["*"], commands=["+@all", "-info"])
        assert "ACL" in await refusal(f"unix://app:hunter2@{server.socket}")


@pytest.mark.parametrize("flavour", available())
@pytest.mark.parametrize("scheme", ["redis", "unix"])
@pytest.mark.parametrize(
    ("login", "said"), [("", "wants a password"), (":hunter3@", "refused the user or the password")]
)
async def test_a_wrong_password_is_refused_and_not_shown(flavour: str, scheme: str, login: str, said: str) -> None:
    with Server(flavour, tcp=True, password="hunter2") as server:
        where = f"127.0.0.1:{server.port}/1" if scheme == "redis" else f"{server.socket}?db=1"
        text = await refusal(f"{scheme}://{login}{where}")
    assert said in text
    assert "hunter" not in text


async def test_a_password_for_a_server_without_one_is_refused_and_not_shown() -> None:
    with Server.valkey() as server:
        text = await refusal(f"unix://:hunter2@{server.socket}")
    assert "without any password configured" in text
    assert "hunter2" not in text


async def test_a_database_that_does_not_exist_is_refused() -> None:
    with Server.valkey() as server:
        assert "no such database" in await refusal(server.url + "?db=99")


async def test_a_replica_is_refused_and_names_its_primary() -> None:
    with Server.valkey(tcp=True, repl_diskless_sync_delay=0) as primary, Server.valkey() as replica:
        follow(replica, primary)
        assert f"replica: use its primary, 127.0.0.1:{primary.port}" in await refusal(replica.url)


async def test_a_cluster_is_checked_on_every_primary_and_under_its_own_scheme() -> None:
    with cluster(2, aof=True) as several:
        info = await check(several.url)
        assert (info.product, info.primaries, info.aof) == ("valkey", 2, True)
        assert "redis+cluster://" in await refusal(several.nodes[0].url)
        with several.nodes[1].client() as plain:
            plain.config_set("maxmemory-policy", "volatile-ttl")
        assert f"node 127.0.0.1:{several.nodes[1].port}" in await refusal(several.url)
        for node in several.nodes:
            with node.client() as plain:
                plain.config_set("requirepass", "hunter2")
        assert "wants a password" in await refusal(several.url)
        text = await refusal(several.url.replace("//", "//:hunter3@"))
        assert "refused the user or the password" in text
        assert "hunter" not in text


async def test_a_single_server_is_not_a_cluster() -> None:
    with Server.valkey(tcp=True) as server:
        assert "is not a cluster" in await refusal(server.url.replace("redis:", "redis+cluster:"))


async def test_a_sentinel_is_addressed_as_such_with_a_service_it_knows() -> None:
    with sentinel(password="hunter2") as watched:
        assert (await check(watched.url)).primaries == 1
        assert "is a sentinel" in await refusal(watched.sentinel.url)
        assert f"did you mean {SERVICE!r}" in await refusal(watched.url.replace(SERVICE, "tocsins"))
        wrong = watched.url.replace("hunter2", "hunter3")
        assert "hunter" not in await refusal(wrong)
        with watched.sentinel.client() as plain:
            ask(plain, "ACL SETUSER", "default", "resetpass", ">hunter4")
        text = await refusal(f"{watched.url}?sentinel_password=hunter5")
        assert "sentinel_password" in text
        assert "hunter" not in text
        assert (await check(f"{watched.url}?sentinel_password=hunter4")).primaries == 1
