"""Rows of bulk calls."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from tocsin.app.job_options import JobDefinition, check_tries, mode_of, one_shot, plan, policy, recurring, warn_if_odd
from tocsin.engine.handlers import Bound, Handler
from tocsin.model.durations import Duration, Millis
from tocsin.model.errors import InvalidArgument, nearest
from tocsin.model.http import Http
from tocsin.model.ids import check_job_id
from tocsin.model.job import Spec
from tocsin.model.message import Message
from tocsin.model.record import encode_spec, header_of
from tocsin.model.subprocess import Subprocess
from tocsin.model.trigger import Trigger, check_trigger, odd
from tocsin.store.transitions.jobs import PutItem
from tocsin.targets.builtin import handler_for
from tocsin.triggers.next_tick import TickCache

# For how many seconds outcomes of jobs in bulk are kept, unless the call or their handler says more.
NONE_KEPT = 0
# What takes no arguments, but is given whole in each row.
KINDS = (Http, Message, Subprocess)
Kind = type[Http] | type[Message] | type[Subprocess]


def rows_of(what: Handler | Bound | Kind, exceeding: str = "warn", **shared: Any) -> Rows:
    if isinstance(what, type) and issubclass(what, KINDS):
        return TargetRows(what, exceeding, shared)
    return Rows(what, exceeding, **shared)


class Rows:
    """Arguments of one handler: what they share is checked and encoded once."""

    def __init__(self, what: Handler | Bound, exceeding: str = "warn", **shared: Any) -> None:
        if isinstance(what, Bound) and (what.args or what.kwargs):
            raise InvalidArgument("the rows are the arguments here: pass the job itself, not what bind() made of it")
        self.handler = what.handler if isinstance(what, Bound) else what
        empty = Bound(handler=self.handler, args=(), kwargs={}) if isinstance(self.handler, Handler) else what
        self._plan = plan(empty, (), {}, **shared)
        self._known = TickCache()
        self._exceeding = exceeding
        self._checked: set[Trigger] = set()
        self._odd: set[str] = set()

    def one_shots(
        self, at: datetime | None, delay: Duration | None, if_exists: str, keep: Duration | None, *, named: bool
    ) -> Callable[[str, Any], PutItem]:
        sample = one_shot(self._plan, "x" if named else None, "x", at, delay, if_exists, keep, NONE_KEPT)
        header = header_of(sample.record)

        def make(member: str, row: Any) -> PutItem:
            body = encode_spec(self.spec(row), self._plan.largest)
            return PutItem(member, header + body, sample.due, sample.relative, sample.mode, 0, sample.now_if_past)

        return make

    def spec(self, row: Any, trigger: Trigger | None = None) -> Spec:
        args, kwargs = self._arguments(row)
        like = self._plan.spec
        return Spec(like.name, args, kwargs, trigger, like.retry, like.policy)

    def schedule(self, row: Any, mode: int, now: Millis) -> PutItem:
        try:
            member, trigger, args = row
        except (TypeError, ValueError):
            raise InvalidArgument(f"a row of schedule_many is (id, trigger, args), not {reprlib.repr(row)}") from None
        planned = self._planned(args, check_trigger(trigger))
        if planned.spec.retry is not None and trigger not in self._checked:
            # Once for all rows that have it in common.
            check_tries(planned.spec, str(member), self._exceeding)
            self._checked.add(trigger)
        if any(sentence not in self._odd for sentence in odd(trigger)):
            self._odd.update(odd(trigger))
            warn_if_odd(trigger, str(member))
        return recurring(planned, check_job_id(member), now, mode, self._known.next_at)

    def _planned(self, args: Any, trigger: Trigger) -> JobDefinition:
        return replace(self._plan, spec=self.spec(args, trigger))

    def _arguments(self, row: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(row, Mapping):
            args, kwargs = (), dict(row)
        elif isinstance(row, (tuple, list)):
            args, kwargs = tuple(row), {}
        else:
            raise InvalidArgument(f"a row is a tuple of arguments or a mapping, not {reprlib.repr(row)}")
        return args, self.handler.check(args, kwargs)


class TargetRows(Rows):
    """Requests, messages or programs: each is planned alone, because nothing but the options is shared."""

    def __init__(self, kind: Kind, exceeding: str, shared: dict[str, Any]) -> None:
        self.handler = _SAMPLES[kind]
        self._kind = kind
        self._shared = shared
        self._known = TickCache()
        self._exceeding = exceeding
        self._checked = set()
        self._odd = set()
        # Said now, and not when the first row comes.
        plan(Bound(handler=self.handler, args=(), kwargs={}), (), {}, **shared)

    def one_shots(
        self, at: datetime | None, delay: Duration | None, if_exists: str, keep: Duration | None, *, named: bool
    ) -> Callable[[str, Any], PutItem]:
        def make(member: str, row: Any) -> PutItem:
            named_as = member if named else None
            return one_shot(self._plan_of(row), named_as, member, at, delay, if_exists, keep, NONE_KEPT)

        return make

    def _planned(self, args: Any, trigger: Trigger) -> JobDefinition:
        return self._plan_of(args, trigger)

    def _plan_of(self, row: Any, trigger: Trigger | None = None) -> JobDefinition:
        if isinstance(row, (tuple, list)) and len(row) == 1:
            [row] = row
        if not isinstance(row, self._kind):
            raise InvalidArgument(f"a row is one {self._kind.__name__}(…) here, not {reprlib.repr(row)}")
        return plan(row, (), {}, trigger=trigger, **self._shared)


# For its queue, which is the same for all of a kind.
_SAMPLES: dict[type, Handler] = {
    Http: handler_for(Http.get("http://localhost/")),
    Message: handler_for(Message("redis:///stream")),
    Subprocess: handler_for(Subprocess(["true"])),
}


def schedules(
    what: Handler | Bound | Kind, given: dict[str, Any], exceeding: str, limits: dict[str, Any]
) -> tuple[Callable[[Any, Millis], PutItem], Handler, str | None, str | None]:
    """For `schedule_many`: how to make a put of a row; then the handler, and the queue and priority asked for."""
    rules = ("overlap", "misfire", "grace", "catch_up", "criticality", "jitter", "starts", "ends")
    shared = ("retry", "timeout", "tenant", "priority")
    for name in given:
        if name not in (known := (*rules, *shared, "queue", "if_exists")):
            raise InvalidArgument(f"schedule_many has no option {name!r}; {nearest(name, known)}")
    mode = mode_of(given.get("if_exists", "update"), ("update", "ignore", "replace"))
    wanted = policy(**{name: given[name] for name in rules if name in given})
    options = {name: given[name] for name in shared if name in given}
    rows = rows_of(what, exceeding, policy=wanted, **limits, **options)
    return (lambda row, now: rows.schedule(row, mode, now)), rows.handler, given.get("queue"), given.get("priority")
