"""Settings that a program gives itself, as a mapping, over those of its configuration."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from tocsin import InvalidConfig
from tocsin.config import Config, merged, read_mapping
from tocsin.config.keys import SETTINGS, value_of

AGENTS = "redis.agent.max-concurrent-agents"
S = "redis.scheduler"


@pytest.mark.parametrize(
    "given",
    [
        {AGENTS: 7, f"{S}.zombie-cleanup.threshold-ms": 5000},
        {"redis": {"agent": {"max-concurrent-agents": 7}, "scheduler": {"zombie-cleanup": {"threshold-ms": 5000}}}},
        {"redis.agent": {"max-concurrent-agents": 7}, "redis": {"scheduler.zombie-cleanup.threshold-ms": 5000}},
    ],
    ids=["dotted", "nested", "both"],
)
def test_keys_may_be_nested_as_in_the_file_or_dotted(given):
    assert read_mapping(given) == {AGENTS: 7, f"{S}.zombie-cleanup.threshold-ms": 5000}


def test_each_setting_may_be_given_as_its_default_is():
    given = {key: setting.default for key, setting in SETTINGS.items()}
    assert read_mapping(given) == given


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("redis.agent.max_concurrent_agents", 7, f"did you mean {AGENTS!r}?"),
        ("redis.agnet.enabled-pattern", ".*", "did you mean 'redis.agent'?"),
        ("", 7, "there is no setting ''"),
        (7, 7, "there is no setting '7'"),
        ("redis.agent", 7, "is a group: give a mapping"),
        (AGENTS, "7", "must be a whole number, not text"),
        (AGENTS, 7.5, "must be a whole number, not 7.5"),
        (AGENTS, True, "must be a whole number, not 'true'"),
        (AGENTS, None, "must be a whole number, not None"),
        (AGENTS, {"a": 1}, "must be a whole number, not {'a': 1}"),
        (f"{S}.enabled", 1, "must be true or false, not 1"),
        (f"{S}.interval-ms", timedelta(seconds=1), "must be a whole number, not datetime.timedelta"),
        (f"{S}.interval-ms", 0, "must be at least 1"),
        (f"{S}.jitter.failure-backoff-ratio", math.nan, "must be a finite number"),
        ("redis.agent.enabled-pattern", None, "must be text"),
        ("redis.agent.enabled-pattern", 5, "must be text"),
        ("http.allow", [1], "must be a list of texts"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(key, value, says):
    with pytest.raises(InvalidConfig) as refused:
        read_mapping({key: value})
    assert str(key) in str(refused.value)
    assert says in str(refused.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(InvalidConfig) as refused:
        read_mapping({AGENTS: "x", f"{S}.enabled": "x", "nonsense": 1})
    assert len(str(refused.value).splitlines()) == 3


def test_what_is_not_given_stays_as_it_was_configured():
    base = merged(Config(), {AGENTS: 7, f"{S}.interval-ms": 50}).config
    config = merged(base, {f"{S}.interval-ms": 70}).config
    changed = {key for key in SETTINGS if value_of(config, key) != SETTINGS[key].default}
    assert changed == {AGENTS, f"{S}.interval-ms"}
    assert config.redis.scheduler.interval_ms == 70


def test_settings_must_fit_to_those_that_they_are_put_over():
    budget, ttl = f"{S}.orphan-cleanup.run-budget-ms", f"{S}.orphan-cleanup.leadership-ttl-ms"
    with pytest.raises(InvalidConfig, match="a leader must outlast its pass"):
        merged(Config(), {budget: 100_000})
    longer = merged(Config(), {ttl: 200_000}).config
    assert merged(longer, {budget: 100_000}).config.redis.scheduler.orphan_cleanup.run_budget_ms == 100_000
