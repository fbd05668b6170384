"""The host of an address."""

from __future__ import annotations

import pytest

from tocsin.model.host import host_of


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.org", "http://example.org:80"),
        ("https://Example.ORG/a:1@b?c=d@e:2#f", "https://example.org:443"),
        ("HTTPS://example.org:8443/", "https://example.org:8443"),
        ("http://user:pa:ss@example.org?x", "http://example.org:80"),
        ("http://user:1@example.org#x", "http://example.org:80"),
        ("http://example.org:/", "http://example.org:80"),
        ("http://[::1]/", "http://[::1]:80"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
        ("kafka://A:9093,b:9094/topic", "kafka://a:9093,b:9094"),
        ("kafka://a,b/topic", "kafka://a,b:9092"),
        ("amqps://user@rabbit/queue", "amqps://rabbit:5671"),
        ("nats://n/subject", "nats://n:4222"),
        ("redis:///stream", "redis://"),
    ],
)
def test_it_is_scheme_host_and_port_in_lower_case_without_the_login(url: str, host: str) -> None:
    assert host_of(url) == host
