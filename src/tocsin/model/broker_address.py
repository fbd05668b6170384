"""Addresses of message brokers, as users write them.

    redis://[[user]:password@]host[:6379]/stream[?db=0&maxlen=10000]      rediss:// with TLS
    redis:///stream[?maxlen=10000]                                        Tocsin's own server
    kafka://[user:password@]host[:9092],.../topic[?sasl=SCRAM-SHA-512]    kafka+tls://
    amqp://[user:password@]host[:5672]/queue[?vhost=/]                    amqps://, port 5671
    amqp://[user:password@]host/routing-key?exchange=name
    nats://[user:password@]host[:4222],.../subject                        nats+tls://

With TLS `?ca=/path` names a file with the certificate authority to trust, on the worker's machine. Paths and options
are percent-decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.model.http import LONGEST_URL, without_login
from tocsin.model.template import MARK

Node = tuple[str, int]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LONGEST_NAME = 1000
# RabbitMQ's limit for routing keys and names of exchanges, in bytes.
LONGEST_ROUTE = 255

_TEXT = re.compile(r"[^\x00-\x20\x7f]+")
_PARTS = re.compile(r"([^/?#]*)(?:/([^?#]*))?(?:\?([^#]*))?")
_NODE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]@]+)(?::([0-9]+))?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")


class Scheme(Struct, frozen=True):
    """The scheme of an address, and what it means."""

    broker: str
    port: int
    options: tuple[str, ...]
    tls: bool = False
    # Whether an address may list several hosts of one cluster.
    several: bool = False


SCHEMES = {
    "redis": Scheme("redis", 6379, ("db", "maxlen")),
    "rediss": Scheme("redis", 6379, ("db", "maxlen", "ca"), tls=True),
    "kafka": Scheme("kafka", 9092, ("sasl",), several=True),
    "kafka+tls": Scheme("kafka", 9092, ("sasl", "ca"), tls=True, several=True),
    "amqp": Scheme("rabbitmq", 5672, ("vhost", "exchange")),
    "amqps": Scheme("rabbitmq", 5671, ("vhost", "exchange", "ca"), tls=True),
    "nats": Scheme("nats", 4222, (), several=True),
    "nats+tls": Scheme("nats", 4222, ("ca",), tls=True, several=True),
}
BROKERS = tuple(sorted({scheme.broker for scheme in SCHEMES.values()}))


class Server(Struct, frozen=True):
    """A broker and its login. Messages with the same Server share a connection."""

    scheme: str
    # Empty: Tocsin's own server.
    nodes: tuple[Node, ...] = ()
    user: str | None = None
    password: str | None = None
    db: int = 0
    vhost: str = "/"
    sasl: str = MECHANISMS[0]
    ca: str | None = None

    @property
    def broker(self) -> str:
        return SCHEMES[self.scheme].broker

    @property
    def tls(self) -> bool:
        return SCHEMES[self.scheme].tls

    @property
    def hosts(self) -> list[str]:
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes]

    def __str__(self) -> str:
        """For people, and as the name of its circuit breaker: without the login."""
        return f"{self.scheme}://{','.join(self.hosts)}"

    def __repr__(self) -> str:
        return f"<Server {self}>"


class BrokerDestination(Struct, frozen=True):
    """A stream, topic, queue or subject on a broker."""

    server: Server
    name: str
    # RabbitMQ only. "" is the default exchange, which delivers to the queue called `name`.
    exchange: str = ""
    # Approximate maximum length of a stream on Redis; 0: unlimited.
    maxlen: int = 0


def parse(url: object) -> BrokerDestination:
    """Raises InvalidArgument, without quoting anything that may be part of a password."""
    if not isinstance(url, str):
        raise InvalidArgument(f"the address of a message is text, not {url!r:.200}")
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise InvalidArgument("the address of a message has no scheme: write it as kafka://HOST/TOPIC, for example")
    if scheme not in SCHEMES:
        raise InvalidArgument(f"messages cannot go to {scheme!r:.50}://; {did_you_mean(scheme, SCHEMES)}")
    authority, path, query = _parts(url, rest)
    login, _, hosts = authority.rpartition("@")
    options = _options(scheme, query)
    user, _, password = login.partition(":")
    server = Server(
        scheme=scheme,
        nodes=_nodes(url, scheme, hosts),
        user=unquote(user) or None,
        password=unquote(password) or None,
        db=_number(options, "db"),
        vhost=options.get("vhost", "/"),
        sasl=_mechanism(options),
        ca=options.get("ca"),
    )
    if not server.nodes and (login or options.keys() - {"maxlen"}):
        _refuse(url, "is Tocsin's own server, which has its login and database already: leave them out")
    destination = BrokerDestination(server, unquote(path), options.get("exchange", ""), _number(options, "maxlen"))
    _NAMES[server.broker](url, destination)
    return destination


def _refuse(url: str, why: str) -> NoReturn:
    raise InvalidArgument(f"{without_login(url)!r:.200} {why}")


def _parts(url: str, rest: str) -> tuple[str, str, str]:
    found = _PARTS.fullmatch(rest)
    if found is None or "@" in rest[len(found[1]) :]:
        # An unescaped password was cut in two. Its halves must not appear in messages as a port or a topic.
        raise InvalidArgument(
            "the address of a message cannot be read: in names and passwords write / as %2F, ? as %3F, # as %23 and "
            "@ as %40"
        )
    if len(url) > LONGEST_URL or not _TEXT.fullmatch(url):
        _refuse(url, f"is no address: text of up to {LONGEST_URL} characters without white space")
    if MARK in url:
        _refuse(url, "has fields of the run, which can stand in the value, the key and the headers only")
    return found[1], found[2] or "", found[3] or ""


def _options(scheme: str, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = SCHEMES[scheme].options
    for name in options:
        if name not in known:
            word = f"option {name!r:.50}" if name.isidentifier() else "option"
            there = did_you_mean(name, known) if known else "it takes none"
            raise InvalidArgument(f"unknown {word} in an address that begins with {scheme}://; {there}")
    return options


def _nodes(url: str, scheme: str, hosts: str) -> tuple[Node, ...]:
    if not hosts and scheme == "redis":
        return ()
    if not hosts:
        _refuse(url, "has no host")
    nodes = tuple(_node(url, text, SCHEMES[scheme].port) for text in hosts.split(","))
    if len(nodes) > 1 and not SCHEMES[scheme].several:
        _refuse(url, "names several hosts: kafka:// and nats:// may, others have one address")
    return nodes


def _node(url: str, text: str, default: int) -> Node:
    found = _NODE.fullmatch(text)
    host = "" if found is None else unquote(found[1].strip("[]"))
    if found is None or not _can_be_looked_up(host) or not 0 < int(found[2] or default) <= 65535:
        _refuse(url, "is no address: write each host as HOST or HOST:PORT")
    return host, int(found[2] or default)


def _can_be_looked_up(host: str) -> bool:
    """The host is percent-decoded already, so it may hold a NUL, where a resolver would end the name."""
    try:
        return _TEXT.fullmatch(host) is not None and bool(host.encode("idna"))
    except UnicodeError:
        return False


def _number(options: dict[str, str], name: str) -> int:
    text = options.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InvalidArgument(f"{name} in the address of a message is a number, not {text!r:.50}")
    return int(text)


def _mechanism(options: dict[str, str]) -> str:
    said = options.get("sasl", MECHANISMS[0])
    if said not in MECHANISMS:
        raise InvalidArgument(f"there is no sasl={said!r:.50} for messages; {did_you_mean(said, MECHANISMS)}")
    return said


def _check_stream(url: str, destination: BrokerDestination) -> None:
    if not destination.name:
        _refuse(url, "does not say where to: add the name of the stream after the host, as redis://HOST/STREAM")
    if len(destination.name) > LONGEST_NAME:
        _refuse(url, f"has a name of more than {LONGEST_NAME} characters")


def _check_topic(url: str, destination: BrokerDestination) -> None:
    if not destination.name:
        _refuse(url, "does not say where to: add the topic after the hosts, as kafka://HOST/TOPIC")
    if not _TOPIC.fullmatch(destination.name) or destination.name in (".", ".."):
        _refuse(url, "has a topic that Kafka does not take: 1 to 249 of A-Z a-z 0-9 . _ -")


def _check_route(url: str, destination: BrokerDestination) -> None:
    if not destination.name and not destination.exchange:
        _refuse(url, "does not say where to: add the queue after the host, as amqp://HOST/QUEUE, or ?exchange=NAME")
    for text in (destination.name, destination.exchange, destination.server.vhost):
        if len(text.encode()) > LONGEST_ROUTE:
            _refuse(url, f"has a name of more than {LONGEST_ROUTE} bytes")


def _check_subject(url: str, destination: BrokerDestination) -> None:
    if not destination.name:
        _refuse(url, "does not say where to: add the subject after the hosts, as nats://HOST/SUBJECT")
    if not _SUBJECT.fullmatch(destination.name) or len(destination.name) > LONGEST_NAME:
        _refuse(url, "has a subject that NATS does not take: words joined by dots, without * and >")


_NAMES: dict[str, Callable[[str, BrokerDestination], None]] = {
    "redis": _check_stream,
    "kafka": _check_topic,
    "rabbitmq": _check_route,
    "nats": _check_subject,
}
