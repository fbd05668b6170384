"""What a request, a message, a program and a secret may be: the rest is refused before it is stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tocsin import Http, InvalidArgument, Message, Secret, Subprocess
from tocsin.model import msgpack
from tocsin.model.errors import RecordUnreadable
from tocsin.model.http import without_login
from tocsin.model.job import Spec
from tocsin.model.record import FIXED_SIZE, decode_spec, encode_spec
from tocsin.model.target import HTTP, fields_of, name_of, target_of

URL = "https://example.org/hook"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "http://localhost:8080/a?b=c#d",
        "https://user:secret@example.org/",
        "http://[::1]:80/",
        "https://bücher.example/ä",
        "https://example.org/{run.id}?{run.due}",
        "https://example.org/{not a field}".replace(" ", "_"),
    ],
)
def test_urls_that_can_be_sent_to(url: str) -> None:
    assert Http.get(url).url == url


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "a URL is text"),
        ("example.org", "begins with http"),
        ("ftp://example.org/", "begins with http"),
        ("file:///etc/passwd", "begins with http"),
        ("https:///path", "begins with http"),
        ("https://example.org:99999/", "begins with http"),
        ("https://example.org/ a", "without white space"),
        ("https://example.org/\r\nHost: other", "without white space"),
        ("https://example.org/" + "a" * 8000, "up to 8000"),
        ("https://{run.tenant}.example.org/", "the host of a URL cannot have fields"),
        ("https://example.org/{run.dew}", "did you mean 'due'"),
        ("https://example.org/{run.}", "no run has that"),
    ],
    ids=range(12),
)
def test_urls_that_cannot(url: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Http.get(url)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"json": {"a": object()}}, "this is no JSON"),
        ({"json": 1, "body": b"1"}, "not both"),
        ({"body": 5}, "a body is bytes or text"),
        ({"headers": {"Bad Name": "x"}}, "is no name of a header"),
        ({"headers": {"X": "a\r\nB: c"}}, "on one line"),
        ({"headers": {"X": 5}}, "on one line"),
        ({"headers": {"Idempotency-Key": "mine"}}, "is set when the request is sent"),
        ({"headers": {"tocsin-run": "mine"}}, "is set when the request is sent"),
        ({"headers": {"Content-Length": "0"}}, "is set when the request is sent"),
        ({"headers": {"X": "{run.nothing}"}}, "no run has that"),
        ({"timeout": 0}, "between 1 ms and a day"),
        ({"timeout": "3d"}, "between 1 ms and a day"),
        ({"expect": (99,)}, "is no HTTP status"),
        ({"sign": "whsec_abc"}, "secrets are not stored"),
        ({"redirects": 11}, "from 0 to 10"),
    ],
    ids=range(15),
)
def test_requests_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Http.post(URL, **options)


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "host",
        "hOST",
        "Connection",
        "KEEP-ALIVE",
        "Transfer-Encoding",
        "content-length",
        "TE",
        "Trailer",
        "Upgrade",
        "Expect",
        "Proxy-Connection",
        "Proxy-Authorization",
    ],
)
def test_what_is_the_connections_or_the_urls_to_say_is_not_the_jobs(name: str) -> None:
    for value in ("admin.internal", Secret.env("TOCSIN_SECRET_HOST")):
        with pytest.raises(InvalidArgument, match=f"the header {name} is set when the request is sent"):
            Http.post(URL, headers={"X": "y", name: value})


@pytest.mark.parametrize("method", ["get", "", "G ET", "POST\r\n", None])
def test_methods_that_are_none(method: Any) -> None:
    with pytest.raises(InvalidArgument, match="is no HTTP method"):
        Http(method, URL)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mqtt://host/topic", "did you mean|there are"),
        ("kafka://broker:9092", "does not say where to"),
        ("kafka:///topic", "has no host"),
        ("nats://host:port/x", "is no address"),
        (5, "is text"),
    ],
)
def test_addresses_that_no_message_goes_to(url: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Message(url)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"value": {1, object()}}, "this is no JSON"),
        ({"key": 5}, "the key"),
        ({"key": "{run.x}"}, "no run has that"),
        ({"headers": {"X": Secret.env("A")}}, "must be text"),
        ({"password": "plain"}, "secrets are not stored"),
        ({"timeout": -1}, "timeout"),
    ],
    ids=range(6),
)
def test_messages_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Message("kafka://broker/topic", **options)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"argv": "rm -rf /"}, "there is no shell"),
        ({"argv": []}, "needs a program"),
        ({"argv": ["a", 5]}, "text without NUL"),
        ({"argv": ["a", "b\0c"]}, "text without NUL"),
        ({"argv": ["a", "{run.x}"]}, "no run has that"),
        ({"argv": ["a"], "env": {"A=B": "c"}}, "is no name of a variable"),
        ({"argv": ["a"], "output": 2**30}, "output must be from"),
        ({"argv": ["a"], "timeout": 0}, "between 1 ms and 30 days"),
    ],
    ids=range(8),
)
def test_programs_that_cannot_be(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Subprocess(**given)


def test_a_secret_names_a_place() -> None:
    assert str(Secret.env("TOKEN", "Bearer ")) == "Bearer <env TOKEN>"
    with pytest.raises(InvalidArgument, match="named by a variable or a path"):
        Secret.file("")
    with pytest.raises(InvalidArgument, match="in the environment or a file"):
        Secret("vault", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.org/a@b", "https://example.org/a@b"),
        ("https://user:pass@example.org/", "https://***@example.org/"),
        ("https://user:p@ss@example.org?x=@", "https://***@example.org?x=@"),
        ("amqp://token@host", "amqp://***@host"),
    ],
)
def test_a_login_is_not_shown(url: str, shown: str) -> None:
    assert without_login(url) == shown


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(value=json_values, header=st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_what_can_be_made_comes_back_from_a_record_as_it_was(value: Any, header: str) -> None:
    assume("{run." not in header and "{run." not in msgpack.encode(value).decode("utf-8", "ignore"))
    targets = [
        Http.post(URL, json=value, headers={"X": header}),
        Http.put(URL, body=header.encode(), sign=Secret.env("A"), expect=(404,)),
        Message("nats://host/subject", value=value, headers={"X": header}),
        Subprocess(["a", header], env={"A": header, "B": Secret.file("/x")}),
    ]
    for target in targets:
        spec = Spec(name_of(target), fields_of(target))
        record = bytes(FIXED_SIZE) + encode_spec(spec)
        assert target_of(decode_spec(record)) == target


@pytest.mark.parametrize("args", [(), (1,), ("GET",), ("GET", "ftp://x"), ("GET", URL, 5), ("GET", URL, {"a": 1})])
def test_garbage_in_a_record_is_no_target(args: tuple[Any, ...]) -> None:
    with pytest.raises(RecordUnreadable, match=r"the arguments of tocsin\.http cannot be read"):
        target_of(Spec(HTTP, args))
