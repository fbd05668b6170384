"""Applies the changes of `update` to a job's definition."""

from __future__ import annotations

import reprlib
from typing import Any

from msgspec.structs import replace

from tocsin.app import job_options
from tocsin.app.declarations import Declarations
from tocsin.model.durations import Millis, moment
from tocsin.model.errors import InvalidArgument, InvalidTrigger, RecordUnreadable, did_you_mean
from tocsin.model.job import PLAIN, Header, Job, Policy, Spec, check_keep, check_priority, check_timeout
from tocsin.model.record import trigger_digest
from tocsin.model.target import NAMES, Target, fields_of, name_of
from tocsin.model.trigger import Once, check_trigger

_SPEC = ("trigger", "args", "kwargs", "retry", "target")
_HEADER = ("timeout", "tenant", "keep", "cost", "priority")
_RULES = ("overlap", "misfire", "grace", "catch_up", "starts", "ends", "jitter", "criticality", "error_interval")
CHANGEABLE = (*_SPEC, *_HEADER, *_RULES)


def apply_changes(
    job: Job, changes: dict[str, Any], declarations: Declarations, now: Millis
) -> tuple[Header, Spec, Millis, bool]:
    """The new header and body; the new due time, 0 to keep the present one; whether it is relative to now."""
    for name in changes:
        if name not in CHANGEABLE:
            raise InvalidArgument(f"a job has no {name!r} that can be changed; {did_you_mean(name, CHANGEABLE)}")
    if not job.is_readable:
        raise RecordUnreadable(
            f"the record of job {job.id!r} cannot be read, and so not be changed: put it anew with if_exists='replace' "
            "or 'update', or remove it"
        )
    spec, header = _spec(job, changes, declarations), _header(job.header, changes)
    if not job.recurring:
        if "trigger" in changes:
            raise InvalidArgument(f"job {job.id!r} is a one-shot and has no trigger: remove it and schedule another")
        return header, spec, 0, False
    header = replace(header, trigger=trigger_digest(spec))
    if header.trigger == job.header.trigger:
        return header, spec, 0, False
    due, relative = job_options.first(spec, job.id, now)
    return header, spec, due, relative


def _spec(job: Job, changes: dict[str, Any], declarations: Declarations) -> Spec:
    spec = job.spec
    args, kwargs = tuple(changes.get("args", spec.args)), dict(changes.get("kwargs", spec.kwargs))
    handler = declarations.catalog.get(spec.name)
    if "target" in changes:
        args = _fields(job, changes)
    elif handler is not None and ("args" in changes or "kwargs" in changes):
        handler.check(args, kwargs)
    if spec.name in NAMES and ("args" in changes or "kwargs" in changes):
        raise InvalidArgument(f"job {job.id!r} has no arguments: give target=")
    trigger = check_trigger(changes["trigger"]) if "trigger" in changes else spec.trigger
    if job.recurring and isinstance(trigger, Once):
        raise InvalidTrigger(f"job {job.id!r} is recurring: remove it and schedule another for Once(...)")
    retry = changes.get("retry", spec.retry)
    rules = _rules(spec.rules, changes)
    return Spec(
        name=spec.name,
        args=args,
        kwargs=kwargs,
        trigger=trigger,
        retry=None if retry is None else job_options.check_retry(retry),
        policy=None if rules == PLAIN else rules,
    )


def _fields(job: Job, changes: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments that store another request, message or program of the same kind."""
    target = changes["target"]
    if not isinstance(target, Target) or name_of(target) != job.name:
        raise InvalidArgument(f"job {job.id!r} runs {job.name}: {reprlib.repr(target)} is not another of that kind")
    if "args" in changes or "kwargs" in changes:
        raise InvalidArgument("give target=, or args= and kwargs= for a function, not both")
    return fields_of(target)


def _header(header: Header, changes: dict[str, Any]) -> Header:
    return replace(
        header,
        timeout=check_timeout(changes["timeout"]) if "timeout" in changes else header.timeout,
        tenant=job_options.check_tenant(changes["tenant"]) if "tenant" in changes else header.tenant,
        keep=check_keep(changes["keep"]) if "keep" in changes else header.keep,
        cost=job_options.check_cost(changes["cost"]) if "cost" in changes else header.cost,
        band=check_priority(changes["priority"]) if "priority" in changes else header.band,
    )


def _rules(rules: Policy, changes: dict[str, Any]) -> Policy:
    present: dict[str, Any] = {
        "overlap": rules.overlap,
        "misfire": rules.misfire,
        "grace": rules.grace,
        "catch_up": rules.catch_up,
        "starts": None if rules.starts is None else moment(rules.starts),
        "ends": None if rules.ends is None else moment(rules.ends),
        "jitter": rules.jitter,
        "criticality": rules.criticality,
        "error_interval": rules.error_interval,
    }
    wanted = {name: changes.get(name, value) for name, value in present.items()}
    return job_options.policy(**wanted, agent=rules.agent)
