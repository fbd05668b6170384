"""Failure reports: each failed attempt is logged, counted and given to the program's hooks.

A handler may fail ten thousand times a second. Per handler and second the first few failures are logged in full, the
rest as one line with their number. Runs that could not be started and lost claims are limited the same way: a machine
without a free thread, or a server that lost its last writes, causes thousands of them.

Outcomes are reported when they are decided, before the server has written them. A run whose claim turns out to be lost
may be reported twice: here, and by the worker that has it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tocsin.engine.decide import Finish, Park
from tocsin.engine.incarnation import Incarnation
from tocsin.engine.outcome import EndedRun
from tocsin.engine.work_item import WorkItem
from tocsin.model.clock import Clock
from tocsin.model.durations import Millis, moment
from tocsin.model.errors import TocsinError
from tocsin.model.follow_up import FollowUp
from tocsin.model.job import Failure, Spec
from tocsin.model.outcome import FAILED
from tocsin.model.record import decode_failure, decode_header
from tocsin.model.run import Claim, Run
from tocsin.telemetry.handler_metrics import HandlerTally
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.metrics import OTHER, Counters

log = get_logger("tocsin.failures")

FailureHook = Callable[[Run, BaseException, FollowUp], Awaitable[None] | None]

# How many lines per handler are written in full in each window, and how long a window is.
IN_FULL = 5
WINDOW_S = 1.0
# Without failures a pass has nothing to do.
REST_S = 60.0
# How many calls of asynchronous hooks may be under way; hooks do not get failures beyond that. When the worker ends,
# the calls have this long to end.
MOST_CALLS = 1000
LAST_CALLS_S = 2.0
# A hook must not end the worker.
_HOOK_ERRORS = (Exception, SystemExit)
# Stands for the handler where the record does not name one.
UNREADABLE = "unreadable"

# The text of the line with the number, by the kind of the lines that it counts.
_MORE = {
    "failed": "more runs failed",
    "hook": "failure hook failed more often",
    "not started": "more runs could not be started and go back",
    "lost": "more claims lost",
}
_NAMED = {"hook": "hook", "not started": "handler"}
_Key = tuple[str, str]


class LogWindow:
    """What was logged of one kind, and one handler, in the last second."""

    __slots__ = ("dead", "in_full", "more", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        # Lines written in full; failures beyond them, and how many of these ended their job.
        self.in_full = self.more = self.dead = 0


class FailureReports:
    """`report` gets each outcome that is no success. A pass writes the lines with the numbers."""

    name = "failures"

    def __init__(
        self,
        incarnation: Incarnation,
        namespace: str,
        clock: Clock,
        tally: Counters,
        hooks: Sequence[FailureHook] = (),
    ) -> None:
        self.wake = asyncio.Event()
        self._incarnation = incarnation
        self._namespace = namespace
        self._clock = clock
        self._tally = tally
        self._hooks = hooks
        self._calls: set[asyncio.Task[None]] = set()
        self._windows: dict[_Key, LogWindow] = {}

    def report(self, ended: EndedRun, verb: str, due: Millis, now: Millis) -> None:
        """`verb`: what the encoder decided. `due`: until when the job waits then, in server ms; 0 if it does not."""
        parked = isinstance(ended.decision, Park)
        if parked or ended.stuck is not None:
            failure = ended.stuck or decode_failure(ended.error)
            self._log(ended, UNREADABLE if ended.spec is None else ended.spec.name, None, failure)
        if parked:
            return
        if ended.spec is None or not _has_failed(ended, verb):
            return
        tally = self._tally_of(ended.spec.name)
        tally.failed += 1
        tally.retried += verb == "retry"
        tally.dead += verb == "bury"
        window = self._window("failed", ended.spec.name)
        if window.in_full < IN_FULL or self._hooks:
            follows = _follow_up(ended.claim, ended.spec, verb, due, now)
            self._log(ended, ended.spec.name, follows, decode_failure(ended.error))
            for hook in self._hooks:
                self._call(hook, ended, ended.spec, follows)
        else:
            self._count(window, verb == "bury")

    def not_started(self, unit: WorkItem, error: BaseException) -> None:
        """A claimed run is released, because this machine has no thread or process left for it."""
        name = unit.handler.name
        if self._in_full("not started", name):
            facts = {"run": unit.claim.run_id, "handler": name, "worker": self._incarnation.name, "error": str(error)}
            log.warning("run could not be started and goes back", **facts)

    def claim_lost(self, member: str) -> None:
        if self._in_full("lost", ""):
            log.warning(
                "claim lost: its outcome was not written, because the claim is gone or another worker holds it",
                job=member,
                worker=self._incarnation.name,
            )

    async def step(self) -> float:
        """Seconds until there is more to write."""
        now = self._clock.monotonic()
        for key, window in list(self._windows.items()):
            if now - window.since >= WINDOW_S:
                self._close(key, window)
        return WINDOW_S if any(window.more for window in self._windows.values()) else REST_S

    async def end(self) -> None:
        """Write the lines that are left, and let the hooks end."""
        for key, window in list(self._windows.items()):
            self._close(key, window)
        if self._calls:
            await asyncio.wait(self._calls, timeout=LAST_CALLS_S)

    # Lines

    def _log(self, ended: EndedRun, name: str, follows: FollowUp | None, failure: Failure) -> None:
        """`follows`: None for a parked job."""
        is_dead = follows is not None and follows.kind == "dead"
        if not self._in_full("failed", name, is_dead):
            return
        claim = ended.claim
        facts: dict[str, Any] = {
            "job": claim.job_id, "run": claim.run_id, "queue": claim.queue, "handler": name, "attempt": claim.attempt,
            "worker": self._incarnation.name, "error": failure.error,
        }  # fmt: skip
        if follows is None:
            log.warning("job is parked", **facts)
            return
        if failure.traceback:
            facts["exception"] = failure.traceback
        if is_dead:
            log.error("run failed, its job is dead", follows=str(follows), **facts)
        else:
            log.warning("run failed", follows=str(follows), **facts)

    def _in_full(self, kind: str, name: str, is_dead: bool = False) -> bool:
        """Whether to write another line of this kind in full; otherwise count it."""
        window = self._window(kind, name)
        if window.in_full >= IN_FULL:
            self._count(window, is_dead)
            return False
        window.in_full += 1
        return True

    def _window(self, kind: str, name: str) -> LogWindow:
        key = kind, name
        now, window = self._clock.monotonic(), self._windows.get(key)
        if window is None or now - window.since >= WINDOW_S:
            if window is not None:
                self._close(key, window)
            window = self._windows[key] = LogWindow(now)
        return window

    def _count(self, window: LogWindow, is_dead: bool) -> None:
        window.more += 1
        window.dead += is_dead
        if window.more == 1:
            self.wake.set()

    def _close(self, key: _Key, window: LogWindow) -> None:
        del self._windows[key]
        if not window.more:
            return
        kind, name = key
        facts: dict[str, Any] = {"worker": self._incarnation.name}
        if kind == "failed":
            facts |= {"handler": name, "failed": window.more, "dead": window.dead}
        else:
            facts |= {"count": window.more} | ({_NAMED[kind]: name} if name else {})
        (log.error if window.dead or kind == "hook" else log.warning)(_MORE[kind], **facts)

    # Numbers

    def _tally_of(self, name: str) -> HandlerTally:
        """Handlers that this worker does not have share one label, so that the number of labels stays bounded."""
        return self._tally.handlers.get(name) or self._tally.of_handler(OTHER)

    # Hooks

    def _call(self, hook: FailureHook, ended: EndedRun, spec: Spec, follows: FollowUp) -> None:
        run = Run(ended.claim, decode_header(ended.claim.record), spec, self._namespace, _has_ended)
        try:
            called = hook(run, _error(ended), follows)
        except _HOOK_ERRORS as error:
            self._hook_failed(hook, error)
            return
        if not inspect.iscoroutine(called):
            return
        if len(self._calls) >= MOST_CALLS:
            called.close()
            self._hook_failed(hook, TocsinError(f"{MOST_CALLS} calls of it have not ended"))
            return
        task = asyncio.create_task(self._until_ended(hook, called), name="tocsin failure hook")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _until_ended(self, hook: FailureHook, called: Awaitable[None]) -> None:
        try:
            await called
        except _HOOK_ERRORS as error:
            self._hook_failed(hook, error)

    def _hook_failed(self, hook: FailureHook, error: BaseException) -> None:
        """A hook may fail as often as the handlers do, so its log lines are limited like theirs."""
        name = getattr(hook, "__qualname__", repr(hook))
        if self._in_full("hook", name):
            log.error("failure hook failed", hook=name, exc_info=error)


def _has_failed(ended: EndedRun, verb: str) -> bool:
    if ended.how == "failed":
        return True
    # Decided without executing it: it may also have been cancelled, or be too late.
    decision = ended.decision
    return ended.how == "decided" and (verb == "bury" or (isinstance(decision, Finish) and decision.outcome == FAILED))


def _follow_up(claim: Claim, spec: Spec, verb: str, due: Millis, now: Millis) -> FollowUp:
    if verb in ("bury", "park"):
        return FollowUp("dead" if verb == "bury" else "parked")
    if verb != "retry":
        return FollowUp("next", moment(due), max(0, due - now) / 1000) if due else FollowUp("ended")
    attempts = spec.retry.retries + 1 if spec.retry is not None and claim.attempt <= spec.retry.retries else 0
    return FollowUp("retry", moment(due), (due - now) / 1000, claim.attempt + 1, attempts)


def _error(ended: EndedRun) -> BaseException:
    """The exception that the handler raised, or else one made from the recorded failure."""
    if ended.cause is not None:
        return ended.cause
    failure: Failure = decode_failure(ended.error)
    return TocsinError(failure.error) if ended.how == "decided" else TimeoutError(failure.error)


def _has_ended(run: Run, seconds: float) -> Any:
    raise TocsinError(f"the run {run.id} has ended: it cannot be extended")
