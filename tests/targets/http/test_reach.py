"""What only this machine or its network should reach is not reached by requests, whatever it is called."""

from __future__ import annotations

import pytest

from tests.support.http_receiver import Receiver
from tests.support.one_delivery import Names, Sender
from tocsin import Http, Retry, Tocsin
from tocsin.testing import run_until_idle


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LocalHost",
        "2130706433",
        "017700000001",
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "127.0.0.1.",
    ],
)
async def test_this_machine_is_refused_by_any_name(receiver: Receiver, host: str) -> None:
    async with Sender() as sender:
        failure = await sender.fail(Http.get(f"http://{host}:{receiver.port}/"))
    assert failure.final
    assert receiver.received == []


@pytest.mark.parametrize("host", ["localhost.", "localhost..", "a.example"])
async def test_a_name_that_leads_here_is_refused(receiver: Receiver, host: str) -> None:
    async with Sender(resolver=Names(["127.0.0.1", "::1"])) as sender:
        failure = await sender.fail(Http.get(f"http://{host}:{receiver.port}/"))
    assert failure.final
    assert receiver.received == []


async def test_a_refusal_names_the_address_and_the_setting(receiver: Receiver) -> None:
    async with Sender("10.0.0.0/8", resolver=Names(["127.0.0.1"])) as sender:
        failure = await sender.fail(Http.get(f"http://hook.example.org:{receiver.port}/"))
    told = f"GET http://hook.example.org:{receiver.port}/: 127.0.0.1 is a loopback address"
    assert str(failure).startswith(told)
    assert "`http.allow`" in str(failure)


async def test_what_the_operator_allows_is_reached(receiver: Receiver) -> None:
    names = Names(["127.0.0.1"])
    for allow, host in [("127.0.0.1", "127.0.0.1"), ("127.0.0.0/8", "a.example"), ("*.internal", "b.internal")]:
        async with Sender(allow, resolver=names) as sender:
            assert (await sender.send(Http.get(f"http://{host}:{receiver.port}/")))["status"] == 200
    assert names.asked == ["a.example", "b.internal"]
    assert len(receiver.received) == 3


async def test_a_host_that_is_trusted_by_name_does_not_open_the_way_for_others(receiver: Receiver) -> None:
    async with Sender("a.internal", resolver=Names(["127.0.0.1"])) as sender:
        await sender.send(Http.get(f"http://a.internal:{receiver.port}/"))
        assert (await sender.fail(Http.get(f"http://b.internal:{receiver.port}/"))).final
        assert (await sender.fail(Http.get(f"http://127.0.0.1:{receiver.port}/"))).final
    assert len(receiver.received) == 1


async def test_a_name_that_means_something_else_at_the_second_look_does_not_get_through(receiver: Receiver) -> None:
    """DNS rebinding: the first answer is permitted, the one after it is not."""
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    url = f"http://rebinding.example:{receiver.port}/"
    async with Sender("127.0.0.1", resolver=names) as sender:
        await sender.send(Http.get(url))
        # Neither the pooled connection nor the remembered answer: both would be of the first look.
        await sender.target.close()
        sender.target._connections = None
        failure = await sender.fail(Http.get(url))
    assert len(names.asked) == 2
    assert failure.final
    assert "127.0.0.2" in str(failure)
    assert len(receiver.received) == 1


async def test_one_look_decides_and_connects(receiver: Receiver) -> None:
    """A second look-up between the check and the connection would get the address of this machine."""
    names = Names(["127.0.0.3"], ["127.0.0.1"])
    async with Sender("127.0.0.3", resolver=names) as sender:
        failure = await sender.fail(Http.get(f"http://rebinding.example:{receiver.port}/", timeout=5))
    assert names.asked == ["rebinding.example"]
    # Permitted, and nobody listens there.
    assert not failure.final
    assert "127.0.0.3" in str(failure)
    assert receiver.received == []


@pytest.mark.parametrize("addresses", [["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["::1", "127.0.0.1"]])
async def test_a_host_is_reached_at_those_of_its_addresses_that_are_permitted(
    receiver: Receiver, addresses: list[str]
) -> None:
    async with Sender("127.0.0.1", resolver=Names(addresses)) as sender:
        assert (await sender.send(Http.get(f"http://mixed.example:{receiver.port}/")))["status"] == 200


async def test_a_host_whose_permitted_address_is_down_is_tried_again(receiver: Receiver) -> None:
    port = receiver.port
    await receiver.stop()
    async with Sender("127.0.0.1", resolver=Names(["127.0.0.1", "127.0.0.2"])) as sender:
        assert not (await sender.fail(Http.get(f"http://mixed.example:{port}/"))).final


async def test_proxies_of_the_environment_are_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would connect to what we would not."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, receiver.url)
    async with Sender("127.0.0.1", resolver=Names(["127.0.0.2"])) as sender:
        assert (await sender.fail(Http.get("http://hidden.example/"))).final
    assert receiver.received == []


async def test_a_refused_run_is_dead_at_once(tocsin_app: Tocsin, receiver: Receiver) -> None:
    url = f"http://169.254.169.254:{receiver.port}/latest/meta-data"
    await tocsin_app.enqueue(Http.get(url), id="a", retry=Retry(5, 0))
    assert await run_until_idle(tocsin_app) == 1
    [dead] = [job async for job in tocsin_app.dead()]
    assert dead.failure is not None
    assert "169.254.169.254 is a metadata address" in dead.failure.error
