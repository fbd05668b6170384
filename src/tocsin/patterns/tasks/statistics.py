"""Counts what a task scheduler does: passes, pushes, and errors by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from tocsin.engine.fetcher import AnsweredClaim
from tocsin.model.clock import monotonic
from tocsin.model.durations import Millis, moment
from tocsin.model.errors import RecordUnreadable, StoreError, StoreRefused, StoreTimeout, StoreUnavailable
from tocsin.model.record import decode_spec
from tocsin.model.run import Run
from tocsin.patterns.tasks.push_log import PushLog
from tocsin.patterns.tasks.schedules import ScheduleRecord
from tocsin.store.transitions.claims import ClaimReply
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.metrics import Counters

log = get_logger("tocsin.taskscheduler")

# The most schedules that one line of the log names.
MOST_NAMED = 5
ERRORS = (
    "redis_error_count",
    "lock_timeout_count",
    "deserialization_error_count",
    "push_error_count",
    "cron_error_count",
    "critical_error_count",
)


class Statistics(Struct, frozen=True):
    """Counts since the scheduler was made. Rates are shares from 0 to 1, and 1 before the first try."""

    state: str
    # Since the last start; 0 while it does not run.
    uptime_s: float
    passes: int
    pushed: int
    # Occurrences per second of running.
    schedules_per_second: float
    # The share of passes that got an occurrence, among those that tried to.
    claim_success_rate: float
    push_success_rate: float
    # The mean time of passes that got occurrences, from the claim until the pushes were noted.
    mean_pass_s: float
    redis_error_count: int
    lock_timeout_count: int
    deserialization_error_count: int
    push_error_count: int
    cron_error_count: int
    critical_error_count: int
    # Errors per pass, by the name of the counter.
    error_rates: dict[str, float]
    # On the server's clock.
    last_successful_pass: datetime | None
    # Whether the server answered the last claim.
    connected: bool
    # The share of passes that found that another scheduler had the occurrence, among those that tried to get one.
    contention: float
    # The error that ended the scheduler last.
    critical_error: str | None


class StatisticsRecorder:
    """The parts of a scheduler call it, on their event loop, when something happens that counts."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(ERRORS, 0)
        self.passes = 0
        self.pushed = 0
        self._failed_pushes = 0
        self._won = self._contended = self._failed = 0
        # Schedules that were unreadable when they were claimed last.
        self._set_aside: set[str] = set()
        self._took_s = 0.0
        self._last: Millis | None = None
        self.connected = True
        self._running_s = 0.0
        self._since: float | None = None
        self.critical_error: str | None = None
        self._was_critical = False
        self.log = PushLog()
        # The counters of the present worker: errors are metrics too.
        self.tally = Counters()
        # Called for an error that a retry cannot mend.
        self.on_critical: Callable[[StoreError], None] = lambda error: None

    def began(self) -> None:
        self._since = monotonic()
        self._was_critical = False

    def ended(self) -> None:
        self.log.close()
        if self._since is not None:
            self._running_s += monotonic() - self._since
        self._since = None

    def count(self, error: str, times: int = 1) -> None:
        self.counts[error] += times
        setattr(self.tally, error, getattr(self.tally, error) + times)

    # Passes

    def saw(self, claims: list[AnsweredClaim], took: float) -> None:
        """Count one pass. The schedules are in one partition, so it has one claim."""
        self.passes += 1
        if any(isinstance(claim.reply, ClaimReply) and claim.reply.claims for claim in claims):
            self._took_s += took
        for claim in claims:
            if isinstance(claim.reply, StoreError):
                self._refused(claim.reply)
            else:
                self._answered(claim.expected, claim.reply)

    def _refused(self, error: StoreError) -> None:
        self._failed += 1
        if self.connected:
            log.warning("the server does not serve this scheduler: it goes on trying", error=str(error))
        self.connected = False
        self.redis_error(error)
        if isinstance(error, StoreTimeout):
            log.warning("no claim: the server did not answer in time", error=str(error))
            self.count("lock_timeout_count")
        if isinstance(error, StoreRefused):
            self.critical(error)
            self.on_critical(error)

    def critical(self, error: BaseException) -> None:
        """Count the error that ends the scheduler, once, even if several parts report it."""
        self.critical_error = str(error)
        if not self._was_critical:
            self._was_critical = True
            self.count("critical_error_count")

    def _answered(self, expected: float, answer: ClaimReply) -> None:
        """`expected`: when this scheduler expected an occurrence to be due."""
        if not self.connected:
            log.info("the server serves this scheduler again")
        self.connected = True
        self._last = answer.now
        if answer.claims:
            self._won += 1
        elif 0 < expected <= answer.now:
            # We knew of a due occurrence, and when we asked it was gone.
            self._contended += 1
            log.debug("nothing to push: another scheduler has what was due")
        for _ in range(answer.parked):
            log.error("a schedule cannot be read and is set aside: look at list_schedules(is_active=False)")
            self.count("deserialization_error_count")
        for claim in answer.claims:
            try:
                decode_spec(claim.record)
            except RecordUnreadable as error:
                # Workers claim it again and again. Count a schedule that stays unreadable as one error.
                if claim.job_id not in self._set_aside:
                    self._set_aside.add(claim.job_id)
                    self._unreadable(claim.job_id, claim.record, str(error))
            else:
                self._set_aside.discard(claim.job_id)

    def _unreadable(self, schedule: str, record: bytes, error: str) -> None:
        wrong_cron = ScheduleRecord.of(record).wrong_cron
        if wrong_cron:
            log.error("a schedule has a wrong cron expression and is set aside", schedule=schedule, error=wrong_cron)
            self.count("cron_error_count")
        else:
            self.malformed(schedule, error)

    def malformed(self, schedule: str, error: str) -> None:
        log.error("a schedule cannot be read and is set aside", schedule=schedule, error=error)
        self.count("deserialization_error_count")

    def redis_error(self, error: BaseException) -> None:
        if isinstance(error, (StoreUnavailable, StoreRefused)):
            self.count("redis_error_count")

    # Pushes

    def processed(self, seconds: float) -> None:
        """Count the time that it took to push what a pass had claimed, or a part of it."""
        self._took_s += seconds

    def push_succeeded(self, run: Run) -> None:
        self.pushed += 1
        self.log.pushed(run)

    def pushes_failed(self, failed: Mapping[Run, BaseException]) -> None:
        """Count the pushes of one call that failed. Those with the same error are one line, and one server error."""
        for error in dict.fromkeys(failed.values()):
            runs = [run for run, why in failed.items() if why is error]
            self._failed_pushes += len(runs)
            log.warning("tasks could not be pushed: they are tried again", error=str(error), **_named(runs))
            self.count("push_error_count", len(runs))
            self.redis_error(error)

    def pushes_timed_out(self, runs: Sequence[Run]) -> None:
        self._failed_pushes += len(runs)
        log.warning("tasks were not pushed within lock_timeout: they are tried again", **_named(runs))
        self.count("lock_timeout_count", len(runs))

    def statistics(self, state: str) -> Statistics:
        uptime = 0.0 if self._since is None else monotonic() - self._since
        tried = self._won + self._contended + self._failed
        ran = self._running_s + uptime
        return Statistics(
            state=state,
            uptime_s=uptime,
            passes=self.passes,
            pushed=self.pushed,
            schedules_per_second=self.pushed / ran if ran else 0.0,
            claim_success_rate=_share(self._won, tried),
            push_success_rate=_share(self.pushed, self.pushed + self._failed_pushes),
            mean_pass_s=self._took_s / self._won if self._won else 0.0,
            **self.counts,
            error_rates={name: count / max(self.passes, 1) for name, count in self.counts.items()},
            last_successful_pass=None if self._last is None else moment(self._last),
            connected=self.connected,
            contention=self._contended / tried if tried else 0.0,
            critical_error=self.critical_error,
        )


def _named(runs: Sequence[Run]) -> dict[str, Any]:
    """The number of tasks and the first few of their schedules, for a line of the log."""
    return {"tasks": len(runs), "schedules": [run.job_id for run in runs[:MOST_NAMED]]}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
