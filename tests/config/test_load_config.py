"""Which file is read, what is put over it, and where each value came from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.config_files import nested, problems, write
from tocsin.config import Config, Origin, load_config

INTERVAL = "redis.scheduler.interval-ms"
VARIABLE = "TOCSIN_REDIS__SCHEDULER__INTERVAL_MS"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def interval(path: str | None = None, **env: str) -> int:
    return load_config(path, env).config.redis.scheduler.interval_ms


def test_without_a_file_all_are_defaults() -> None:
    loaded = load_config(env={})
    assert (loaded.config, loaded.path, loaded.warnings) == (Config(), None, ())
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}


def test_the_given_file_wins_over_the_variable_and_that_over_the_working_folder(
    tmp_path: Path, elsewhere: Path
) -> None:
    write(elsewhere, nested(INTERVAL, "1"))
    assert interval() == 1
    named = tmp_path / "named.yaml"
    named.write_text(nested(INTERVAL, "2"))
    assert interval(TOCSIN_CONFIG=str(named)) == 2
    given = tmp_path / "given.yaml"
    given.write_text(nested(INTERVAL, "3"))
    assert interval(str(given), TOCSIN_CONFIG=str(named)) == 3
    assert load_config(str(given), {}).path == str(given)


def test_an_empty_variable_names_no_file() -> None:
    assert load_config(env={"TOCSIN_CONFIG": ""}).path is None


def test_a_file_that_was_asked_for_must_be_there() -> None:
    assert problems("nowhere.yaml") == ["nowhere.yaml: there is no such file"]
    assert problems(TOCSIN_CONFIG="gone.yaml") == ["gone.yaml: there is no such file (named by $TOCSIN_CONFIG)"]
    assert problems("") == ["there is no such file"]


def test_variables_are_those_of_the_process_if_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "77")
    assert load_config().config.redis.scheduler.interval_ms == 77


def test_a_variable_wins_over_the_file_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, nested(INTERVAL, "5"))
    assert load_config(path, {}).origins[INTERVAL] == Origin(file=path, line=3)
    assert str(load_config(path, {}).origins[INTERVAL]) == f"{path}:3"
    loaded = load_config(path, {VARIABLE: "6"})
    assert loaded.config.redis.scheduler.interval_ms == 6
    assert loaded.origins[INTERVAL] == Origin(variable=VARIABLE)


def test_only_variables_of_the_group_are_read() -> None:
    env = {"TOCSIN_REDIS_SCHEDULER_INTERVAL_MS": "x", "TOCSIN_URL": "x", "REDIS__SCHEDULER__ENABLED": "x"}
    assert load_config(env=env).config == Config()


@pytest.mark.parametrize(
    "text", ["", "# nothing yet\n", "---\n", "null\n", "redis:\n", "redis:\n  scheduler: ~\n", "{}"]
)
def test_what_is_commented_out_is_as_if_it_were_not_there(text: str, tmp_path: Path) -> None:
    assert load_config(write(tmp_path, text), {}).config == Config()


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert interval(write(tmp_path, b"\xef\xbb\xbf" + nested(INTERVAL, "9").encode())) == 9


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("scheduler.enabled", "false", False),
        ("scheduler.enabled", "Off", False),
        ("scheduler.enabled", "YES", True),
        ("scheduler.interval-ms", "+250", 250),
        ("scheduler.interval-ms", "1_800_000", 1_800_000),
        ("scheduler.failure-backoff.throttled.multiplier", "3", 3.0),
        ("scheduler.failure-backoff.throttled.multiplier", "1.5e1", 15.0),
        ("scheduler.failure-backoff.throttled.multiplier", "1e1", 10.0),
        ("scheduler.jitter.failure-backoff-ratio", ".5", 0.5),
        # Text stays text, whatever else it looks like.
        ("scheduler.keys.prefix", "on", "on"),
        ("scheduler.keys.prefix", "010", "010"),
        ("scheduler.keys.hash-tag", "1.0", "1.0"),
        ("agent.enabled-pattern", "aws/.*", "aws/.*"),
    ],
)
def test_a_value_means_what_its_setting_is_in_the_file_and_in_variables(
    key: str, text: str, value: object, tmp_path: Path
) -> None:
    variable = "TOCSIN_REDIS__" + key.upper().replace(".", "__").replace("-", "_")
    for loaded in (
        load_config(write(tmp_path, nested(f"redis.{key}", text)), {}),
        load_config(env={variable: text}),
    ):
        [found] = [value for known, value, _ in loaded.shown() if known == f"redis.{key}"]
        assert found == value
        assert type(found) is type(value)


def test_quoted_text_in_a_variable_keeps_its_quotes() -> None:
    loaded = load_config(
        env={"TOCSIN_REDIS__SCHEDULER__KEYS__PREFIX": "'a'", "TOCSIN_REDIS__AGENT__ENABLED_PATTERN": "~"}
    )
    assert loaded.config.redis.scheduler.keys.prefix == "'a'"
    assert loaded.config.redis.agent.enabled_pattern == "~"


def test_programs_without_a_file_do_not_wait_for_the_yaml_parser(tmp_path: Path) -> None:
    code = "import sys; from tocsin.config import load_config; load_config(); sys.exit('yaml' in sys.modules)"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN")}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=clean).returncode == 0
