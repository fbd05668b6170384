"""Worker settings, and how the configuration sets them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tocsin.config import Config
from tocsin.config.rules import longest_of
from tocsin.config.schema import CircuitBreaker, OrphanCleanup, Reconcile, Scheduler, ZombieCleanup
from tocsin.engine.claim_planner import MOST_PER_PASS, Batching
from tocsin.engine.deadline_sweep import OverrunLimits
from tocsin.engine.heartbeat import BEAT_S, TTL_S
from tocsin.model.durations import Millis
from tocsin.model.outcome import LARGEST_RESULT
from tocsin.resilience.backoff import BackoffSettings
from tocsin.resilience.breaker import BreakerSettings
from tocsin.targets.external import TargetPermissions
from tocsin.upkeep import agent_registrar, orphan_cleaner, zombie_thresholds
from tocsin.upkeep.agent_ownership import Ownership
from tocsin.upkeep.reaper import OVERDUE_S


class StopTimes(Struct, frozen=True):
    """How long a stop lets a running pass of upkeep end, and how long it waits after cancelling it."""

    await_s: float = 10.0
    force_s: float = 5.0


class Cleanup(Struct, frozen=True):
    """The slow cleanup of the leader. With `force_all`, every worker cleans up what it owns instead."""

    orphans: orphan_cleaner.OrphanRules = orphan_cleaner.OrphanRules()
    term_ms: Millis = 120_000
    force_all: bool = False
    ending: StopTimes = StopTimes()


class ZombieRules(Struct, frozen=True):
    thresholds: zombie_thresholds.ZombieThresholds = zombie_thresholds.ZombieThresholds()
    interval_s: float = 300.0
    budget_s: float = 0.0
    ending: StopTimes = StopTimes()


class WorkerSettings(Struct, frozen=True):
    """The settings of one worker."""

    concurrency: int = 100
    # How queues that have work share the permits; queues that are not named weigh 1.
    weights: dict[str, int] = {}
    # The beginning of its name, before the host. Claims show it as part of their owner.
    name: str = ""
    # A worker that is not enabled lives and shows itself, but claims nothing.
    enabled: bool = True
    poll_s: float = 1.0
    beat_s: float = BEAT_S
    ttl_s: float = TTL_S
    # How far past its deadline a job's run is recovered although its worker lives. For agents, see Cleanup.
    overdue_s: float = OVERDUE_S
    batching: Batching = Batching()
    # Which agents this worker may run, and how it keeps them registered.
    owns: Callable[[str], bool] = Ownership()
    reconcile: agent_registrar.RegistrationRules = agent_registrar.RegistrationRules()
    reconcile_ending: StopTimes = StopTimes(5.0, 2.0)
    backoff: BackoffSettings = BackoffSettings()
    breaker: BreakerSettings = BreakerSettings()
    # None: off.
    zombies: ZombieRules | None = ZombieRules()
    cleanup: Cleanup | None = Cleanup()
    # How often the log says how healthy the worker is; 0 or less: never.
    summary_s: float = 600.0
    # Runs that a stop releases come back spread over this long.
    shutdown_jitter_s: float = 0.0
    # Where jobs may go outside this process.
    reach: TargetPermissions = TargetPermissions()
    # In bytes, packed: a larger result of a handler is not kept.
    largest_result: int = LARGEST_RESULT


def overrun_limits_of(settings: WorkerSettings) -> OverrunLimits:
    """How long runs may take to end after their deadline, for the deadline sweep."""
    rules, orphan_s = settings.zombies, (settings.cleanup or Cleanup()).orphans.threshold_ms / 1000
    # The leader's cleanup recovers jobs too, if it comes first.
    recovered_s = min(settings.overdue_s, orphan_s)
    if rules is None:
        return OverrunLimits(recovered_s=recovered_s, agents_recovered_s=orphan_s)
    thresholds = rules.thresholds
    return OverrunLimits(
        lambda member: zombie_thresholds.threshold_for(member, thresholds) / 1000,
        rules.interval_s,
        rules.budget_s,
        recovered_s,
        orphan_s,
    )


def settings_of(config: Config, shard: Callable[[str], bool] | None = None) -> WorkerSettings:
    """Settings from the configuration. Patterns that are no regexes were refused when it was read."""
    agent, scheduler = config.redis.agent, config.redis.scheduler
    return WorkerSettings(
        concurrency=agent.max_concurrent_agents,
        enabled=scheduler.enabled,
        poll_s=scheduler.interval_ms / 1000,
        overdue_s=config.recovery.overdue_ms / 1000,
        batching=_batching(scheduler),
        owns=Ownership(agent.enabled_pattern, agent.disabled_pattern, shard),
        reconcile=_reconcile(scheduler),
        reconcile_ending=_ending(scheduler.reconcile),
        backoff=_backoff(scheduler),
        breaker=_breaker(scheduler.circuit_breaker),
        zombies=_zombies(scheduler.zombie_cleanup),
        cleanup=_cleanup(scheduler.orphan_cleanup),
        summary_s=float(scheduler.health_summary_period_seconds),
        shutdown_jitter_s=float(scheduler.jitter.shutdown_seconds),
        reach=TargetPermissions(
            http_allow=config.http.allow,
            message_allow=config.message.allow,
            max_per_host=config.http.max_per_host,
            max_timeout_s=longest_of(config.http.max_timeout),
            secrets=config.secrets.allow,
            programs=config.subprocess.allow,
            longest_wait_s=scheduler.failure_backoff.throttled.cap_ms / 1000,
        ),
        largest_result=config.limits.result_bytes,
    )


def _batching(scheduler: Scheduler) -> Batching:
    batch = scheduler.batch_operations
    size = batch.batch_size if batch.batch_size > 0 else MOST_PER_PASS
    return Batching(min(size, MOST_PER_PASS) if batch.enabled else 1, batch.chunk_attempt_multiplier)


def _reconcile(scheduler: Scheduler) -> agent_registrar.RegistrationRules:
    return agent_registrar.RegistrationRules(
        every_s=float(scheduler.refresh_period_seconds),
        budget_s=scheduler.reconcile.run_budget_ms / 1000,
        jitter_s=float(scheduler.jitter.initial_registration_seconds),
    )


def _backoff(scheduler: Scheduler) -> BackoffSettings:
    failure = scheduler.failure_backoff
    return BackoffSettings(
        enabled=failure.enabled,
        max_immediate_retries=failure.max_immediate_retries,
        permanent_forbidden_backoff_ms=failure.permanent_forbidden_backoff_ms,
        throttled_base_ms=failure.throttled.base_ms,
        throttled_multiplier=failure.throttled.multiplier,
        throttled_cap_ms=failure.throttled.cap_ms,
        jitter_ratio=scheduler.jitter.failure_backoff_ratio,
    )


def _breaker(breaker: CircuitBreaker) -> BreakerSettings:
    return BreakerSettings(
        enabled=breaker.enabled,
        failure_threshold=breaker.failure_threshold,
        failure_window_ms=breaker.failure_window_ms,
        cooldown_ms=breaker.cooldown_ms,
        half_open_duration_ms=breaker.half_open_duration_ms,
    )


def _zombies(cleanup: ZombieCleanup) -> ZombieRules | None:
    if not cleanup.enabled:
        return None
    exceptional = cleanup.exceptional_agents
    thresholds = zombie_thresholds.ZombieThresholds.of(
        cleanup.threshold_ms, exceptional.pattern, exceptional.threshold_ms
    )
    return ZombieRules(thresholds, cleanup.interval_ms / 1000, cleanup.run_budget_ms / 1000, _ending(cleanup))


def _cleanup(cleanup: OrphanCleanup) -> Cleanup | None:
    if not cleanup.enabled:
        return None
    rules = orphan_cleaner.OrphanRules(
        threshold_ms=cleanup.threshold_ms,
        interval_ms=cleanup.interval_ms,
        run_budget_ms=cleanup.run_budget_ms,
        remove_numeric_only=cleanup.remove_numeric_only_agents,
    )
    return Cleanup(rules, cleanup.leadership_ttl_ms, cleanup.force_all_pods, _ending(cleanup))


def _ending(group: ZombieCleanup | OrphanCleanup | Reconcile) -> StopTimes:
    return StopTimes(group.executor_shutdown_await_ms / 1000, group.executor_shutdown_force_await_ms / 1000)
