"""Which addresses requests may go to."""

from __future__ import annotations

import socket

import pytest

from tocsin.model.allowed_hosts import allowed_hosts
from tocsin.targets.address_guard import AddressRefused, Guard

REFUSED = [
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("::1", "loopback"),
    ("10.0.0.1", "private"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.168.1.1", "private"),
    ("fd12:3456::1", "private"),
    ("fec0::1", "private"),
    ("169.254.0.1", "link-local"),
    ("fe80::1", "link-local"),
    ("fe80::1%eth0", "link-local"),
    ("100.64.0.1", "shared"),
    ("100.127.255.254", "shared"),
    ("224.0.0.1", "multicast"),
    ("ff02::1", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    ("0.0.0.0", "unspecified"),
    ("::", "unspecified"),
    ("0.1.2.3", "private"),
    ("192.0.2.1", "private"),
    ("198.18.0.1", "private"),
    ("169.254.169.254", "metadata"),
    ("168.63.129.16", "metadata"),
    ("100.100.100.200", "metadata"),
    ("fd00:ec2::254", "metadata"),
    ("192.0.0.192", "metadata"),
    # Other ways to write the same.
    ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:169.254.169.254", "metadata"),
    ("::ffff:10.0.0.1", "private"),
    ("::127.0.0.1", "reserved"),
    ("2002:7f00:1::", "loopback"),
    ("2002:a9fe:a9fe::1", "metadata"),
    ("2002:a83f:8110::", "metadata"),
    ("64:ff9b::7f00:1", "loopback"),
    ("64:ff9b::a9fe:a9fe", "metadata"),
    ("64:ff9b::a83f:8110", "metadata"),
    ("64:ff9b:1::a9fe:a9fe", "reserved"),
    # Teredo: a server on loopback, and a client whose address is written inverted.
    ("2001:0:7f00:1::", "loopback"),
    ("2001:0:808:808::5601:5601", "metadata"),
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]


@pytest.mark.parametrize(("address", "what"), REFUSED, ids=[address for address, _ in REFUSED])
def test_what_is_not_public_is_refused(address: str, what: str) -> None:
    with pytest.raises(AddressRefused, match=f"^.Errno 13. {address} is a {what}.* address.*`http.allow`"):
        Guard(allowed_hosts([])).check(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_is_not(address: str) -> None:
    Guard(allowed_hosts([])).check(address)


@pytest.mark.parametrize(
    ("allowed", "address"),
    [
        ("127.0.0.0/8", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "::ffff:127.0.0.1"),
        ("10.0.0.0/8", "64:ff9b::a00:1"),
        ("fd00::/8", "fd00:ec2::254"),
        ("168.63.129.16", "168.63.129.16"),
        ("0.0.0.0/0", "192.168.0.1"),
        ("fe80::/10", "fe80::1%eth0"),
    ],
)
def test_what_the_operator_allows_is_permitted(allowed: str, address: str) -> None:
    Guard(allowed_hosts([allowed])).check(address)


@pytest.mark.parametrize(
    ("allowed", "address"), [("127.0.0.1", "127.0.0.2"), ("::1", "127.0.0.1"), ("10.0.0.0/8", "192.168.0.1")]
)
def test_nothing_else_is(allowed: str, address: str) -> None:
    assert not Guard(allowed_hosts([allowed])).permits(address)


def test_no_socket_is_made_for_an_address_that_is_refused() -> None:
    guard = Guard(allowed_hosts(["127.0.0.1"]))
    info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    with pytest.raises(AddressRefused):
        guard.open_socket((*info, ("127.0.0.2", 80)))
    guard.open_socket((*info, ("127.0.0.1", 80))).close()
