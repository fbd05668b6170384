"""Failure classes: Python's own errors, chains, groups, errors that lie, and what users have to say."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import smtplib
import socket
import subprocess
import sys
from http import HTTPStatus

import pytest
import redis

from tests.support.captured_logs import capture_logs
from tocsin import InvalidArgument
from tocsin.model.errors import StoreChanged, StoreFull, StoreUnavailable
from tocsin.resilience.classify import Classifier, FailureClass

FORBIDDEN, THROTTLED = FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED
TRANSIENT, SERVER_ERROR, UNKNOWN = FailureClass.TRANSIENT, FailureClass.SERVER_ERROR, FailureClass.UNKNOWN


def classify(error: BaseException) -> FailureClass:
    return Classifier().classify(error)


class Refused(Exception):
    def __init__(self, status: object, *args: object) -> None:
        super().__init__(*args)
        self.status = status


def chained(*links: BaseException) -> BaseException:
    """The first was raised from the second, and so on."""
    for outer, inner in itertools.pairwise(links):
        outer.__cause__ = inner
    return links[0]


def during(inner: BaseException, outer: BaseException, suppressed: bool = False) -> BaseException:
    """`outer` was raised while `inner` was handled."""
    try:
        try:
            raise inner
        except BaseException:
            if suppressed:
                raise outer from None
            raise outer  # noqa: B904
    except BaseException as error:
        return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ECONNRESET, "m"), TRANSIENT),
        (OSError(errno.EPIPE, "m"), TRANSIENT),
        (OSError(errno.ETIMEDOUT, "m"), TRANSIENT),
        (OSError(errno.ENETUNREACH, "m"), TRANSIENT),
        (OSError(errno.EHOSTUNREACH, "m"), TRANSIENT),
        (OSError(errno.EIO, "m"), TRANSIENT),
        (OSError(errno.EMFILE, "m"), THROTTLED),
        (OSError(errno.ENOMEM, "m"), THROTTLED),
        (OSError(errno.EACCES, "m"), FORBIDDEN),
        (OSError(errno.EPERM, "m"), FORBIDDEN),
        (PermissionError("by hand"), FORBIDDEN),
        (ConnectionError("by hand"), TRANSIENT),
        (OSError(errno.ENOENT, "m"), UNKNOWN),
        (OSError(errno.ENOSPC, "m"), UNKNOWN),
        (OSError("m"), UNKNOWN),
        (socket.gaierror(socket.EAI_AGAIN, "m"), TRANSIENT),
        # As on systems where the numbers of getaddrinfo are positive.
        (socket.gaierror(errno.EACCES, "m"), TRANSIENT),
        (TimeoutError(), TRANSIENT),
        (asyncio.IncompleteReadError(b"", 1), TRANSIENT),
        (EOFError(), UNKNOWN),
        (MemoryError(), THROTTLED),
        (StoreUnavailable("m"), TRANSIENT),
        (StoreFull("m"), THROTTLED),
        (StoreChanged("m"), UNKNOWN),
        (ValueError("m"), UNKNOWN),
        (KeyboardInterrupt(), UNKNOWN),
        (asyncio.CancelledError(), UNKNOWN),
        # 550 of a mail server is no HTTP status.
        (smtplib.SMTPResponseException(550, "no such user"), UNKNOWN),
    ],
    ids=repr,
)
def test_errors_of_python_and_our_own(error, expected):
    assert classify(error) is expected


def test_what_the_system_really_raises(tmp_path, nobody):
    with pytest.raises(OSError) as refused:
        socket.create_connection(("127.0.0.1", nobody))
    assert classify(refused.value) is TRANSIENT
    with pytest.raises(OSError) as missing:
        os.stat(tmp_path / "nothing")
    assert classify(missing.value) is UNKNOWN


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("API rate limit exceeded", THROTTLED),
        ("rate-limited", THROTTLED),
        ("Too Many Requests", THROTTLED),
        ("request was throttled", THROTTLED),
        ("ThrottlingException: slow down", THROTTLED),
        ("Access Denied", FORBIDDEN),
        ("AccessDenied: not yours", FORBIDDEN),
        ("permission denied for table t", FORBIDDEN),
        ("is not authorized to perform: s3:GetObject", FORBIDDEN),
        ("got 503 Service Unavailable", SERVER_ERROR),
        ("connection reset by peer", TRANSIENT),
        ("the operation timed out", TRANSIENT),
        ("separate limits", UNKNOWN),
        ("forbidden character in name", UNKNOWN),
        ("", UNKNOWN),
        ("a" * 10_000_000 + "rate limit", UNKNOWN),
    ],
    ids=lambda value: value[:30],
)
def test_a_message_is_the_last_resort(message, expected):
    assert classify(RuntimeError(message)) is expected
    assert classify(Refused(500, message)) is SERVER_ERROR


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (chained(RuntimeError(), Refused(429)), THROTTLED),
        (chained(RuntimeError(), ValueError(), Refused(503)), SERVER_ERROR),
        # The wrapper says only that it failed; the cause says why.
        (chained(ConnectionError(), redis.AuthenticationError("m")), FORBIDDEN),
        (chained(ConnectionError(), ValueError()), TRANSIENT),
        # Otherwise the outermost counts, and a fact more than words.
        (chained(Refused(429), Refused(403)), THROTTLED),
        (chained(RuntimeError("access denied"), Refused(429)), THROTTLED),
        (chained(RuntimeError("job failed"), RuntimeError("too many requests")), THROTTLED),
        (during(Refused(429), ValueError()), THROTTLED),
        (during(Refused(429), ValueError(), suppressed=True), UNKNOWN),
        # What was being handled is no explanation.
        (during(Refused(403), ConnectionError()), TRANSIENT),
        (chained(ValueError(), during(Refused(403), ConnectionError())), TRANSIENT),
        (RuntimeError("carries it", Refused(403)), FORBIDDEN),
    ],
)
def test_a_chain_is_followed(error, expected):
    assert classify(error) is expected


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    first.__context__, second.__context__ = second, first
    assert classify(first) is UNKNOWN


def test_a_chain_is_followed_only_so_far():
    assert classify(chained(*(ValueError() for _ in range(20)), Refused(403))) is FORBIDDEN
    assert classify(chained(*(ValueError() for _ in range(100_000)), Refused(403))) is UNKNOWN


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([ConnectionError(), Refused(403), Refused(429)], FORBIDDEN),
        ([ConnectionError(), Refused(429), Refused(500)], THROTTLED),
        ([ConnectionError(), Refused(500), ValueError()], SERVER_ERROR),
        ([ValueError(), ConnectionError()], TRANSIENT),
        ([ValueError(), KeyError()], UNKNOWN),
        ([chained(ValueError(), Refused(403)), ConnectionError()], FORBIDDEN),
        ([ConnectionError(), ExceptionGroup("inner", [ValueError(), Refused(429)])], THROTTLED),
        ([ValueError("too many requests"), KeyError()], THROTTLED),
        ([KeyError()] * 1_000_000, UNKNOWN),
    ],
    ids=lambda value: str(len(value)) if isinstance(value, list) else None,
)
def test_a_group_is_what_its_most_demanding_member_is(members, expected):
    assert classify(ExceptionGroup("group", members)) is expected
    assert classify(chained(RuntimeError(), ExceptionGroup("group", members))) is expected


def test_groups_inside_groups_without_end():
    group = ExceptionGroup("group", [Refused(403)])
    for _ in range(30):
        group = ExceptionGroup("group", [group])
    assert classify(group) is FORBIDDEN
    for _ in range(100):
        group = ExceptionGroup("group", [group])
    assert classify(group) is UNKNOWN


class Raises(ConnectionError):
    """Every attribute that one could ask for raises."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class Odd(int):
    def __index__(self) -> int:
        raise RuntimeError

    __int__ = __eq__ = __le__ = __hash__ = __index__


class Anything:
    """Has every attribute, and can be called: says yes to whatever it is asked."""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Anything:
        return self


class SaysInt(Anything):
    """Claims to be a number."""

    @property
    def __class__(self) -> type:
        return int


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Raises(), TRANSIENT),
        (Refused(HTTPStatus.FORBIDDEN), FORBIDDEN),
        (Refused("403"), UNKNOWN),
        (Refused(True), UNKNOWN),
        (Refused(403.0), UNKNOWN),
        (Refused(None), UNKNOWN),
        (Refused(Anything()), UNKNOWN),
        (Refused(SaysInt()), UNKNOWN),
        (Refused(10**400), UNKNOWN),
        (Refused(Odd(403)), FORBIDDEN),
        (chained(Falsy(), Falsy(), Refused(429)), THROTTLED),
        (ExceptionGroup("group", [chained(Falsy(), Refused(429))]), THROTTLED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_raise_or_lie_do_no_harm(error, expected):
    assert classify(error) is expected


@pytest.mark.parametrize(
    "name", ["response", "code", "reason", "orig", "errno", "args", "sqlstate", "cause", "exceptions"]
)
def test_what_says_yes_to_everything_is_no_evidence(name):
    error = type("Liar", (Exception,), {name: Anything()})()
    assert classify(error) is UNKNOWN
    assert classify(type("Liar", (ExceptionGroup,), {name: Anything()})("group", [ValueError()])) is UNKNOWN


def test_nothing_is_imported_that_the_user_does_not_have():
    libraries = {"aiohttp", "azure", "botocore", "google", "grpc", "httpx", "requests", "sqlalchemy", "urllib3"}
    program = f"import sys, tocsin.resilience.classify; print({libraries} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"


def classifier(*functions) -> Classifier:
    made = Classifier()
    for function in functions:
        made.add(function)
    return made


@pytest.mark.parametrize("answer", [THROTTLED, "THROTTLED", "throttled"])
def test_a_user_has_the_first_word(answer):
    asks = classifier(lambda error: answer if isinstance(error, ConnectionError) else None)
    assert asks.classify(ConnectionError()) is THROTTLED
    assert asks.classify(Refused(403)) is FORBIDDEN
    assert asks.classify(chained(ValueError(), ConnectionError())) is THROTTLED
    assert asks.classify(ExceptionGroup("group", [ConnectionError()])) is THROTTLED


def test_a_users_transient_and_unknown_are_final():
    assert classifier(lambda _: TRANSIENT).classify(chained(ValueError(), Refused(403))) is TRANSIENT
    assert classifier(lambda _: UNKNOWN).classify(Refused(403)) is UNKNOWN


def test_functions_are_asked_in_order_until_one_knows():
    asks = classifier(lambda _: None, lambda _: "SERVER_ERROR", lambda _: "THROTTLED")
    assert asks.classify(ValueError()) is SERVER_ERROR


def test_a_user_is_asked_about_the_outermost_error_first():
    asked = []
    classifier(asked.append).classify(chained(inner := ValueError(), outer := KeyError()))
    assert asked == [inner, outer]


def raises(error):
    raise LookupError("broken")


@pytest.mark.parametrize("function", [raises, lambda _: "TROTTLED", lambda _: 429, lambda _: True])
def test_a_function_that_fails_or_talks_nonsense_is_passed_over_with_one_warning(function):
    asks = classifier(function, lambda _: "THROTTLED")
    with capture_logs() as logs:
        assert [asks.classify(ValueError()) for _ in range(3)] == [THROTTLED] * 3
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert function.__qualname__ in logs[0]["function"]


def test_the_warning_names_the_class_that_was_meant():
    with capture_logs() as logs:
        classifier(lambda _: "TROTTLED").classify(ValueError())
    assert "did you mean 'THROTTLED'?" in logs[0]["error"]


async def asynchronous(error):
    return None


@pytest.mark.parametrize("function", ["THROTTLED", None, asynchronous])
def test_what_cannot_be_asked_is_refused(function):
    with pytest.raises(InvalidArgument):
        Classifier().add(function)
