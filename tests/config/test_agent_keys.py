"""Every key of the reference that operators know, by its name, with its default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.config_files import write
from tocsin.config import Config, load_config
from tocsin.config.keys import SETTINGS, value_of

SEED = """
redis:
  agent:
    max-concurrent-agents: 100
    enabled-pattern: ".*"
    disabled-pattern: ""
  scheduler:
    enabled: true
    type: priority
    interval-ms: 1000
    refresh-period-seconds: 30
    health-summary-period-seconds: 600
    time-cache-duration-ms: 10000
    batch-operations:
      enabled: true
      batch-size: 0
      chunk-attempt-multiplier: 0.0
    jitter:
      initial-registration-seconds: 0
      shutdown-seconds: 0
      failure-backoff-ratio: 0.1
    failure-backoff:
      enabled: false
      max-immediate-retries: 0
      permanent-forbidden-backoff-ms: 1800000
      throttled:
        base-ms: 30000
        multiplier: 2.0
        cap-ms: 600000
    circuit-breaker:
      enabled: true
      failure-threshold: 5
      failure-window-ms: 10000
      cooldown-ms: 30000
      half-open-duration-ms: 5000
    zombie-cleanup:
      enabled: true
      threshold-ms: 30000
      interval-ms: 300000
      run-budget-ms: 0
      executor-shutdown-await-ms: 10000
      executor-shutdown-force-await-ms: 5000
      exceptional-agents:
        pattern: ""
        threshold-ms: 3600000
    orphan-cleanup:
      enabled: true
      threshold-ms: 600000
      interval-ms: 300000
      leadership-ttl-ms: 120000
      force-all-pods: false
      remove-numeric-only-agents: true
      run-budget-ms: 0
      executor-shutdown-await-ms: 10000
      executor-shutdown-force-await-ms: 5000
    reconcile:
      run-budget-ms: 0
      executor-shutdown-await-ms: 5000
      executor-shutdown-force-await-ms: 2000
    keys:
      prefix: ""
      waiting-set: waiting
      working-set: working
      cleanup-leader-key: cleanup-leader
      hash-tag: ""
  connection:
    pool:
      max-wait-millis: 5000
      max-total: 50
      max-idle: 10
      min-idle: 2
    timeout: 3000
    connect-timeout: 2000
"""


def flat(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, dict) else {above + name: value}
    return found


KEYS = flat(yaml.safe_load(SEED))


@pytest.mark.parametrize("key", KEYS)
def test_each_key_exists_with_its_default(key: str) -> None:
    value = value_of(Config(), key)
    assert value == KEYS[key]
    assert type(value) is type(KEYS[key])


def test_there_are_no_other_keys_but_the_address() -> None:
    assert SETTINGS.keys() - KEYS.keys() == {
        "redis.connection.url",
        "recovery.overdue-ms",
        "schedules.retry-exceeds-interval",
        "results.keep",
        "results.max",
        "limits.arguments-bytes",
        "limits.result-bytes",
        "http.allow",
        "http.max-per-host",
        "http.max-timeout",
        "message.allow",
        "secrets.allow",
        "subprocess.allow",
    }


def test_the_reference_itself_can_be_loaded_and_changes_nothing(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, SEED), {})
    assert loaded.config == Config()
    assert loaded.warnings == ()
    lines = SEED.splitlines()
    for key, origin in loaded.origins.items():
        if key in KEYS:
            assert lines[origin.line - 1].strip().startswith(key.rpartition(".")[2] + ":")


def other(key: str, number: int) -> Any:
    """Another value for each, so that none is read into a neighbour's place."""
    value = KEYS[key]
    if key.endswith((".type", "orphan-cleanup.run-budget-ms")):
        return value
    if isinstance(value, bool):
        return not value
    return f"{value}x" if isinstance(value, str) else value + (number / 1000 if isinstance(value, float) else number)


OTHER = {key: other(key, number) for number, key in enumerate(KEYS, 1)}


def test_every_key_can_be_set_in_a_file(tmp_path: Path) -> None:
    tree: dict[str, Any] = {}
    for key, value in OTHER.items():
        *groups, name = key.split(".")
        group = tree
        for part in groups:
            group = group.setdefault(part, {})
        group[name] = value
    config = load_config(write(tmp_path, yaml.safe_dump(tree)), {}).config
    assert {key: value_of(config, key) for key in KEYS} == OTHER


def test_every_key_can_be_set_by_its_variable() -> None:
    env = {"TOCSIN_" + key.upper().replace(".", "__").replace("-", "_"): str(OTHER[key]) for key in KEYS}
    loaded = load_config(env=env)
    assert {key: value_of(loaded.config, key) for key in KEYS} == OTHER
    assert str(loaded.origins["redis.scheduler.interval-ms"]) == "$TOCSIN_REDIS__SCHEDULER__INTERVAL_MS"
