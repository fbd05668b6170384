"""Turns the rows of `enqueue_many` and `schedule_many` into puts."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tocsin.app.job_options import (
    JobDefinition,
    JobLimits,
    OneShotOptions,
    check_retries_fit_interval,
    define_job,
    one_shot,
    policy,
    recurring,
    schedule_mode,
    warn_if_odd,
)
from tocsin.engine.handlers import Bound, Handler
from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.model.http import Http
from tocsin.model.ids import check_job_id
from tocsin.model.job import Spec
from tocsin.model.message import Message
from tocsin.model.record import encode_spec, header_of
from tocsin.model.subprocess import Subprocess
from tocsin.model.trigger import Trigger, check_trigger, likely_mistakes
from tocsin.store.transitions.jobs import PutItem
from tocsin.targets.builtin import handler_for
from tocsin.triggers.next_tick import TickCache

# For how many seconds outcomes of bulk jobs are kept, unless the call or their handler says more.
NONE_KEPT = 0
# Targets take no arguments: each row is a whole request, message or program.
KINDS = (Http, Message, Subprocess)
Kind = type[Http] | type[Message] | type[Subprocess]

_RULES = ("overlap", "misfire", "grace", "catch_up", "criticality", "jitter", "starts", "ends")
_SHARED = ("retry", "timeout", "tenant", "priority", "queue")
_SCHEDULE_OPTIONS = (*_RULES, *_SHARED, "if_exists")


def rows_of(what: Handler | Bound | Kind, limits: JobLimits, **shared: Any) -> Rows:
    """`shared`: the options of `define_job` that all rows have in common."""
    if isinstance(what, type) and issubclass(what, KINDS):
        return TargetRows(what, limits, shared)
    return Rows(what, limits, shared)


class Rows:
    """Argument rows of one handler. What they share is checked and encoded once."""

    def __init__(self, what: Handler | Bound, limits: JobLimits, shared: dict[str, Any]) -> None:
        if isinstance(what, Bound) and (what.args or what.kwargs):
            raise InvalidArgument("the rows are the arguments here: pass the job itself, not what bind() made of it")
        self._handler = what.handler if isinstance(what, Bound) else what
        empty = Bound(handler=self._handler, args=(), kwargs={}) if isinstance(self._handler, Handler) else what
        # The definition of a row without arguments.
        self.template = define_job(empty, (), {}, limits=limits, **shared)
        self._exceeding = limits.retry_exceeds_interval
        self._ticks = TickCache()
        # Triggers whose distance was compared with the retries, and odd sentences that were logged.
        self._checked: set[Trigger] = set()
        self._odd: set[str] = set()

    def one_shots(self, options: OneShotOptions, *, named: bool) -> Callable[[str, Any], PutItem]:
        """A function that makes the put of an id and a row. `named`: the caller chose the ids."""
        sample = one_shot(self.template, "x" if named else None, "x", options, NONE_KEPT)
        header = header_of(sample.record)

        def make(member: str, row: Any) -> PutItem:
            body = encode_spec(self._spec(row), self.template.largest)
            return PutItem(member, header + body, sample.due, sample.relative, sample.mode, 0, sample.now_if_past)

        return make

    def _spec(self, row: Any, trigger: Trigger | None = None) -> Spec:
        args, kwargs = self._arguments(row)
        like = self.template.spec
        return Spec(like.name, args, kwargs, trigger, like.retry, like.policy)

    def schedule(self, row: Any, mode: int, now: Millis) -> PutItem:
        try:
            member, trigger, args = row
        except (TypeError, ValueError):
            raise InvalidArgument(f"a row of schedule_many is (id, trigger, args), not {reprlib.repr(row)}") from None
        job = self._define(args, check_trigger(trigger))
        if job.spec.retry is not None and trigger not in self._checked:
            # Once for all rows with the same trigger.
            check_retries_fit_interval(job.spec, str(member), self._exceeding)
            self._checked.add(trigger)
        if any(sentence not in self._odd for sentence in likely_mistakes(trigger)):
            self._odd.update(likely_mistakes(trigger))
            warn_if_odd(trigger, str(member))
        return recurring(job, check_job_id(member), now, mode, self._ticks.next_at)

    def _define(self, args: Any, trigger: Trigger) -> JobDefinition:
        return replace(self.template, spec=self._spec(args, trigger))

    def _arguments(self, row: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(row, Mapping):
            args, kwargs = (), dict(row)
        elif isinstance(row, (tuple, list)):
            args, kwargs = tuple(row), {}
        else:
            raise InvalidArgument(f"a row is a tuple of arguments or a mapping, not {reprlib.repr(row)}")
        return args, self._handler.check(args, kwargs)


class TargetRows(Rows):
    """Requests, messages or programs. Each row is defined alone, because rows share nothing but the options."""

    def __init__(self, kind: Kind, limits: JobLimits, shared: dict[str, Any]) -> None:
        # Wrong options raise here, before the first row is read. The sample's queue is the one of all of its kind.
        super().__init__(_SAMPLES[kind], limits, shared)
        self._kind = kind
        self._limits = limits
        self._shared = shared

    def one_shots(self, options: OneShotOptions, *, named: bool) -> Callable[[str, Any], PutItem]:
        def make(member: str, row: Any) -> PutItem:
            return one_shot(self._define(row), member if named else None, member, options, NONE_KEPT)

        return make

    def _define(self, args: Any, trigger: Trigger | None = None) -> JobDefinition:
        if isinstance(args, (tuple, list)) and len(args) == 1:
            [args] = args
        if not isinstance(args, self._kind):
            raise InvalidArgument(f"a row is one {self._kind.__name__}(…) here, not {reprlib.repr(args)}")
        return define_job(args, (), {}, trigger=trigger, limits=self._limits, **self._shared)


_SAMPLES: dict[type, Handler] = {
    Http: handler_for(Http.get("http://localhost/")),
    Message: handler_for(Message("redis:///stream")),
    Subprocess: handler_for(Subprocess(["true"])),
}


class BulkSchedule(Struct, frozen=True):
    """What `schedule_many` needs beside its rows."""

    rows: Rows
    mode: int

    def put(self, row: Any, now: Millis) -> PutItem:
        return self.rows.schedule(row, self.mode, now)


def bulk_schedule(what: Handler | Bound | Kind, options: dict[str, Any], limits: JobLimits) -> BulkSchedule:
    for name in options:
        if name not in _SCHEDULE_OPTIONS:
            raise InvalidArgument(f"schedule_many has no option {name!r}; {did_you_mean(name, _SCHEDULE_OPTIONS)}")
    mode = schedule_mode(options.get("if_exists", "update"))
    rules = policy(**{name: options[name] for name in _RULES if name in options})
    shared = {name: options[name] for name in _SHARED if name in options}
    return BulkSchedule(rows_of(what, limits, policy=rules, **shared), mode)
