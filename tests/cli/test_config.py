"""`tocsin config`: the settings in force and where they come from, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tocsin.cli.main import run
from tocsin.config import load_config
from tocsin.config.keys import SETTINGS

Captured = pytest.CaptureFixture[str]

TEXT = """redis:
  agent:
    enabled-pattern: "aws/.*|#\\t\\x7f\\u2028☃😀"
  scheduler:
    interval-ms: 250
    failure-backoff:
      throttled: {multiplier: 1.00000000001e1}
    jitter: {failure-backoff-ratio: 0.00001}
http:
  allow: [10.0.0.0/8, "*.internal"]
secrets:
  allow: {HOOK_*: [a.example, b.example], "/etc/a: b": ["*"]}
subprocess:
  allow: {/bin/true: []}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("TOCSIN_CONFIG", "TOCSIN_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def file(here: Path) -> str:
    (here / "own.yaml").write_text(TEXT)
    return "own.yaml"


def test_a_right_file_is_one_line_and_exit_code_0(file: str, capsys: Captured) -> None:
    assert run(["config", "check", "--config", file]) == 0
    assert capsys.readouterr() == ("nothing is wrong with own.yaml\n", "")


def test_without_a_file_nothing_is_wrong(capsys: Captured) -> None:
    assert run(["config", "check"]) == 0
    assert capsys.readouterr().out == "nothing is wrong; there is no configuration file\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "own.yaml", "config", "check"],
        ["config", "--config", "own.yaml", "check"],
        ["config", "check", "--config=own.yaml"],
    ],
)
def test_the_file_is_named_before_or_after_the_command(words: list[str], here: Path, capsys: Captured) -> None:
    (here / "own.yaml").write_text("redis: 1\n")
    assert run(words) == 1
    assert capsys.readouterr().out.startswith("own.yaml:1: redis must hold settings")


def test_each_problem_is_a_line_and_the_exit_code_is_1(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (here / "tocsin.yaml").write_text("redis:\n  scheduler:\n    interval-ms: 0\n    intervl-ms: 1\n")
    monkeypatch.setenv("TOCSIN_REDIS__AGENT__ENABLED_PATTERN", "(")
    assert run(["config", "check"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == [
        "tocsin.yaml:3:",
        "tocsin.yaml:4:",
        "$TOCSIN_REDIS__AGENT__ENABLED_PATTERN:",
    ]
    assert run(["config", "check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"ok": False, "problems": out}


def test_a_wrong_configuration_cannot_be_shown_and_says_why_beside_the_output(here: Path, capsys: Captured) -> None:
    (here / "tocsin.yaml").write_text("redis:\n  agnt: {}\n")
    assert run(["config", "show"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "tocsin: tocsin.yaml:2: there is no setting 'redis.agnt'; did you mean 'redis.agent'?\n"


def test_an_address_that_cannot_be_is_wrong_and_stays_secret(here: Path, capsys: Captured) -> None:
    (here / "tocsin.yaml").write_text("redis:\n  connection:\n    url: rdis://me:s3cret@db\n")
    assert run(["config", "check"]) == 1
    out = capsys.readouterr().out
    assert out == (
        "tocsin.yaml:3: redis.connection.url: unknown scheme 'rdis' in the store address; did you mean 'redis'?\n"
    )


def test_a_warning_is_told_beside_the_output_and_does_not_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    name = "TOCSIN_REDIS__SCHEDULER__ZOMBIE_CLEANUP__EXCEPTIONAL_AGENTS__PATTERN"
    monkeypatch.setenv(name, "[")
    for command in ("check", "show"):
        assert run(["config", command]) == 0
        assert capsys.readouterr().err.startswith(f"warning: ${name}: ")
    assert run(["config", "check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["file"], len(found["warnings"]), found["problems"]) == (True, None, 1, [])


def test_every_setting_is_shown_with_its_value_and_its_origin(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("TOCSIN_REDIS__CONNECTION__POOL__MAX_TOTAL", "77")
    assert run(["config", "show", "--config", file]) == 0
    out = capsys.readouterr().out
    assert "    interval-ms: 250  # own.yaml:5\n" in out
    assert "      max-total: 77  # $TOCSIN_REDIS__CONNECTION__POOL__MAX_TOTAL\n" in out
    assert "    refresh-period-seconds: 30  # default\n" in out
    assert "    enabled: true  # default\n" in out


def test_what_is_shown_is_a_file_that_says_the_same(file: str, here: Path, capsys: Captured) -> None:
    assert run(["config", "show", "--config", file]) == 0
    out = capsys.readouterr().out
    (here / "again.yaml").write_text(out)
    assert load_config("again.yaml", {}).config == load_config(file, {}).config
    # For other readers as well.
    tree = yaml.safe_load(out)
    assert tree["redis"]["agent"]["enabled-pattern"] == "aws/.*|#\t\x7f\u2028☃😀"
    assert tree["redis"]["scheduler"]["jitter"]["failure-backoff-ratio"] == 1e-5
    assert tree["redis"]["scheduler"]["failure-backoff"]["throttled"] == {
        "base-ms": 30000,
        "multiplier": 10.0000000001,
        "cap-ms": 600000,
    }


def test_every_setting_is_in_the_json(file: str, capsys: Captured) -> None:
    assert run(["--json", "config", "show", "--config", file]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(SETTINGS)
    assert found["redis.scheduler.interval-ms"] == {"value": 250, "origin": "own.yaml:5"}
    assert found["redis.scheduler.enabled"] == {"value": True, "origin": "default"}


@pytest.mark.parametrize("words", [["config", "show"], ["config", "show", "--json"], ["config", "check"]])
def test_the_password_of_the_address_is_shown_nowhere(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("TOCSIN_REDIS__CONNECTION__URL", "redis://me:s3cret@db:1/2")
    assert run(words) == 0
    out, err = capsys.readouterr()
    assert "s3cret" not in out + err
    assert ("redis://***@db:1/2" in out) == (words[1] == "show")
