"""Checks the options that calls give for a job and turns them into records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from tocsin.config import Config
from tocsin.config.rules import keep_of, longest_of
from tocsin.engine.handlers import Bound, Handler
from tocsin.model.durations import Duration, Millis, ceil_ms, epoch_ms, millis, seconds
from tocsin.model.errors import InvalidArgument, InvalidTrigger, did_you_mean
from tocsin.model.http import Http
from tocsin.model.ids import check_job_id
from tocsin.model.job import (
    DEFAULT_KEEP,
    MISFIRES,
    NORMAL,
    OVERLAPS,
    PLAIN,
    Header,
    Policy,
    Retry,
    Spec,
    Stage,
    check_keep,
    check_priority,
    check_timeout,
)
from tocsin.model.message import Message
from tocsin.model.outcome import IGNORE, POSTPONE, REPLACE, UPDATE
from tocsin.model.queue import Queue
from tocsin.model.record import LARGEST_PAYLOAD, encode_record, trigger_digest
from tocsin.model.target import Target, fields_of
from tocsin.model.trigger import Every, Once, Trigger, likely_mistakes, phrase
from tocsin.store.transitions.jobs import PutItem
from tocsin.targets.builtin import handler_for, timeout_of
from tocsin.telemetry.logs import get_logger
from tocsin.triggers.next_tick import NextAt, next_at, shortest_distance
from tocsin.triggers.recurrence import counts_from_now, first_due, phase

log = get_logger("tocsin.schedules")

# Names that parameters of handlers may not have: enqueue and schedule would take them for their own options.
RESERVED = frozenset([
    "id", "at", "delay", "priority", "tenant", "queue", "retry", "timeout", "criticality", "if_exists", "keep", "cost",
    "after", "on_upstream_failure", "durable", "overlap", "misfire", "grace", "catch_up", "jitter", "starts", "ends",
])  # fmt: skip
# The most runs that a backfill without `limit` adds: more come from a span that was given by mistake.
MOST_BACKFILLED = 100_000
# A hundred years. The cleanup takes a schedule that is due later for garbage (store/scripts/lua/lib/score_check.lua).
FURTHEST_MS = 3_155_760_000_000
_IF_EXISTS = {"ignore": IGNORE, "replace": REPLACE, "postpone": POSTPONE, "update": UPDATE}


class JobLimits(Struct, frozen=True):
    """What the configuration says about all jobs."""

    # Bytes that the arguments of a job may take.
    arguments_bytes: int = LARGEST_PAYLOAD
    # Seconds that a request or a message may be given.
    delivery_s: float = math.inf
    # For how many seconds `enqueue` keeps outcomes.
    keep_s: int = 0
    # What to do about a schedule whose retries may outlast its interval: "warn" or "error".
    retry_exceeds_interval: str = "warn"


_NO_LIMITS = JobLimits()


def limits_of(config: Config) -> JobLimits:
    return JobLimits(
        arguments_bytes=config.limits.arguments_bytes,
        delivery_s=longest_of(config.http.max_timeout),
        keep_s=keep_of(config.results.keep),
        retry_exceeds_interval=config.schedules.retry_exceeds_interval,
    )


class OneShotOptions(Struct, frozen=True):
    """The options that only one-shot jobs have."""

    at: datetime | None = None
    delay: Duration | None = None
    if_exists: str = "ignore"
    keep: Duration | None = None


class JobDefinition(Struct, frozen=True):
    """A handler with its arguments, and everything that a put needs except the job's id and its due time."""

    handler: Handler
    spec: Spec
    timeout: Millis
    tenant: str
    # The name of the queue to put it in.
    queue: str
    cost: int = 1
    band: int = NORMAL
    # Whether the caller gave a priority: queues of order "due" refuse one.
    has_priority: bool = False
    # Bytes that its arguments may take.
    largest: int = LARGEST_PAYLOAD

    def record(self, *, keep: int, recurring: bool, unnamed: bool = False) -> bytes:
        header = Header(
            recurring=recurring,
            unnamed=unnamed,
            timeout=self.timeout,
            handler=self.handler.digest,
            trigger=trigger_digest(self.spec),
            band=self.band,
            cost=self.cost,
            keep=keep,
            tenant=self.tenant,
        )
        return encode_record(header, self.spec, self.largest)


def define_job(
    what: Handler | Bound | Target,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    trigger: Trigger | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    tenant: str | None = None,
    cost: int = 1,
    priority: str | None = None,
    queue: str | None = None,
    policy: Policy = PLAIN,
    limits: JobLimits = _NO_LIMITS,
) -> JobDefinition:
    check_delivery_time(what, limits.delivery_s)
    handler, args, kwargs = resolve_call(what, args, kwargs)
    return JobDefinition(
        handler=handler,
        spec=Spec(
            name=handler.name,
            args=args,
            kwargs=kwargs,
            trigger=trigger,
            retry=check_retry(retry) if retry is not None else handler.retry,
            policy=None if policy == PLAIN else policy,
        ),
        timeout=_timeout(what, handler) if timeout is None else check_timeout(timeout),
        tenant=check_tenant(tenant),
        queue=queue or handler.queue,
        cost=check_cost(cost),
        band=NORMAL if priority is None else check_priority(priority),
        has_priority=priority is not None,
        largest=limits.arguments_bytes,
    )


def check_delivery_time(what: object, longest_s: float) -> None:
    """Raise InvalidArgument for a request or a message that may take longer than workers wait for an answer."""
    if isinstance(what, Http | Message) and what.timeout > longest_s:
        raise InvalidArgument(
            f"{what} has a timeout of {what.timeout:g} s, and workers wait no longer than `http.max-timeout`, "
            f"{longest_s:g} s: give it a shorter one, or raise the setting, here and for the workers"
        )


def default_schedule_id(handler: Handler, what: object) -> str:
    """The id of a schedule whose caller gave none: the name of its handler."""
    if isinstance(what, Target):
        raise InvalidArgument(f"give the schedule an id=: {what} has no name that it could have instead")
    return handler.name


def _timeout(what: object, handler: Handler) -> Millis:
    return timeout_of(what) if isinstance(what, Target) else handler.timeout


def resolve_call(
    what: Handler | Bound | Target, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Handler, tuple[Any, ...], dict[str, Any]]:
    """The handler that runs it, with the arguments that it gets."""
    if isinstance(what, Bound):
        if args or kwargs:
            raise InvalidArgument("pass the arguments to bind() or to the call, not to both")
        return what.handler, what.args, what.kwargs
    if isinstance(what, Target):
        if args or kwargs:
            raise InvalidArgument(f"{what} takes no arguments: what is sent stands in it")
        return handler_for(what), fields_of(what), {}
    if not isinstance(what, Handler):
        raise InvalidArgument(f"{what!r} is not a job: decorate the function with @app.job(), or give Http, Message …")
    refuse_unknown(what, kwargs)
    return what, args, what.check(args, kwargs)


def refuse_unknown(handler: Handler, kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for a keyword that is neither an option nor a parameter, with the nearest that is."""
    if not kwargs or handler.batch is not None:
        return
    parameters = handler.signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = {parameter.name for parameter in parameters}
    for name in kwargs:
        if name not in known:
            raise InvalidArgument(
                f"{name!r} is no option, and no parameter of {handler.name}; {did_you_mean(name, known | RESERVED)}"
            )


def one_shot(
    job: JobDefinition, job_id: str | None, new_id: str, options: OneShotOptions, default_keep: int
) -> PutItem:
    """The put of a one-shot job, under `new_id` if the caller gave no `job_id`. `default_keep` is in seconds."""
    named = job_id is not None
    member = new_id if job_id is None else check_job_id(job_id)
    keep = keep_seconds(job.handler, options.keep, 0 if named else default_keep, named=named)
    due, relative = due_and_relative(options.at, options.delay)
    record = job.record(keep=keep, recurring=False, unnamed=not named)
    mode = mode_of(options.if_exists, ("ignore", "replace", "postpone"))
    return PutItem(member, record, due, relative, mode, now_if_past=True)


def keep_seconds(handler: Handler, keep: Duration | None, default: int, *, named: bool) -> int:
    """For how many seconds to keep the outcome: as the call says, else as its handler does, else `default`.

    An id that the caller chose makes the put idempotent for as long as the outcome is kept. So a handler cannot
    shorten that time below `DEFAULT_KEEP`; only the call itself can.
    """
    if keep is not None:
        return check_keep(keep)
    usual = default if handler.keep is None else handler.keep
    return max(usual, check_keep(DEFAULT_KEEP)) if named else usual


def recurring(job: JobDefinition, member: str, now: Millis, mode: int, find: NextAt = next_at) -> PutItem:
    """The put of a schedule."""
    due, relative = first(job.spec, member, now, find)
    if not isinstance(job.spec.trigger, Once):
        return PutItem(member, job.record(keep=0, recurring=True), due, relative, mode)
    if mode == UPDATE and due <= now:
        # The moment of a Once trigger has passed. If the job has run, declaring it again must not run it again.
        mode = IGNORE
    record = job.record(keep=check_keep(DEFAULT_KEEP), recurring=False)
    return PutItem(member, record, due, relative, mode, now_if_past=True)


def first(spec: Spec, member: str, now: Millis, find: NextAt = next_at) -> tuple[Millis, bool]:
    """When a schedule is due first: (due, relative). If relative, the server adds its own now to `due`."""
    trigger, rules = spec.trigger, spec.rules
    assert trigger is not None
    due = first_due(trigger, rules, member, now, find)
    if due > now + FURTHEST_MS and not isinstance(trigger, Once):
        raise InvalidTrigger(f"job {member!r} would run for the first time in more than 100 years: let it start sooner")
    if isinstance(trigger, Every) and counts_from_now(trigger) and rules.starts is None:
        return ceil_ms(trigger.interval) + phase(member, rules.jitter), True
    return max(due, 0), False


def check_retries_fit_interval(spec: Spec, member: str, exceeding: str) -> None:
    """Warn if a run may still be retried when the next one is due; with "error", raise InvalidTrigger."""
    if spec.retry is None or spec.trigger is None:
        return
    distance, worst = shortest_distance(spec.trigger), ceil_ms(spec.retry.worst_case())
    if distance is None or worst <= distance:
        return
    what = f"the retries of job {member!r} take up to {worst} ms, and its runs can be {distance} ms apart"
    if exceeding == "error":
        raise InvalidTrigger(f"{what}: try less often, or run it less often")
    log.warning("retries may outlast the time to the next run", job=member, retries_ms=worst, apart_ms=distance)


def warn_if_odd(trigger: Trigger | None, member: str) -> None:
    for sentence in likely_mistakes(trigger):
        log.warning("a schedule may not be what was meant", job=member, trigger=phrase(trigger), odd=sentence)


def policy(
    *,
    overlap: str = "skip",
    misfire: str = "coalesce",
    grace: Duration | None = None,
    catch_up: Duration | None = None,
    criticality: int = 0,
    jitter: Duration | None = None,
    starts: datetime | None = None,
    ends: datetime | None = None,
    error_interval: Duration | None = None,
    agent: bool = False,
) -> Policy:
    if overlap not in OVERLAPS:
        raise InvalidArgument(f"there is no overlap {overlap!r}; {did_you_mean(str(overlap), OVERLAPS)}")
    if agent and overlap != "skip":
        raise InvalidArgument("an agent runs one at a time: its overlap is 'skip'. Schedule a job for anything else")
    if misfire not in MISFIRES:
        raise InvalidArgument(f"there is no misfire {misfire!r}; {did_you_mean(misfire, MISFIRES)}")
    start = None if starts is None else epoch_ms(starts, "starts")
    end = None if ends is None else epoch_ms(ends, "ends")
    if start is not None and end is not None and end < start:
        raise InvalidTrigger("`ends` is before `starts`: the job would never run")
    return Policy(
        misfire=misfire,  # type: ignore[arg-type]
        grace=None if grace is None else seconds(grace, "grace"),
        catch_up=None if catch_up is None else seconds(catch_up, "catch_up"),
        starts=start,
        ends=end,
        jitter=0.0 if jitter is None else seconds(jitter, "jitter"),
        error_interval=None if error_interval is None else seconds(error_interval, "error_interval"),
        agent=agent,
        criticality=check_criticality(criticality),
        overlap=overlap,  # type: ignore[arg-type]
    )


def due_and_relative(at: datetime | None, delay: Duration | None) -> tuple[Millis, bool]:
    """The due time, and whether the server adds its own now to it."""
    if at is not None and delay is not None:
        raise InvalidArgument("give `at` or `delay`, not both")
    if at is not None:
        return max(epoch_ms(at, "at"), 0), False
    return (0 if delay is None else millis(delay, "delay")), True


def mode_of(if_exists: str, allowed: tuple[str, ...]) -> int:
    if if_exists not in allowed:
        raise InvalidArgument(f"there is no if_exists={if_exists!r} here; {did_you_mean(str(if_exists), allowed)}")
    return _IF_EXISTS[if_exists]


def schedule_mode(if_exists: str) -> int:
    return mode_of(if_exists, ("update", "ignore", "replace"))


def check_retry(retry: Any) -> Retry:
    if not isinstance(retry, Retry):
        raise InvalidArgument(f"retry must be a Retry(retries, interval, ...), not {retry!r}")
    return retry


def check_tenant(tenant: str | None) -> str:
    if tenant is None:
        return ""
    if not isinstance(tenant, str) or not tenant or "\0" in tenant or len(tenant.encode()) > 250:
        raise InvalidArgument(f"a tenant is text of 1 to 250 bytes without NUL, not {tenant!r}")
    return tenant


def check_cost(cost: int) -> int:
    if not isinstance(cost, int) or isinstance(cost, bool) or not 1 <= cost <= 65535:
        raise InvalidArgument(f"cost must be a whole number from 1 to 65535, not {cost!r}")
    return cost


def check_criticality(criticality: int) -> int:
    if not isinstance(criticality, int) or isinstance(criticality, bool) or not -(2**31) <= criticality < 2**31:
        raise InvalidArgument(f"criticality must be a whole number, not {criticality!r}")
    return criticality


def check_limit(limit: int | None) -> int:
    """The most runs that a backfill may add."""
    if limit is None:
        return MOST_BACKFILLED
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidArgument(f"limit must be a whole number from 1, not {limit!r}")
    return limit


def check_order(queue: Queue, *, has_priority: bool) -> None:
    if has_priority and queue.order == "due":
        raise InvalidArgument(
            f"queue {queue.name!r} has order 'due', which knows no priorities: leave priority out, "
            f"or declare the queue with order='priority' or 'fair'"
        )


def check_parameters(name: str, parameters: Any) -> None:
    for parameter in parameters:
        if parameter in RESERVED:
            raise InvalidArgument(
                f"{name} has a parameter {parameter!r}, which is an option of enqueue and schedule: rename it"
            )


def check_stage(stage: str) -> Stage:
    try:
        return Stage(stage)
    except ValueError:
        known = [each.value for each in Stage]
        raise InvalidArgument(f"there is no stage {stage!r}; {did_you_mean(str(stage), known)}") from None
