"""What the user writes, and what is said about it."""

from __future__ import annotations

import pytest

from tocsin.model.errors import InvalidConfig
from tocsin.store.connection.address import Address, Tls, parse

ADDRESSES = {
    "redis://": Address(kind="tcp", nodes=(("localhost", 6379),)),
    "redis://host": Address(kind="tcp", nodes=(("host", 6379),)),
    "REDIS://host:1/2": Address(kind="tcp", nodes=(("host", 1),), db=2),
    "redis://host/2?db=3": Address(kind="tcp", nodes=(("host", 6379),), db=3),
    "redis://[::1]:7": Address(kind="tcp", nodes=(("::1", 7),)),
    "redis://:p%40%2F%3As@h": Address(kind="tcp", nodes=(("h", 6379),), password="p@/:s"),
    "redis://:p@s:s@h": Address(kind="tcp", nodes=(("h", 6379),), password="p@s:s"),
    "redis://u:p@h": Address(kind="tcp", nodes=(("h", 6379),), username="u", password="p"),
    "redis://h?username=u&password=p%25": Address(kind="tcp", nodes=(("h", 6379),), username="u", password="p%"),
    "unix:///run/r.sock": Address(kind="unix", path="/run/r.sock"),
    "unix://:p@/run/a%20b?db=4": Address(kind="unix", path="/run/a b", db=4, password="p"),
    "rediss://h": Address(kind="tcp", nodes=(("h", 6379),), tls=Tls()),
    "rediss://h?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k&ssl_cert_reqs=none&ssl_check_hostname=no": (
        Address(
            kind="tcp",
            nodes=(("h", 6379),),
            tls=Tls(ca_certs="/ca", certfile="/c", keyfile="/k", cert_reqs="none", check_hostname=False),
        )
    ),
    "redis+sentinel://:p@a,b:7/jobs/2?sentinel_username=w&sentinel_password=s": Address(
        kind="sentinel",
        nodes=(("a", 26379), ("b", 7)),
        service="jobs",
        db=2,
        password="p",
        sentinel_username="w",
        sentinel_password="s",
    ),
    "rediss+sentinel://a/jobs": Address(kind="sentinel", nodes=(("a", 26379),), service="jobs", tls=Tls()),
    "redis+cluster://u:p@a:7000,b:7001": Address(
        kind="cluster", nodes=(("a", 7000), ("b", 7001)), username="u", password="p"
    ),
    "rediss+cluster://a": Address(kind="cluster", nodes=(("a", 6379),), tls=Tls()),
}

SHOWN = {
    "redis://": "redis://localhost:6379",
    "redis://u:secret@[::1]:7/2": "redis://u@[::1]:7/2",
    "redis://:secret@h?db=1": "redis://h:6379/1",
    "redis://secret@h": "redis://h:6379",
    "rediss://h?password=secret": "rediss://h:6379",
    "unix://:secret@/run/r?db=4": "unix:///run/r?db=4",
    "redis+sentinel://:secret@a,b/jobs/2?sentinel_password=secret": "redis+sentinel://a:26379,b:26379/jobs/2",
    "rediss+cluster://:secret@a": "rediss+cluster://a:6379",
}

MISTAKES = {
    "localhost:6379": "no scheme",
    "": "no scheme",
    "reddis://h": "'redis'",
    "http://h": "rediss\\+cluster",
    "redis://h?ssl_ca_cert=/x": "did you mean 'ssl_ca_certs'",
    "redis://h?socket_timeout=1": "unknown option 'socket_timeout'",
    "redis://h?ssl_ca_certs=/x": "needs TLS",
    "rediss://h?ssl_cert_reqs=require": "did you mean 'required'",
    "rediss://h?ssl_check_hostname=perhaps": "true or false",
    "redis://h?sentinel_password=s": "redis\\+sentinel:// only",
    "redis://h/one": "not a number",
    "redis://h:port": "HOST:PORT",
    "redis://h:70000": "HOST:PORT",
    "redis://a,b": "several hosts",
    "redis+sentinel://a": "lacks the service",
    "redis+cluster://a/1": "database 0 only",
    "unix://run/r.sock": "three slashes",
    "unix://": "three slashes",
}

UNESCAPED = ["hun/ter", "hun?ter", "hun#ter", "hun?ter=1", "hun@x/ter", "hun:ter/x", "hun?x&ter"]


@pytest.mark.parametrize("url", ADDRESSES)
def test_an_address_is_read(url: str) -> None:
    assert parse(url) == ADDRESSES[url]


@pytest.mark.parametrize("url", SHOWN)
def test_an_address_is_shown_without_its_password(url: str) -> None:
    assert parse(url).shown == SHOWN[url]
    assert "secret" not in repr(parse(url))


@pytest.mark.parametrize("url", MISTAKES)
def test_a_mistake_is_answered_with_what_to_write(url: str) -> None:
    with pytest.raises(InvalidConfig, match=MISTAKES[url]):
        parse(url)


@pytest.mark.parametrize("password", UNESCAPED)
@pytest.mark.parametrize("url", ["redis://:{}@host/0", "redis+sentinel://u:{}@a,b/jobs", "redis+cluster://:{}@a"])
def test_a_password_that_was_not_escaped_is_not_quoted_in_the_error(url: str, password: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse(url.format(password))
    assert "hun" not in str(caught.value)
    assert "ter" not in str(caught.value).replace("cluster", "")
