"""All settings, with their types, defaults and limits, in the order of `tocsin config show`.

The error for a value below a limit shows the limit's `description`. Zero or less switches a setting off only where a
comment here says so.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tocsin.config.mask import masked
from tocsin.model.grants import ANY, Grants

# A longer time is a typing error, and timers of threads do not accept a thousand years.
A_YEAR_S = 366 * 86_400
A_YEAR_MS = A_YEAR_S * 1000
MOST = 2**31 - 1

_PERIOD = "zero or less does not switch it off"
_WAIT = "a time cannot be negative"

PeriodMs = Annotated[int, Meta(ge=1, le=A_YEAR_MS, description=_PERIOD)]
PeriodSeconds = Annotated[int, Meta(ge=1, le=A_YEAR_S, description=_PERIOD)]
# 0 means no wait.
WaitMs = Annotated[int, Meta(ge=0, le=A_YEAR_MS, description=_WAIT)]
WaitSeconds = Annotated[int, Meta(ge=0, le=A_YEAR_S, description=_WAIT)]
# Servers whose clocks differ by a third of this are detected (lua/run_recover.lua).
OverdueMs = Annotated[int, Meta(ge=30_000, le=A_YEAR_MS, description="their worker could not end them in time")]
# 0: no budget.
BudgetMs = Annotated[int, Meta(ge=0, le=A_YEAR_MS, description="0 switches the budget off")]
# 0 or less: off, or without a limit.
Switchable = Annotated[int, Meta(ge=-MOST, le=MOST)]
SwitchableSeconds = Annotated[int, Meta(ge=-A_YEAR_S, le=A_YEAR_S)]
Some = Annotated[int, Meta(ge=1, le=MOST, description="there is no way to do with none")]
Number = Annotated[int, Meta(ge=0, le=MOST, description="a number of things cannot be negative")]
Bytes = Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024, description="not even small ones would fit")]
Ratio = Annotated[float, Meta(ge=0, lt=1, description="a ratio cannot be negative")]
Growth = Annotated[float, Meta(ge=1, le=1000, description="each delay would be shorter than the one before")]
Multiplier = Annotated[float, Meta(ge=0, le=1000, description="there cannot be fewer than no extra attempts")]


class Group(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Settings that belong together."""


class AgentGroup(Group, frozen=True):
    # 0 or less: unbounded.
    max_concurrent_agents: Switchable = 100
    # Regexes for the whole name. `disabled_pattern` wins over `enabled_pattern`.
    enabled_pattern: str = ".*"
    disabled_pattern: str = ""


class BatchOperations(Group, frozen=True):
    enabled: bool = True
    # 0 or less: unlimited.
    batch_size: Switchable = 0
    # A worker requests four agents for each one that a claim may return, and at least fifty, because other workers may
    # have taken some. The multiplier adds more: 1.0 requests twice as many. It also reads so many more pages for extra
    # runs.
    chunk_attempt_multiplier: Multiplier = 0.0


class Jitter(Group, frozen=True):
    initial_registration_seconds: WaitSeconds = 0
    shutdown_seconds: WaitSeconds = 0
    # 0.1: ±10 %.
    failure_backoff_ratio: Ratio = 0.1


class Throttled(Group, frozen=True):
    base_ms: PeriodMs = 30_000
    multiplier: Growth = 2.0
    cap_ms: PeriodMs = 600_000


class FailureBackoff(Group, frozen=True):
    enabled: bool = False
    max_immediate_retries: Number = 0
    permanent_forbidden_backoff_ms: PeriodMs = 1_800_000
    throttled: Throttled = Throttled()


class CircuitBreaker(Group, frozen=True):
    enabled: bool = True
    failure_threshold: Some = 5
    failure_window_ms: PeriodMs = 10_000
    cooldown_ms: PeriodMs = 30_000
    half_open_duration_ms: PeriodMs = 5_000


class ExceptionalAgents(Group, frozen=True):
    # Empty: no agent is exceptional. A text that is not a regex counts as empty.
    pattern: str = ""
    threshold_ms: WaitMs = 3_600_000


class ZombieCleanup(Group, frozen=True):
    enabled: bool = True
    # Time after the deadline.
    threshold_ms: WaitMs = 30_000
    interval_ms: PeriodMs = 300_000
    run_budget_ms: BudgetMs = 0
    executor_shutdown_await_ms: WaitMs = 10_000
    executor_shutdown_force_await_ms: WaitMs = 5_000
    exceptional_agents: ExceptionalAgents = ExceptionalAgents()


class OrphanCleanup(Group, frozen=True):
    enabled: bool = True
    threshold_ms: WaitMs = 600_000
    interval_ms: PeriodMs = 300_000
    leadership_ttl_ms: PeriodMs = 120_000
    force_all_pods: bool = False
    remove_numeric_only_agents: bool = True
    run_budget_ms: BudgetMs = 0
    executor_shutdown_await_ms: WaitMs = 10_000
    executor_shutdown_force_await_ms: WaitMs = 5_000


class Reconcile(Group, frozen=True):
    run_budget_ms: BudgetMs = 0
    executor_shutdown_await_ms: WaitMs = 5_000
    executor_shutdown_force_await_ms: WaitMs = 2_000


class KeysGroup(Group, frozen=True):
    prefix: str = ""
    waiting_set: str = "waiting"
    working_set: str = "working"
    cleanup_leader_key: str = "cleanup-leader"
    # Written without braces.
    hash_tag: str = ""


class Scheduler(Group, frozen=True):
    enabled: bool = True
    type: Literal["priority"] = "priority"
    interval_ms: PeriodMs = 1_000
    refresh_period_seconds: PeriodSeconds = 30
    # 0 or less: no summary.
    health_summary_period_seconds: SwitchableSeconds = 600
    time_cache_duration_ms: PeriodMs = 10_000
    batch_operations: BatchOperations = BatchOperations()
    jitter: Jitter = Jitter()
    failure_backoff: FailureBackoff = FailureBackoff()
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    zombie_cleanup: ZombieCleanup = ZombieCleanup()
    orphan_cleanup: OrphanCleanup = OrphanCleanup()
    reconcile: Reconcile = Reconcile()
    keys: KeysGroup = KeysGroup()


class PoolGroup(Group, frozen=True):
    max_wait_millis: PeriodMs = 5_000
    max_total: Some = 50
    max_idle: Number = 10
    min_idle: Number = 2


class Connection(Group, frozen=True):
    # Empty: not given. May contain a password, so use `masked` to show it.
    url: str = ""
    pool: PoolGroup = PoolGroup()
    timeout: PeriodMs = 3_000
    connect_timeout: PeriodMs = 2_000

    def __repr__(self) -> str:
        pool, timeout, connect = self.pool, self.timeout, self.connect_timeout
        return f"Connection(url={masked(self.url)!r}, {pool=}, {timeout=}, connect_timeout={connect})"


class Redis(Group, frozen=True):
    agent: AgentGroup = AgentGroup()
    scheduler: Scheduler = Scheduler()
    connection: Connection = Connection()


class Recovery(Group, frozen=True):
    # How long after its deadline a run of a job is recovered although its worker lives. For agents the setting is
    # redis.scheduler.orphan-cleanup.threshold-ms.
    overdue_ms: OverdueMs = 30_000


class Schedules(Group, frozen=True):
    # What happens if retries may still go on when the next run is due: a warning or an error.
    retry_exceeds_interval: Literal["warn", "error"] = "warn"


class ResultsGroup(Group, frozen=True):
    # How long to keep the outcomes of jobs that `enqueue` puts without an id and without `keep`; 0: not at all.
    keep: str = "10m"
    # Maximum outcomes of jobs without an id, per queue. The oldest are deleted first.
    max: Number = 100_000


class Limits(Group, frozen=True):
    # Maximum sizes of the arguments of a job and of the result of a run, packed.
    arguments_bytes: Bytes = 512 * 1024
    result_bytes: Bytes = 512 * 1024


class HttpGroup(Group, frozen=True):
    # Private networks and hosts that requests may go to: 10.0.0.0/8, localhost, *.internal.
    allow: tuple[str, ...] = ()
    # Maximum concurrent requests of one worker to one host. Never more than half of the worker's permits.
    max_per_host: Some = 50
    # The longest timeout that a job may give a request or a message: one that hangs holds a permit for this long.
    max_timeout: str = "10m"


class MessageGroup(Group, frozen=True):
    # Private networks and hosts where brokers may be, written like `http.allow`.
    allow: tuple[str, ...] = ()


class SecretsGroup(Group, frozen=True):
    # Variables and files that jobs may use as secrets, in addition to those that need no permission
    # (docs/guide/webhooks.md), and the hosts that each may be sent to.
    allow: Annotated[Grants, Meta(extra={"alone": (ANY,)})] = {}


class SubprocessGroup(Group, frozen=True):
    # Programs that jobs may start, by path (`*` for any), each with the variables that jobs may set for it
    # (docs/guide/programs.md). Empty: this worker takes no such jobs.
    allow: Annotated[Grants, Meta(extra={"alone": ()})] = {}


class Config(Group, frozen=True):
    redis: Redis = Redis()
    recovery: Recovery = Recovery()
    schedules: Schedules = Schedules()
    results: ResultsGroup = ResultsGroup()
    limits: Limits = Limits()
    http: HttpGroup = HttpGroup()
    message: MessageGroup = MessageGroup()
    secrets: SecretsGroup = SecretsGroup()
    subprocess: SubprocessGroup = SubprocessGroup()
