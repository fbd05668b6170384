"""Where messages can go, and what is refused before it is stored, without telling what may be a password."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin import InvalidArgument, Message, Secret
from tocsin.model.broker_address import BrokerDestination, Server, parse


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis:///orders", BrokerDestination(Server("redis"), "orders")),
        (
            "redis://h/a%2Fb:c?db=2&maxlen=10",
            BrokerDestination(Server("redis", (("h", 6379),), db=2), "a/b:c", maxlen=10),
        ),
        (
            "rediss://:p%40ss@h:7000/s?ca=/x.crt",
            BrokerDestination(Server("rediss", (("h", 7000),), password="p@ss", ca="/x.crt"), "s"),
        ),
        ("kafka://b1,b2:9093/t.x", BrokerDestination(Server("kafka", (("b1", 9092), ("b2", 9093))), "t.x")),
        (
            "kafka+tls://u:p@b/t?sasl=SCRAM-SHA-512",
            BrokerDestination(Server("kafka+tls", (("b", 9092),), "u", "p", sasl="SCRAM-SHA-512"), "t"),
        ),
        ("amqp://h/q", BrokerDestination(Server("amqp", (("h", 5672),)), "q")),
        (
            "amqps://h/k?vhost=a/b&exchange=e",
            BrokerDestination(Server("amqps", (("h", 5671),), vhost="a/b"), "k", exchange="e"),
        ),
        ("amqp://h/?exchange=fanout", BrokerDestination(Server("amqp", (("h", 5672),)), "", exchange="fanout")),
        ("nats://[::1]:4223,h/a.b", BrokerDestination(Server("nats", (("::1", 4223), ("h", 4222))), "a.b")),
        ("nats+tls://token@h/a", BrokerDestination(Server("nats+tls", (("h", 4222),), user="token"), "a")),
    ],
    ids=range(10),
)
def test_addresses_that_messages_go_to(url: str, place: BrokerDestination) -> None:
    assert parse(url) == place
    assert Message(url).place == place


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("kafka+ssl://h/t", "did you mean 'kafka\\+tls'"),
        ("rabbitmq://h/q", "there are: amqp, "),
        ("user:secret@host/orders", "has no scheme"),
        ("redis://h", "as redis://HOST/STREAM"),
        ("kafka://h:9092", "as kafka://HOST/TOPIC"),
        ("amqp://h/", "or \\?exchange=NAME"),
        ("nats://h/", "as nats://HOST/SUBJECT"),
        ("kafka:///t", "has no host"),
        ("rediss:///t", "has no host"),
        ("redis://:secret@/t", "leave them out"),
        ("redis:///t?db=1", "leave them out"),
        ("redis://a,b/t", "names several hosts"),
        ("amqp://a,b/t", "names several hosts"),
        ("nats://h:0/t", "HOST or HOST:PORT"),
        ("nats://h:99999/t", "HOST or HOST:PORT"),
        ("kafka://a,,b/t", "HOST or HOST:PORT"),
        ("kafka://h/a topic", "without white space"),
        ("kafka://h/a%20topic", "a topic that Kafka does not take"),
        ("kafka://h/..", "a topic that Kafka does not take"),
        ("nats://h/a.*", "a subject that NATS does not take"),
        ("nats://h/a..b", "a subject that NATS does not take"),
        ("amqp://h/" + "q" * 256, "more than 255 bytes"),
        ("redis://h/" + "q" * 1001, "more than 1000 characters"),
        ("redis://h/s?max_len=5", "did you mean 'maxlen'"),
        ("redis://h/s?maxlen=many", "maxlen in the address of a message is a number"),
        ("redis://h/s?ca=/x", "unknown option 'ca'"),
        ("kafka://h/t?sasl=SCRAM-SHA512", "did you mean 'SCRAM-SHA-512'"),
        ("amqp://h/t?exchnage=x", "did you mean 'exchange'"),
        ("nats://h/t?stream=x", "it takes none"),
        ("kafka://h/{run.tenant}", "can stand in the value, the key and the headers only"),
        ("kafka://h/t#part", "cannot be read"),
    ],
    ids=range(31),
)
def test_addresses_that_no_message_goes_to(url: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Message(url)


@given(parts=st.lists(st.sampled_from(["sEcret", "/", "?", "#", "@", ":", "%", "&", "=", "//", " ", "x"])))
def test_no_part_of_a_password_is_told_whatever_is_wrong_with_it(parts: list[str]) -> None:
    assert "sEcret" not in told_of(f"amqp://user:sEcret{''.join(parts)}sEcret@host/queue")


def told_of(url: str) -> str:
    try:
        message = Message(url)
    except InvalidArgument as error:
        return str(error)
    return f"{message} {message!r} {message.place.server} {message.place!r}"


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("redis:///s", {"password": Secret.env("A")}, "is Tocsin's own server"),
        ("kafka://u:p@h/t", {"user": "u", "password": Secret.env("A")}, "has a login already"),
        ("kafka://h/t", {"user": "u"}, "needs password="),
        ("kafka://h/t", {"password": Secret.env("A")}, "needs user="),
        ("amqp://h/t", {"password": Secret.env("A")}, "needs user="),
        ("redis://h/s", {"headers": {"Value": "x"}}, "is set when the message is sent"),
        ("nats://h/s", {"headers": {"nats-msg-id": "x"}}, "is set when the message is sent"),
        ("nats://h/s", {"headers": {"Content-Type": "a/b"}, "cloudevent": "x"}, "a content type of its own"),
        ("nats://h/s", {"cloudevent": ""}, "cloudevent of a message must be text"),
    ],
    ids=range(9),
)
def test_what_does_not_go_together_is_refused(url: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Message(url, **options)


def test_a_password_alone_is_enough_where_there_are_no_users() -> None:
    for url in ("redis://h/s", "nats://h/s"):
        assert Message(url, password=Secret.env("A")).user is None
