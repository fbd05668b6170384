"""Every setting that cannot be is refused, all at once, by its name, with the reason and the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.config_files import nested, problems, write
from tocsin.config import load_config
from tocsin.config.keys import SETTINGS
from tocsin.config.rules import keep_of, longest_of

S = "redis.scheduler"
POOL = "redis.connection.pool"
THROTTLED = f"{S}.failure-backoff.throttled"
ORPHAN = f"{S}.orphan-cleanup"

# Zero and below, as the reference has it: off or unlimited, none, or refused.
BELOW_ZERO = {
    "redis.agent.max-concurrent-agents",
    f"{S}.health-summary-period-seconds",
    f"{S}.batch-operations.batch-size",
}
ZERO = {
    f"{S}.jitter.initial-registration-seconds",
    f"{S}.jitter.shutdown-seconds",
    f"{S}.jitter.failure-backoff-ratio",
    f"{S}.batch-operations.chunk-attempt-multiplier",
    f"{S}.failure-backoff.max-immediate-retries",
    f"{POOL}.min-idle",
    f"{S}.zombie-cleanup.threshold-ms",
    f"{S}.zombie-cleanup.exceptional-agents.threshold-ms",
    f"{ORPHAN}.threshold-ms",
    "results.max",
    *(key for key in SETTINGS if key.endswith(("run-budget-ms", "await-ms"))),
}
NUMBERS = [key for key, setting in SETTINGS.items() if setting.kind in (int, float)]


@pytest.mark.parametrize("key", NUMBERS)
def test_zero_and_less_are_taken_where_they_mean_something(key: str, tmp_path: Path) -> None:
    for text, allowed in (("0", BELOW_ZERO | ZERO), ("-1", BELOW_ZERO)):
        path = write(tmp_path, nested(key, text))
        if key in allowed:
            assert load_config(path, {}).origins[key].file == path
        elif key != f"{POOL}.max-idle" or text == "-1":
            [problem] = problems(path)
            assert problem.startswith(f"{path}:{key.count('.') + 1}: {key} must be at least ")
            # The number, and why.
            assert f", not {text}: " in problem


@pytest.mark.parametrize(
    "text", ["fast", "1:30", "0x10", "1 000", "true", "1e", ".", "-", "_1", "١", "1__", "nothing", "1.2.3"]
)
@pytest.mark.parametrize("key", [f"{S}.interval-ms", f"{THROTTLED}.multiplier"])
def test_what_is_no_number(key: str, text: str) -> None:
    [problem] = problems(**{SETTINGS[key].variable: text})
    assert f"{key} must be a " in problem
    assert f"number, not '{text}'" in problem


def test_leading_zeros_are_refused_because_readers_of_yaml_differ_about_them(tmp_path: Path) -> None:
    [problem] = problems(write(tmp_path, nested(f"{S}.interval-ms", "0100")))
    assert "must be a whole number" in problem


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_beyond_all_sense_are_refused(key: str, tmp_path: Path) -> None:
    for text in ("9" * 30, "9" * 5000):
        [problem] = problems(write(tmp_path, nested(key, text)))
        assert f"{key} must be " in problem
        assert len(problem) < 300


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        (f"{S}.enabled", "1", "must be true or false, not 1"),
        (f"{S}.enabled", "tRue", "must be true or false, not 'tRue'"),
        (f"{S}.enabled", '"true"', "must be true or false, not text: write it without quotes"),
        (f"{S}.enabled", "[true]", "must be true or false, not a list"),
        (f"{S}.interval-ms", "1000.5", "must be a whole number, not 1000.5"),
        (f"{S}.interval-ms", "'1000'", "must be a whole number, not text: write it without quotes"),
        (f"{S}.interval-ms", "", "must be a whole number, not nothing"),
        (f"{S}.interval-ms", "{a: 1}", "must be a whole number, not a mapping"),
        (f"{S}.keys.prefix", "", 'must be text ("" for none), not nothing'),
        (f"{S}.keys.prefix", "~", 'must be text ("" for none), not nothing'),
        (f"{S}.keys.prefix", '"\\ud800"', "must be text in UTF-8"),
        (f"{S}.type", "default", "cannot be 'default'; there are: priority"),
        (f"{S}.type", "prioritty", "cannot be 'prioritty'; did you mean 'priority'?"),
        (f"{S}.keys", "waiting", "must hold settings, not a value"),
        (f"{S}.keys", "[waiting]", "must hold settings, not a list"),
        (f"{THROTTLED}.multiplier", "0.99", "must be at least 1, not 0.99: each delay would be shorter"),
        (f"{THROTTLED}.multiplier", ".inf", "must be a finite number, not '.inf'"),
        (f"{THROTTLED}.multiplier", "-.INF", "must be a finite number, not '-.INF'"),
        (f"{THROTTLED}.multiplier", "nan", "must be a finite number, not 'nan'"),
        (f"{THROTTLED}.multiplier", "1e999", "must be a finite number, not 1e999"),
        (f"{S}.batch-operations.chunk-attempt-multiplier", "-0.1", "must be at least 0, not -0.1"),
        (f"{S}.batch-operations.chunk-attempt-multiplier", ".nan", "must be a finite number"),
        (f"{S}.jitter.failure-backoff-ratio", "1", "must be less than 1, not 1"),
        (f"{S}.jitter.failure-backoff-ratio", "-0.01", "must be at least 0, not -0.01"),
        ("redis.agent.enabled-pattern", '"("', "is not a regex: missing ), unterminated subpattern at position 0"),
        ("redis.agent.disabled-pattern", "'*'", "is not a regex: nothing to repeat at position 0"),
        ("redis.agent.disabled-pattern", '"(?\\n"', "is not a regex: unknown extension ?\\n"),
        ("redis.agent.disabled-pattern", f'"{"(" * 9999}{")" * 9999}"', "is not a regex: it is too large"),
        (f"{S}.keys.hash-tag", '"{ps}"', "is written without braces, like ps"),
        (f"{S}.keys.waiting-set", '""', "must not be empty"),
        (f"{S}.keys.working-set", "waiting", f"must not be the same as {S}.keys.waiting-set"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_its_line_and_the_reason(
    key: str, text: str, told: str, tmp_path: Path
) -> None:
    path = write(tmp_path, nested(key, text))
    [problem] = problems(path)
    assert problem.startswith(f"{path}:{key.count('.') + 1}: {key} {told}")


@pytest.mark.parametrize(
    ("above", "key", "value", "other", "least"),
    [
        (ORPHAN, "leadership-ttl-ms", 70_000, "run-budget-ms", 10_000),
        (THROTTLED, "cap-ms", 500, "base-ms", 500),
        (POOL, "max-total", 20, "max-idle", 20),
        (POOL, "max-idle", 5, "min-idle", 5),
    ],
)
def test_settings_that_must_fit_together(
    above: str, key: str, value: int, other: str, least: int, tmp_path: Path
) -> None:
    fitting = nested(f"{above}.{key}", str(value)) + f"{'  ' * (above.count('.') + 1)}{other}: {least}\n"
    load_config(write(tmp_path, fitting), {})
    path = write(tmp_path, fitting.replace(f"{other}: {least}", f"{other}: {least + 1}"))
    [problem] = problems(path)
    assert f"{above}.{key} must be at least {above}.{other}" in problem
    assert f", not {value}: " in problem


def test_a_default_that_no_longer_fits_is_told_where_the_other_was_set(tmp_path: Path) -> None:
    path = write(tmp_path, nested(f"{ORPHAN}.run-budget-ms", "60001"))
    [problem] = problems(path)
    assert problem.startswith(f"{path}:4: {ORPHAN}.leadership-ttl-ms must be at least {ORPHAN}.run-budget-ms + 60000")


@pytest.mark.parametrize("text", ["-1", "x", "[]", "!!int 500000"])
def test_a_wrong_value_is_not_told_twice(text: str, tmp_path: Path) -> None:
    # The default in its place would be too small.
    path = write(tmp_path, nested(f"{ORPHAN}.leadership-ttl-ms", text) + "      run-budget-ms: 100000\n")
    [problem] = problems(path)
    assert "run-budget-ms" not in problem


def test_all_problems_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """redis:
  agent:
    enabled-pattern: "("
    max-concurrent-agent: 5
  scheduler:
    interval-ms: 0
    orphan-cleanup:
      leadership-ttl-ms: 5
ledger:
  url: x
""",
    )
    told = problems(path, TOCSIN_REDIS__SCHEDULER__JITTER__SHUTDOWN_SECONDS="-1", TOCSIN_REDIS__X="1")
    assert [line.removeprefix(path).split()[0] for line in told] == [
        ":3:",
        ":4:",
        ":6:",
        ":8:",
        ":9:",
        "$TOCSIN_REDIS__SCHEDULER__JITTER__SHUTDOWN_SECONDS:",
        "$TOCSIN_REDIS__X:",
    ]


def test_a_wrong_value_in_the_file_is_told_although_a_variable_is_over_it(tmp_path: Path) -> None:
    path = write(tmp_path, nested(f"{S}.interval-ms", "0"))
    assert len(problems(path, TOCSIN_REDIS__SCHEDULER__INTERVAL_MS="5")) == 1


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (f"{S}.intervl-ms", f"did you mean '{S}.interval-ms'?"),
        (f"{S}.INTERVAL-MS", f"did you mean '{S}.interval-ms'?"),
        (f"{S}.interval_ms", f"did you mean '{S}.interval-ms'?"),
        ("redis.agent.maxConcurrentAgents", "did you mean 'redis.agent.max-concurrent-agents'?"),
        (f"{S}.leadership-ttl-ms", f"did you mean '{ORPHAN}.leadership-ttl-ms'?"),
        ("redis.pool", f"did you mean '{POOL}'?"),
        (f"{S}.jittr", f"did you mean '{S}.jitter'?"),
        (
            "redis.agent.colour",
            "there are: redis.agent.disabled-pattern, redis.agent.enabled-pattern, redis.agent.max-",
        ),
        ("ledger", "there are: http, limits, message, recovery, redis, results"),
        ("rediss", "did you mean 'redis'?"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_there_is(key: str, told: str, tmp_path: Path) -> None:
    path = write(tmp_path, nested(key, "{a: [1, 2], b: {c: d}}"))
    [problem] = problems(path)
    assert problem.startswith(f"{path}:{key.count('.') + 1}: there is no setting '{key}'; {told}")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "TOCSIN_REDIS__SCHEDULER__INTERVL_MS",
            "'redis.scheduler.intervl-ms'; did you mean 'TOCSIN_REDIS__SCHEDULER__INTERVAL_MS'?",
        ),
        (
            "TOCSIN_REDIS__SCHEDULR__INTERVAL_MS",
            "'redis.schedulr.interval-ms'; did you mean 'TOCSIN_REDIS__SCHEDULER'?",
        ),
        ("TOCSIN_REDIS__", "'redis.'; there are: TOCSIN_REDIS__AGENT, "),
        ("TOCSIN_REDIS____", "there is no setting"),
        ("TOCSIN_REDIS__SCHEDULER__interval_ms", "written in capitals: TOCSIN_REDIS__SCHEDULER__INTERVAL_MS"),
        ("TOCSIN_REDIS__SCHEDULER", "redis.scheduler is a group"),
    ],
)
def test_an_unknown_variable_is_told_with_the_nearest_there_is(name: str, told: str) -> None:
    [problem] = problems(**{name: "1"})
    assert problem.startswith(f"${name}: ")
    assert told in problem


def test_wrong_values_of_variables_are_told_by_variable_and_key() -> None:
    name = "TOCSIN_REDIS__SCHEDULER__INTERVAL_MS"
    assert problems(**{name: ""}) == [f"${name}: {S}.interval-ms must be a whole number, not empty"]
    assert problems(TOCSIN_REDIS__SCHEDULER__KEYS__PREFIX="\udcff") == [
        f"$TOCSIN_REDIS__SCHEDULER__KEYS__PREFIX: {S}.keys.prefix must be text in UTF-8"
    ]


def test_an_exceptional_pattern_that_is_none_is_ignored_with_a_warning(tmp_path: Path) -> None:
    key = f"{S}.zombie-cleanup.exceptional-agents.pattern"
    path = write(tmp_path, nested(key, '"["'))
    loaded = load_config(path, {})
    assert loaded.config.redis.scheduler.zombie_cleanup.exceptional_agents.pattern == ""
    assert loaded.warnings == (
        f"{path}:5: {key} is ignored, because it is not a regex: unterminated character set at position 0",
    )
    loaded = load_config(write(tmp_path, nested(key, "long-.*")), {})
    assert loaded.config.redis.scheduler.zombie_cleanup.exceptional_agents.pattern == "long-.*"
    assert loaded.warnings == ()


def test_an_enabled_pattern_that_enables_nobody_is_a_warning() -> None:
    [warning] = load_config(env={"TOCSIN_REDIS__AGENT__ENABLED_PATTERN": ""}).warnings
    assert "redis.agent.enabled-pattern is empty" in warning


def test_a_pattern_that_python_only_frowns_at_is_taken(tmp_path: Path) -> None:
    # The warning that Python has for it is an error in tests.
    loaded = load_config(write(tmp_path, nested("redis.agent.enabled-pattern", '"[[a]"')), {})
    assert loaded.config.redis.agent.enabled_pattern == "[[a]"


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("1h30m", 5400), ("0", 0), ("90", 90), ("0.5", 1)])
def test_how_long_outcomes_are_kept_is_a_duration_or_seconds(text: str, seconds: int, tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, nested("results.keep", text)), {})
    assert keep_of(loaded.config.results.keep) == seconds


@pytest.mark.parametrize("text", ["-1", "soon", "10 minutes", "", "200y", "50000d"])
def test_what_is_no_time_to_keep_outcomes_for(text: str) -> None:
    [problem] = problems(**{SETTINGS["results.keep"].variable: text})
    assert "results.keep must be " in problem


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("1d", 86_400), ("90", 90), ("0.5", 0.5)])
def test_how_long_deliveries_may_take_is_a_duration_or_seconds(text: str, seconds: float, tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, nested("http.max-timeout", text)), {})
    assert longest_of(loaded.config.http.max_timeout) == seconds


@pytest.mark.parametrize("text", ["-1", "soon", "10 minutes", "", "0", "2d"])
def test_what_is_no_time_for_deliveries(text: str) -> None:
    [problem] = problems(**{SETTINGS["http.max-timeout"].variable: text})
    assert "http.max-timeout must be " in problem
