"""Log lines: JSON where a machine reads them, readable where a person does."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from tocsin.model.errors import InvalidArgument
from tocsin.telemetry import log_output
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
    log_output.set_up("info", out)
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
    log_output.set_up("debug", out)
    get_logger("tocsin.part").debug("hello", job="a")
    assert "hello" in out.getvalue()
    assert "\x1b[" in out.getvalue()


def test_standard_logging_comes_out_alike() -> None:
    out = io.StringIO()
    with bare_root():
        log_output.adopt_standard_logging("warning", out)
        logging.getLogger("users.code").info("not this")
        logging.getLogger("users.code").warning("%s apples", 3)
    [line] = out.getvalue().splitlines()
    assert json.loads(line)["event"] == "3 apples"
    assert json.loads(line)["logger"] == "users.code"


def test_standard_logging_that_a_program_has_set_up_is_left_alone() -> None:
    theirs = logging.StreamHandler(io.StringIO())
    with bare_root() as root:
        root.addHandler(theirs)
        log_output.adopt_standard_logging("warning", io.StringIO())
        assert root.handlers == [theirs]


def test_an_unknown_level_names_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match="did you mean 'warning'"):
        log_output.set_up("warnign")


def test_a_terminal_is_sent_no_control_characters_and_no_locals() -> None:
    out = Terminal()
    log_output.set_up("info", out)
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


# Escape sequences in seven and in eight bits, text that runs backwards, and ends of lines that are not newlines.
EVIL = "a\x1b]0;x\x07\x7f\x9b31m\u202eb\u2066c\u2069\u200f\u061c\u2028\u2029\x85\r\ufeffé"
FORGED = "x\n2030-01-01T00:00:00Z [error] forged"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def speak(logger: str, evil: str) -> None:
    """Wherever what somebody else wrote may stand in a line."""
    get_logger(logger).warning("lost", job=evil, jobs=[evil], of={evil: evil})
    logging.getLogger(logger).warning("%s", evil)
    try:
        raise ValueError(evil)
    except ValueError as error:
        get_logger(logger).error("failed", exc_info=error, stack=evil)


@pytest.mark.parametrize("evil", [EVIL, "\ud800", FORGED], ids=["obeyed", "half a character", "forged"])
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_what_others_wrote_steers_no_terminal_and_begins_no_line(stream: type[io.StringIO], evil: str) -> None:
    out = stream()
    log_output.set_up("info", out)
    with bare_root():
        log_output.adopt_standard_logging("info", out)
        speak("tocsin.part", evil)
        speak("users.code", evil)
    text = COLOURS.sub("", out.getvalue())
    assert not OBEYED.search(text)
    assert len(re.findall(r"^(?:2\d{3}-|\{)", text, flags=re.MULTILINE)) == 6
    if stream is io.StringIO:
        told = [json.loads(line) for line in text.splitlines()]
        assert [told[0]["job"], told[1]["event"]] == [evil, evil]
        assert "é" in text or evil != EVIL


def test_our_lines_come_once_whatever_the_program_sets_up() -> None:
    out, theirs = io.StringIO(), io.StringIO()
    log_output.set_up("info", out)
    with bare_root() as root:
        root.addHandler(logging.StreamHandler(theirs))
        get_logger("tocsin.part").info("hello")
    assert (len(out.getvalue().splitlines()), theirs.getvalue()) == (1, "")
