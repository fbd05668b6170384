"""The guard that keeps requests and messages from addresses that only this machine, its network or its cloud may reach.

The guard checks the address when the socket that connects to it is made, and not when the name is looked up: a name
that is looked up twice may resolve to another address the second time.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

from tocsin.model.allowed_hosts import Address, AllowedHosts

# Metadata services of clouds give every machine its credentials. Some of their addresses look public.
_METADATA = frozenset(
    map(ip_address, ("168.63.129.16", "fd00:ec2::254", "169.254.169.254", "100.100.100.200", "192.0.0.192"))
)
_NAT64 = IPv6Network("64:ff9b::/96")
_FIRST_MATCHING: tuple[tuple[str, Callable[[Address], bool]], ...] = (
    ("metadata", lambda address: address in _METADATA),
    ("unspecified", lambda address: address.is_unspecified),
    ("loopback", lambda address: address.is_loopback),
    ("link-local", lambda address: address.is_link_local),
    ("multicast", lambda address: address.is_multicast),
    ("reserved", lambda address: address.is_reserved),
    ("private", lambda address: address.is_private or getattr(address, "is_site_local", False)),
    ("shared or reserved", lambda address: not address.is_global),
)


class AddressRefused(OSError):
    """Jobs may not reach this address. Raised before a socket is made, so the error does not tell an open port from a
    closed one."""

    def __init__(self, address: str, what: str, setting: str) -> None:
        self.address = address
        self.what = what
        super().__init__(
            errno.EACCES,
            f"{address} is a {what} address, and not for jobs unless the operator lists it, its network or the "
            f"host's name in the setting `{setting}`",
        )


class Guard:
    """Permits public addresses, and those that the operator lists in `setting`."""

    def __init__(self, allowed: AllowedHosts, setting: str = "http.allow") -> None:
        self._allowed = allowed
        self._setting = setting

    def trusts(self, host: str) -> bool:
        """Whether the operator listed the host by name: then any address of it is permitted."""
        return self._allowed.have_name(host)

    def check(self, address: str) -> None:
        """Raises AddressRefused."""
        # A link-local address is followed by % and its interface.
        what = self._refused(ip_address(address.partition("%")[0]))
        if what is not None:
            raise AddressRefused(address, what, self._setting)

    def permits(self, address: str) -> bool:
        try:
            self.check(address)
        except AddressRefused:
            return False
        return True

    def open_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for this address. The caller connects it to this address and no other."""
        family, kind, protocol, _, address = info
        self.check(address[0])
        return socket.socket(family, kind, protocol)

    def _refused(self, address: Address) -> str | None:
        if self._allowed.have_address(address):
            return None
        inside = tuple(_inside(address))
        if inside:
            return next((what for each in inside if (what := self._refused(each)) is not None), None)
        return next((what for what, is_so in _FIRST_MATCHING if is_so(address)), None)


def _inside(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that packets to this IPv6 address reach, if it only wraps them."""
    if not isinstance(address, IPv6Address):
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo
    elif address in _NAT64:
        yield IPv4Address(int(address) & 0xFFFFFFFF)
