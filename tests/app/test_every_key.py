"""Every key of the configuration changes something, and nothing but what it is for."""

from __future__ import annotations

import pytest
import yaml

from tocsin import Every, InvalidConfig, InvalidTrigger, Retry, Tocsin
from tocsin.app.connection import store_of
from tocsin.app.job_options import check_retries_fit_interval, limits_of
from tocsin.config import Config, load_config
from tocsin.config.keys import SETTINGS
from tocsin.engine.runner_pool import RunnerPool
from tocsin.model.failure_class import FailureClass
from tocsin.model.job import Spec
from tocsin.model.queue import AGENTS_QUEUE, Queue
from tocsin.resilience import backoff
from tocsin.resilience.breaker import redis_breaker_settings
from tocsin.store.store import OpenQueue
from tocsin.upkeep.zombie_thresholds import threshold_for
from tocsin.worker.settings import settings_of

S = "redis.scheduler"
CHANGED = {
    "redis.agent.max-concurrent-agents": 0,
    "redis.agent.enabled-pattern": "aws-.*",
    "redis.agent.disabled-pattern": "aws-.*",
    f"{S}.enabled": False,
    f"{S}.interval-ms": 250,
    f"{S}.refresh-period-seconds": 5,
    f"{S}.health-summary-period-seconds": 0,
    f"{S}.time-cache-duration-ms": 500,
    f"{S}.batch-operations.enabled": False,
    f"{S}.batch-operations.batch-size": 50,
    f"{S}.batch-operations.chunk-attempt-multiplier": 2.5,
    f"{S}.jitter.initial-registration-seconds": 30,
    f"{S}.jitter.shutdown-seconds": 20,
    f"{S}.jitter.failure-backoff-ratio": 0.5,
    f"{S}.failure-backoff.enabled": True,
    f"{S}.failure-backoff.max-immediate-retries": 2,
    f"{S}.failure-backoff.permanent-forbidden-backoff-ms": 60_000,
    f"{S}.failure-backoff.throttled.base-ms": 1000,
    f"{S}.failure-backoff.throttled.multiplier": 3.0,
    f"{S}.failure-backoff.throttled.cap-ms": 40_000,
    f"{S}.circuit-breaker.enabled": False,
    f"{S}.circuit-breaker.failure-threshold": 9,
    f"{S}.circuit-breaker.failure-window-ms": 2000,
    f"{S}.circuit-breaker.cooldown-ms": 1000,
    f"{S}.circuit-breaker.half-open-duration-ms": 700,
    f"{S}.zombie-cleanup.enabled": False,
    f"{S}.zombie-cleanup.threshold-ms": 5000,
    f"{S}.zombie-cleanup.interval-ms": 1000,
    f"{S}.zombie-cleanup.run-budget-ms": 50,
    f"{S}.zombie-cleanup.executor-shutdown-await-ms": 1,
    f"{S}.zombie-cleanup.executor-shutdown-force-await-ms": 1,
    f"{S}.zombie-cleanup.exceptional-agents.pattern": "aws-.*",
    f"{S}.zombie-cleanup.exceptional-agents.threshold-ms": 9000,
    f"{S}.orphan-cleanup.enabled": False,
    f"{S}.orphan-cleanup.threshold-ms": 5000,
    f"{S}.orphan-cleanup.interval-ms": 1000,
    f"{S}.orphan-cleanup.leadership-ttl-ms": 90_000,
    f"{S}.orphan-cleanup.force-all-pods": True,
    f"{S}.orphan-cleanup.remove-numeric-only-agents": False,
    f"{S}.orphan-cleanup.run-budget-ms": 50,
    f"{S}.orphan-cleanup.executor-shutdown-await-ms": 1,
    f"{S}.orphan-cleanup.executor-shutdown-force-await-ms": 1,
    f"{S}.reconcile.run-budget-ms": 50,
    f"{S}.reconcile.executor-shutdown-await-ms": 1,
    f"{S}.reconcile.executor-shutdown-force-await-ms": 1,
    f"{S}.keys.prefix": "myapp:",
    f"{S}.keys.waiting-set": "line",
    f"{S}.keys.working-set": "busy",
    f"{S}.keys.cleanup-leader-key": "chief",
    f"{S}.keys.hash-tag": "ps",
    "redis.connection.url": "redis://elsewhere:7000",
    "redis.connection.pool.max-wait-millis": 100,
    "redis.connection.pool.max-total": 20,
    "redis.connection.pool.max-idle": 5,
    "redis.connection.pool.min-idle": 1,
    "redis.connection.timeout": 500,
    "redis.connection.connect-timeout": 500,
    "recovery.overdue-ms": 60_000,
    "schedules.retry-exceeds-interval": "error",
    "results.keep": 0,
    "results.max": 7,
    "limits.arguments-bytes": 2048,
    "limits.result-bytes": 2048,
    "http.allow": ["10.0.0.0/8", "localhost"],
    "http.max-per-host": 5,
    "http.max-timeout": "1h",
    "message.allow": ["kafka.internal"],
    "secrets.allow": ["BILLING_*"],
    "subprocess.allow": ["/usr/bin/true"],
}


def test_no_key_is_left_out():
    assert {*CHANGED, f"{S}.type"} == set(SETTINGS)


def configured(folder, key: str | None = None, value: object = None) -> Config:
    path = folder / "tocsin.yaml"
    tree: dict = {}
    if key is not None:
        at = tree
        *groups, last = key.split(".")
        for group in groups:
            at = at.setdefault(group, {})
        at[last] = value
    path.write_text(yaml.safe_dump(tree))
    return load_config(str(path), env={}).config


def observed(config: Config) -> dict[str, object]:
    """What each key is for, seen where it takes effect."""
    settings = settings_of(config)
    store = store_of(config.redis.connection.url or "redis://here:6379", config, None, None, None)
    keys, agents = store.keys, store.keys.partition(AGENTS_QUEUE, 0)
    failing, quick = settings.backoff, settings.breaker
    zombies, cleanup = settings.zombies, settings.cleanup

    def delay(kind: FailureClass, streak: int, chance: float = 0.5) -> int:
        rules = backoff.BackoffSettings(**{name: getattr(failing, name) for name in failing.__struct_fields__})
        return backoff.delay_ms(rules, kind, streak, 70_000, chance)

    found: dict[str, object] = {
        "redis.agent.max-concurrent-agents": RunnerPool(settings.concurrency, None, None, store.clock, None).permits,  # type: ignore
        "redis.agent.enabled-pattern": settings.owns("gcp-images"),
        "redis.agent.disabled-pattern": settings.owns("aws-images"),
        f"{S}.enabled": settings.enabled,
        f"{S}.interval-ms": settings.poll_s,
        f"{S}.refresh-period-seconds": settings.reconcile.every_s,
        f"{S}.health-summary-period-seconds": settings.summary_s,
        f"{S}.time-cache-duration-ms": _trusts(store.clock),
        f"{S}.batch-operations.enabled": settings.batching.size == 1,
        f"{S}.batch-operations.batch-size": settings.batching.size == 50,
        f"{S}.batch-operations.chunk-attempt-multiplier": settings.batching.extra_attempts,
        f"{S}.jitter.initial-registration-seconds": settings.reconcile.jitter_s,
        f"{S}.jitter.shutdown-seconds": settings.shutdown_jitter_s,
        f"{S}.jitter.failure-backoff-ratio": failing.jitter_ratio,
        f"{S}.failure-backoff.enabled": delay(FailureClass.THROTTLED, 1) != 70_000,
        f"{S}.failure-backoff.max-immediate-retries": failing.max_immediate_retries,
        f"{S}.failure-backoff.permanent-forbidden-backoff-ms": failing.permanent_forbidden_backoff_ms,
        f"{S}.failure-backoff.throttled.base-ms": failing.throttled_base_ms,
        f"{S}.failure-backoff.throttled.multiplier": failing.throttled_multiplier,
        f"{S}.failure-backoff.throttled.cap-ms": failing.throttled_cap_ms,
        f"{S}.circuit-breaker.enabled": quick.enabled,
        f"{S}.circuit-breaker.failure-threshold": redis_breaker_settings(quick).failure_threshold,
        f"{S}.circuit-breaker.failure-window-ms": quick.failure_window_ms,
        f"{S}.circuit-breaker.cooldown-ms": redis_breaker_settings(quick).cooldown_ms,
        f"{S}.circuit-breaker.half-open-duration-ms": redis_breaker_settings(quick).half_open_duration_ms,
        f"{S}.zombie-cleanup.enabled": zombies is None,
        f"{S}.orphan-cleanup.enabled": cleanup is None,
        f"{S}.reconcile.run-budget-ms": settings.reconcile.budget_s,
        f"{S}.reconcile.executor-shutdown-await-ms": settings.reconcile_ending.await_s,
        f"{S}.reconcile.executor-shutdown-force-await-ms": settings.reconcile_ending.force_s,
        f"{S}.keys.prefix": keys.fleet()["workers"].startswith("myapp:"),
        f"{S}.keys.waiting-set": "line" in agents["waiting"],
        f"{S}.keys.working-set": "busy" in agents["working"],
        f"{S}.keys.cleanup-leader-key": "chief" in keys.leader(),
        f"{S}.keys.hash-tag": agents["waiting"].endswith("{ps}"),
        "redis.connection.url": store.address,
        "redis.connection.pool.max-wait-millis": store.connections.max_wait_s,
        "redis.connection.pool.max-total": store.connections.max_total,
        "redis.connection.pool.max-idle": store.connections.max_idle,
        "redis.connection.pool.min-idle": store.connections.min_idle,
        "redis.connection.timeout": store.connections.timeout_s,
        "redis.connection.connect-timeout": store.connections.connect_timeout_s,
        "recovery.overdue-ms": settings.overdue_s,
        "schedules.retry-exceeds-interval": _refuses_long_retries(config),
        "results.keep": limits_of(config).keep_s,
        "results.max": store.most_unnamed(OpenQueue(Queue("mail", partitions=1), keys, [])),
        "limits.arguments-bytes": limits_of(config).arguments_bytes,
        "limits.result-bytes": settings.largest_result,
        "http.allow": settings.reach.http_allow,
        "http.max-per-host": settings.reach.max_per_host,
        "http.max-timeout": settings.reach.max_timeout_s,
        "message.allow": settings.reach.message_allow,
        "secrets.allow": settings.reach.secrets,
        "subprocess.allow": settings.reach.programs,
    }
    if zombies is not None:
        group = f"{S}.zombie-cleanup"
        found |= {
            f"{group}.threshold-ms": threshold_for("gcp-images", zombies.thresholds),
            f"{group}.interval-ms": zombies.interval_s,
            f"{group}.run-budget-ms": zombies.budget_s,
            f"{group}.executor-shutdown-await-ms": zombies.ending.await_s,
            f"{group}.executor-shutdown-force-await-ms": zombies.ending.force_s,
            f"{group}.exceptional-agents.pattern": zombies.thresholds.exceptional,
            f"{group}.exceptional-agents.threshold-ms": zombies.thresholds.exceptional_threshold_ms,
        }
    if cleanup is not None:
        group = f"{S}.orphan-cleanup"
        found |= {
            f"{group}.threshold-ms": cleanup.orphans.threshold_ms,
            f"{group}.interval-ms": cleanup.orphans.interval_ms,
            f"{group}.leadership-ttl-ms": cleanup.term_ms,
            f"{group}.force-all-pods": cleanup.force_all,
            f"{group}.remove-numeric-only-agents": cleanup.orphans.remove_numeric_only,
            f"{group}.run-budget-ms": cleanup.orphans.run_budget_ms,
            f"{group}.executor-shutdown-await-ms": cleanup.ending.await_s,
            f"{group}.executor-shutdown-force-await-ms": cleanup.ending.force_s,
        }
    return found


def _refuses_long_retries(config: Config) -> bool:
    spec = Spec("handler", trigger=Every("1s"), retry=Retry(3, "200ms", "500ms"))
    try:
        check_retries_fit_interval(spec, "job", config.schedules.retry_exceeds_interval)
    except InvalidTrigger:
        return True
    return False


def _trusts(clock) -> float:
    """For how long a good observation is kept although a worse one is newer."""
    clock.observe(1_000_000.0, 0.0, 0.001)
    for tenths in range(1, 200):
        at = tenths / 10
        before = clock.server_ms()
        clock.observe(5_000_000.0, at, at + 1)
        if abs(clock.server_ms() - before) > 1000:
            return at
    return float("inf")


@pytest.mark.parametrize("key", CHANGED)
def test_each_key_changes_what_it_is_for_and_nothing_else(tmp_path, key):
    usual, changed = observed(configured(tmp_path)), observed(configured(tmp_path, key, CHANGED[key]))
    different = {name for name in usual if usual[name] != changed.get(name, usual[name])}
    assert different == {key}


def test_the_type_is_priority_and_no_other(tmp_path):
    assert configured(tmp_path, f"{S}.type", "priority") == Config()
    with pytest.raises(InvalidConfig, match=r"redis\.scheduler\.type"):
        configured(tmp_path, f"{S}.type", "default")


def test_what_a_program_says_itself_goes_before_the_file(tmp_path):
    config = configured(tmp_path, f"{S}.keys.prefix", "file:")
    app = Tocsin("redis://here", config=config, prefix="mine:")
    assert app.with_same_declarations()._connection.arguments({})["prefix"] == "mine:"
    assert store_of("redis://here", config, "mine:", "", None).keys.prefix == "mine:"
    assert store_of("redis://here", config, None, None, None).keys.prefix == "file:"
