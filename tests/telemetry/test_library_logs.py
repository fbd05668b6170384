"""A library logs through `logging`, and its host decides what becomes of that."""

from __future__ import annotations

import subprocess
import sys

import pytest

SPEAK = """
from tocsin import Tocsin
from tocsin.telemetry.logs import get_logger
log = get_logger("tocsin.part")
log.warning("claim lost", job="a\\x1b[31m", times=3)
try:
    secret = "open-sesame"
    raise ValueError("no")
except ValueError as error:
    log.error("pass failed", exc_info=error)
"""


def said(program: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_a_program_that_sets_up_nothing_gets_no_line() -> None:
    assert said(SPEAK) == ("", "")


def test_a_receiver_that_sets_up_nothing_gets_no_line_either() -> None:
    program = "import logging, tocsin.receive; logging.getLogger('tocsin.receive').warning('its answer was lost')"
    assert said(program) == ("", "")


def test_a_program_that_sets_up_logging_gets_the_event_and_its_fields_in_its_own_format() -> None:
    out, err = said(f"import logging; logging.basicConfig(format='%(name)s %(levelname)s %(message)s')\n{SPEAK}")
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == r"tocsin.part WARNING claim lost job='a\x1b[31m' times=3"
    assert lines[1:3] == ["tocsin.part ERROR pass failed", "Traceback (most recent call last):"]
    assert "open-sesame" not in err.replace('secret = "open-sesame"', "")


def test_the_fields_stand_apart_on_the_record(caplog: pytest.LogCaptureFixture) -> None:
    from tocsin.telemetry.logs import get_logger

    get_logger("tocsin.part").warning("claim lost %s", job="a")
    [record] = caplog.records
    assert (record.__dict__["event"], record.__dict__["fields"]) == ("claim lost %s", {"job": "a"})
    assert record.filename == "test_library_logs.py"


def test_the_structlog_of_the_program_is_left_alone() -> None:
    """Its own loggers are its own affair, also where they are set up to print."""
    program = f"import structlog\n{SPEAK}\nassert not structlog.is_configured()"
    assert said(program) == ("", "")


def test_the_command_line_alone_loads_structlog() -> None:
    assert said(f"{SPEAK}\nimport sys; print('structlog' in sys.modules)") == ("False\n", "")
