"""Parses the address of the store, as the user writes it.

    redis://[[user]:password@]host[:6379][/db]                    one server; rediss:// with TLS
    unix://[[user]:password@]/path/to/socket[?db=0]               one server on this machine
    redis+sentinel://[[user]:password@]host[:26379],.../service[/db]
    redis+cluster://[[user]:password@]host[:6379],...

`rediss+sentinel` and `rediss+cluster` use TLS. Options after `?` have redis-py's names.
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from tocsin.model.errors import InvalidConfig, did_you_mean

Node = tuple[str, int]

_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_PORTS = {"tcp": 6379, "sentinel": 26379, "cluster": 6379}
_LOGIN = {"db", "username", "password"}
_TLS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
_SENTINEL = {"sentinel_username", "sentinel_password"}
_CERT_REQS = ("none", "optional", "required")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS options. The field names are redis-py's without `ssl_`."""

    ca_certs: str | None = None
    # The certificates themselves. An address cannot contain them.
    ca_data: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    cert_reqs: str = "required"
    check_hostname: bool = True


class Address(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["tcp", "unix", "sentinel", "cluster"]
    nodes: tuple[Node, ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: Tls | None = None

    @property
    def shown(self) -> str:
        """The address for messages and logs, without password and options."""
        # Hide a name without a password: usually it is a password whose colon was forgotten.
        user = f"{self.username}@" if self.username and self.password else ""
        if self.kind == "unix":
            return f"unix://{user}{self.path}" + (f"?db={self.db}" if self.db else "")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes)
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "tcp" else f"+{self.kind}")
        path = [self.service] * bool(self.service) + [str(self.db)] * bool(self.db)
        return "/".join([f"{scheme}://{user}{hosts}", *path])

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def parse(url: str) -> Address:
    """Raises InvalidConfig, without quoting anything that may be part of a password."""
    scheme, rest = _scheme(url)
    authority, path, query = _parts(scheme, rest)
    login, _, hosts = authority.rpartition("@")
    family, _, kind = scheme.partition("+")
    if not kind:
        kind = "unix" if family == "unix" else "tcp"
    options = _options(query, kind, tls=family == "rediss")
    username, _, password = login.partition(":")
    target = _target(kind, hosts, unquote(path), options)
    return msgspec.convert(
        {
            "kind": kind,
            "username": unquote(username) or options.get("username"),
            "password": unquote(password) or options.get("password"),
            "sentinel_username": options.get("sentinel_username"),
            "sentinel_password": options.get("sentinel_password"),
            "tls": _tls(options) if family == "rediss" else None,
            **target,
        },
        Address,
    )


def _scheme(url: str) -> tuple[str, str]:
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    if not found or not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        raise InvalidConfig("the store address has no scheme: write it as redis://HOST:PORT/DB")
    if scheme not in _SCHEMES:
        raise InvalidConfig(f"unknown scheme {scheme!r} in the store address; {did_you_mean(scheme, _SCHEMES)}")
    return scheme, rest


def _parts(scheme: str, rest: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"([^/?#]*)([^?#]*)(?:\?([^#]*))?", rest)
    # An @ after the host, or a #, belongs to a password that was not escaped. urllib would cut the password in two, and
    # its halves would appear in messages as a port or an option.
    if found is None or ("@" in rest and "@" not in found[1] and scheme != "unix"):
        raise InvalidConfig(
            "the store address cannot be read: in its password write / as %2F, ? as %3F, # as %23, @ as %40"
        )
    return found[1], found[2], found[3] or ""


def _options(query: str, kind: str, *, tls: bool) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _LOGIN | _TLS | _SENTINEL:
            word = f"option {name!r}" if name.isidentifier() else "option"
            known = did_you_mean(name, _LOGIN | _TLS | _SENTINEL)
            raise InvalidConfig(f"unknown {word} in the store address; {known}")
        if name in _TLS and not tls:
            raise InvalidConfig(f"{name} in the store address needs TLS: write the scheme with rediss")
        if name in _SENTINEL and kind != "sentinel":
            raise InvalidConfig(f"{name} in the store address is for redis+sentinel:// only")
    return options


def _target(kind: str, hosts: str, path: str, options: dict[str, str]) -> dict[str, object]:
    if kind == "unix":
        if hosts or path in ("", "/"):
            raise InvalidConfig("a unix address has three slashes: unix:///path/to/socket")
        return {"path": path, "db": _db(options.get("db", ""))}
    service, db = "", path.strip("/")
    if kind == "sentinel":
        service, _, db = db.partition("/")
        if not service:
            raise InvalidConfig("the store address lacks the service: write redis+sentinel://HOST:PORT/SERVICE")
    number = _db(options.get("db", db))
    if kind == "cluster" and number:
        raise InvalidConfig("a cluster has database 0 only: leave the database out of the store address")
    nodes = tuple(_node(text, _PORTS[kind]) for text in hosts.split(","))
    if kind == "tcp" and len(nodes) > 1:
        raise InvalidConfig("several hosts in the store address need redis+sentinel:// or redis+cluster://")
    return {"nodes": nodes, "service": service, "db": number}


def _node(text: str, default: int) -> Node:
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*)(?::([0-9]+))?", text)
    if found is None or int(found[2] or default) > 65535:
        raise InvalidConfig("a host in the store address is not HOST or HOST:PORT")
    return unquote(found[1].strip("[]")) or "localhost", int(found[2] or default)


def _db(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise InvalidConfig("the database in the store address is not a number")
    return int(text or 0)


def _tls(options: dict[str, str]) -> Tls:
    given: dict[str, object] = {name.removeprefix("ssl_"): options[name] for name in _TLS & options.keys()}
    reqs, check = options.get("ssl_cert_reqs", "required"), options.get("ssl_check_hostname", "true").lower()
    if reqs not in _CERT_REQS:
        raise InvalidConfig(f"ssl_cert_reqs in the store address: {did_you_mean(reqs, _CERT_REQS)}")
    if check not in _TRUTH:
        raise InvalidConfig("ssl_check_hostname in the store address is true or false")
    return msgspec.convert({**given, "check_hostname": _TRUTH[check]}, Tls)
