"""Networks and hosts that an operator allows: 10.0.0.0/8, 127.0.0.1, localhost, *.internal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

from tocsin.model.errors import InvalidArgument
from tocsin.model.http import without_login

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_HOST = re.compile(rf"(\*\.)?{_NAME.pattern}")
# Resolvers read such names as addresses: 2130706433 and 0x7f.1 are 127.0.0.1.
_NUMERIC = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")


class AllowedHosts(Struct, frozen=True):
    """A set of networks and of host names."""

    networks: tuple[Network, ...] = ()
    names: frozenset[str] = frozenset()
    # ".internal" for *.internal.
    endings: tuple[str, ...] = ()

    def have_address(self, address: Address) -> bool:
        return any(address in network for network in self.networks)

    def have_host(self, host: str) -> bool:
        """`host` is a name or an address."""
        try:
            return self.have_address(ip_address(host))
        except ValueError:
            return self.have_name(host)

    def have_name(self, host: str) -> bool:
        """Match whole valid names only: a resolver ends 127.0.0.1\\0.internal at the NUL and connects to 127.0.0.1."""
        name = plain_name(host)
        if name in self.names:
            return True
        return bool(self.endings) and name.endswith(self.endings) and _NAME.fullmatch(name) is not None


def allowed_hosts(entries: Iterable[str]) -> AllowedHosts:
    read = [entry_of(entry) for entry in entries]
    names = [entry for entry in read if isinstance(entry, str)]
    return AllowedHosts(
        networks=tuple(entry for entry in read if not isinstance(entry, str)),
        names=frozenset(name for name in names if not name.startswith("*")),
        endings=tuple(name[1:] for name in names if name.startswith("*")),
    )


def entry_of(text: str) -> Network | str:
    """Read one entry: a network, a host name or *.domain. Raises InvalidArgument with how to write it."""
    try:
        return ip_network(text.strip())
    except ValueError:
        name = plain_name(text.strip())
    if _HOST.fullmatch(name) and not _NUMERIC.fullmatch(name):
        return name
    raise InvalidArgument(f"{without_login(text)!r:.100} is neither a network nor a host{_why(text.strip())}")


def plain_name(host: str) -> str:
    """The form in which names are compared: lower case, in ASCII, without the dot of the root."""
    name = host.lower().rstrip(".")
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode()
    except UnicodeError:
        return name


def _why(text: str) -> str:
    try:
        return f": with that many bits it is {ip_network(text, strict=False)}"
    except ValueError:
        pass
    if "://" in text:
        return ": leave out the scheme and the path"
    if re.fullmatch(r"[^:]+:\d+|\[.*\](:\d+)?", text):
        return ": leave out the port, and the brackets of an IPv6 address"
    if "*" in text:
        return ": * stands before the first dot, as in *.internal; 0.0.0.0/0 and ::/0 are all there is"
    return ": write 10.0.0.0/8, 127.0.0.1, localhost or *.internal"
