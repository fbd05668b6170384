"""Networks and hosts as operators name them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from tocsin import InvalidArgument
from tocsin.model.allowed_hosts import allowed_hosts, entry_of


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("localhost", "localhost"),
        ("localhost", "LOCALHOST."),
        ("Hooks.Example.ORG", "hooks.example.org"),
        ("hooks.example.org.", "hooks.example.org"),
        ("*.internal", "a.internal"),
        ("*.internal", "a.b.internal."),
        ("my_service", "my_service"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("bücher.example", "bücher.example"),
        ("1.example", "1.example"),
    ],
)
def test_hosts_are_known_by_name(entry: str, host: str) -> None:
    assert allowed_hosts([entry]).have_name(host)


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("*.internal", "internal"),
        ("*.internal", "notinternal"),
        ("localhost", "localhost.example.org"),
        ("127.0.0.1", "127.0.0.1"),
        ("example.org", "a.example.org"),
        # Resolvers would end it at the NUL.
        ("*.internal", "127.0.0.1\0.internal"),
        ("*.internal", "127.0.0.1 .internal"),
        ("*.internal", "127.0.0.1%00.internal"),
        ("*.internal", "evil.example/.internal"),
        ("*.internal", "..internal"),
    ],
)
def test_other_hosts_are_not(entry: str, host: str) -> None:
    assert not allowed_hosts([entry]).have_name(host)


def test_networks_and_single_addresses() -> None:
    known = allowed_hosts(["10.0.0.0/8", "127.0.0.1", "::1", "fd00::/8", " 192.168.0.0/16 "])
    inside = ["10.255.0.1", "127.0.0.1", "::1", "fd00::1", "192.168.3.4"]
    assert [known.have_address(ip_address(each)) for each in inside] == [True] * 5
    outside = ["11.0.0.1", "127.0.0.2", "::2", "fe00::1", "8.8.8.8"]
    assert [known.have_address(ip_address(each)) for each in outside] == [False] * 5


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("10.0.0.5/8", "with that many bits it is 10.0.0.0/8"),
        ("10.0.0.0/33", "write 10.0.0.0/8"),
        ("http://user:secret@host/", r"'http://\*\*\*@host/' is neither.*leave out the scheme"),
        ("localhost:8080", "leave out the port"),
        ("[::1]", "the brackets"),
        ("*", "stands before the first dot"),
        ("*internal", "stands before the first dot"),
        ("a.*.internal", "stands before the first dot"),
        ("", "neither a network nor a host"),
        ("a b", "neither a network nor a host"),
        ("a..b", "neither a network nor a host"),
        # Addresses in disguise: a name is trusted wherever it leads.
        ("2130706433", "neither a network nor a host"),
        ("127.1", "neither a network nor a host"),
        ("0x7f.1", "neither a network nor a host"),
        ("0x7f000001", "neither a network nor a host"),
        ("300.1.1.1", "neither a network nor a host"),
        ("*.1", "stands before the first dot"),
    ],
)
def test_what_is_neither_is_refused_with_what_to_write(entry: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        entry_of(entry)
