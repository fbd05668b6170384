"""What the command line makes of its words: help, wrong usage, values, exit codes."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest

import tocsin as package
from tests.support.command_line import APPS, Tool
from tocsin.cli.main import run
from tocsin.cli.options import WrongUsage, parse_duration, parse_time, split_names
from tocsin.cli.printing import cell, distance, plain, size, span

NOW = 1_900_000_000_000


def test_alone_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    out = capsys.readouterr().out
    for command in ("demo", "worker", "workers", "queues", "jobs", "dead", "doctor"):
        assert f"│ {command} " in out


def test_help_of_a_command_tells_the_options_of_every_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "list", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--due-before", "--url", "--json", "--log-level", "--prefix"):
        assert option in out


def test_the_console_script_tells_its_version() -> None:
    ran = subprocess.run([sys.executable, "-m", "tocsin.cli", "--version"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip()) == (0, package.__version__)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["job", "list"], 'Did you mean "jobs"?'),
        (["jobs", "lst"], 'Did you mean "list"?'),
        (["jobs", "list", "--urll", "x"], "Did you mean --url?"),
        (["jobs", "list", "--tennant", "x"], "Did you mean --tenant?"),
        (["jobs", "list", "--limit", "0"], ">= 1"),
        (["jobs", "list", "--stage", "wating"], "did you mean 'waiting'?"),
        (["jobs", "list", "--due-before", "2030-01-01T00:00"], "does not say its zone"),
        (["jobs", "list", "--due-before", "-5 parsecs"], "like +1h30m or -5m"),
        (["jobs", "list", "--due-after", "soon"], "'soon' is not a time"),
        (["jobs", "show"], "requires an argument"),
        (["dead", "retry"], "by their ids, or say --all"),
        (["dead", "drop", "x", "--all"], "by their ids, or say --all"),
        (["--log-level", "debgu", "queues", "list"], "did you mean 'debug'?"),
        (["worker"], "requires an argument"),
        (["worker", "shop"], "write it like shop:app"),
        (["worker", "jobs/shop.py:app"], "write it like jobs.shop:app"),
        (["worker", "shop:app", "--grace", "-5s"], "--grace must be"),
        (["worker", "shop:app", "--queues", "a,,b"], "write it like a,b"),
        (["worker", "shop:app", "--processes", "0"], ">= 1"),
        (["demo", "--url", "redis://x"], "brings its own server"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_would_be_right(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert hint in err


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("shopp:app", "there is no module 'shopp'"),
        ("shopp:app", "did you mean 'shop'?"),
        ("shop:ap", "shop:ap does not exist; did you mean 'app'?"),
        ("shop:quick", "is a Handler, not a Tocsin or an AgentScheduler; there are: app"),
        ("empty:app", "has no Tocsin: write `app = Tocsin()`"),
        ("broken:app", "AttributeError: 'Tocsin' object has no attribute 'no_such_call'"),
        ("broken:app", "broken.py, line 6)"),
    ],
)
def test_a_worker_that_cannot_find_its_app_says_why_in_one_line(
    target: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(APPS)
    assert run(["worker", target]) == 1
    err = capsys.readouterr().err
    assert hint in err
    assert len(err.splitlines()) == 1


def test_a_server_that_is_away_is_one_line_and_exit_code_1(tocsin: Tool) -> None:
    tocsin.url = "redis://127.0.0.1:1"
    said = tocsin("queues", "list", code=1)
    assert said.startswith("tocsin: redis://127.0.0.1:1 is not available")
    assert len(said.splitlines()) == 1


def test_an_address_that_cannot_be_is_one_line_and_exit_code_1(tocsin: Tool) -> None:
    tocsin.url = "rediss+clutser://x"
    assert "unknown scheme" in tocsin.quick("workers", code=1)


# Values


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2030-01-31T09:00Z", datetime(2030, 1, 31, 9, tzinfo=UTC)),
        ("2030-01-31T09:00:00+02:00", datetime(2030, 1, 31, 7, tzinfo=UTC)),
        ("+1h", datetime.fromtimestamp(NOW / 1000 + 3600, UTC)),
        ("-1h30m", datetime.fromtimestamp(NOW / 1000 - 5400, UTC)),
    ],
)
def test_times(text: str, when: datetime) -> None:
    assert parse_time(text, NOW) == when


@pytest.mark.parametrize("text", ["", "+", "now", "2030-13-01T00:00Z", "+1", "2030-01-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_time(text, NOW)


def test_durations_and_lists() -> None:
    assert parse_duration("1m30s", "x") == 90
    assert parse_duration("2.5", "x") == 2.5
    assert split_names("a, b") == ["a", "b"]


def test_values_for_people() -> None:
    assert [span(s) for s in (0.4, 59, 60, 90, 3600, 3660, 90_000)] == [
        "0s",
        "59s",
        "1m",
        "1m30s",
        "1h",
        "1h1m",
        "1d1h",
    ]
    assert distance(NOW + 5000, NOW) == "in 5s"
    assert distance(NOW - 65_000, NOW) == "1m5s ago"
    assert [size(n) for n in (None, 12, 2048, 5 * 1024**3)] == ["?", "12 B", "2.0 KiB", "5.0 GiB"]
    assert cell("a\x1b[31m\nb") == "a\\x1b[31m\\nb"
    assert plain({1: (b"\0", {"x"}), "d": object}) == {"1": ["AA==", ["x"]], "d": "<class 'object'>"}
