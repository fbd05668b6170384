"""Log lines: JSON where a machine reads them, readable where a person does."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator

import pytest

from tocsin.cli import logs
from tocsin.model.errors import InvalidArgument
from tocsin.telemetry.logs import get_logger


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """Standard logging as a fresh process has it; pytest adds handlers of its own to the root while a test runs."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def test_each_line_is_an_object_with_its_level_its_part_and_the_error() -> None:
    out = io.StringIO()
    logs.set_up("info", out)
    log = get_logger("tocsin.part")
    log.debug("not this")
    try:
        raise ValueError("é\n")
    except ValueError:
        log.exception("that", job="a")
    [line] = out.getvalue().splitlines()
    told = json.loads(line)
    assert (told["event"], told["level"], told["logger"], told["job"]) == ("that", "error", "tocsin.part", "a")
    assert "ValueError: é" in told["exception"]
    assert told["timestamp"].endswith("Z")


def test_a_terminal_gets_words_and_colours() -> None:
    out = Terminal()
    logs.set_up("debug", out)
    get_logger("tocsin.part").debug("hello", job="a")
    assert "hello" in out.getvalue()
    assert "\x1b[" in out.getvalue()


def test_standard_logging_comes_out_alike() -> None:
    out = io.StringIO()
    with bare_root():
        logs.adopt_standard_logging("warning", out)
        logging.getLogger("users.code").info("not this")
        logging.getLogger("users.code").warning("%s apples", 3)
    [line] = out.getvalue().splitlines()
    assert json.loads(line)["event"] == "3 apples"
    assert json.loads(line)["logger"] == "users.code"


def test_standard_logging_that_a_program_has_set_up_is_left_alone() -> None:
    theirs = logging.StreamHandler(io.StringIO())
    with bare_root() as root:
        root.addHandler(theirs)
        logs.adopt_standard_logging("warning", io.StringIO())
        assert root.handlers == [theirs]


def test_an_unknown_level_names_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match="did you mean 'warning'"):
        logs.set_up("warnign")


def test_a_terminal_is_sent_no_control_characters_and_no_locals() -> None:
    out = Terminal()
    logs.set_up("info", out)
    try:
        secret = "open" + "sesame"
        raise ValueError(f"\x1b]0;title\x07 {len(secret)}")
    except ValueError as error:
        get_logger("tocsin.part").error("failed \x1b[2J", exc_info=error, said="\x9b31m")
    assert r"\x1b]0;title\x07 10" in out.getvalue()
    assert "\x1b]" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
    assert "\x9b" not in out.getvalue()
    assert "opensesame" not in out.getvalue()


def test_our_lines_come_once_whatever_the_program_sets_up() -> None:
    out, theirs = io.StringIO(), io.StringIO()
    logs.set_up("info", out)
    with bare_root() as root:
        root.addHandler(logging.StreamHandler(theirs))
        get_logger("tocsin.part").info("hello")
    assert (len(out.getvalue().splitlines()), theirs.getvalue()) == (1, "")
