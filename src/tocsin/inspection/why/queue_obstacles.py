"""Reasons in the queue, the tenant and the line that keep a job from running."""

from __future__ import annotations

from tocsin.inspection.why.answer import Reason, at, count
from tocsin.inspection.why.facts import Facts
from tocsin.model.durations import moment
from tocsin.model.human_time import span
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.model.run import SUSPECT
from tocsin.store.views.position import JobsAhead


def paused(facts: Facts) -> list[Reason]:
    if not facts.position.paused:
        return []
    queue = facts.job.queue
    return [
        Reason(
            "queue_paused",
            f"queue {queue} is paused: nobody claims from it",
            {"queue": queue},
            (f"tocsin queues resume {queue}",),
        )
    ]


def limits(facts: Facts) -> list[Reason]:
    """The caps and rates of the queue and of the tenant that hold the job back."""
    return [*_of_queue(facts), *_of_tenant(facts)]


def _of_queue(facts: Facts) -> list[Reason]:
    queue, limit, capped = facts.job.queue, facts.position.limit, facts.position.capped
    since = "" if capped is None else f", and has been since {at(capped, facts.now)}"
    facts_since = {"since": None if capped is None else moment(capped)}
    if limit.is_full:
        return [
            Reason(
                "queue_full",
                f"queue {queue} is at its cap: {limit.active} run, and max_active is {limit.most}{since}",
                {"active": limit.active, "max_active": limit.most, **facts_since},
                (f"tocsin queues set {queue} max_active=…",),
            )
        ]
    until = limit.held_until(facts.now)
    if until is None:
        return []
    return [
        Reason(
            "queue_rate",
            f"queue {queue} is held by its rate of {limit.rate}: the next may start at {at(until, facts.now)}{since}",
            {"rate": limit.rate, "until": moment(until), **facts_since},
            (f"tocsin queues set {queue} rate=…",),
        )
    ]


def _of_tenant(facts: Facts) -> list[Reason]:
    limit, tenant, queue = facts.position.tenant, facts.job.tenant, facts.job.queue
    if limit is None:
        return []
    subject = "jobs without a tenant are" if tenant is None else f"tenant {tenant!r} is"
    if limit.is_full:
        return [
            Reason(
                "tenant_full",
                f"{subject} at the cap: {limit.active} run, and tenant_max_active is {limit.most}",
                {"tenant": tenant, "active": limit.active, "tenant_max_active": limit.most},
                (f"tocsin queues set {queue} tenant_max_active=…",),
            )
        ]
    until = limit.held_until(facts.now)
    if until is None:
        return []
    return [
        Reason(
            "tenant_rate",
            f"{subject} held by the rate of {limit.rate} for each tenant: the next may start at {at(until, facts.now)}",
            {"tenant": tenant, "tenant_rate": limit.rate, "until": moment(until)},
            (f"tocsin queues set {queue} tenant_rate=…",),
        )
    ]


def ahead(facts: Facts) -> list[Reason]:
    """The jobs and tenants that go before the job."""
    line = facts.position.line
    if line is None:
        return []
    says = {"due": _ahead_by_due, "priority": _ahead_by_priority, "fair": _ahead_by_turn}[facts.order](facts, line)
    if not says:
        return []
    numbers = {"ahead": line.ahead, "entering": line.entering}
    if facts.order == "fair":
        numbers |= {"above": line.above, "turns": line.turns}
    if line.entering:
        says += f"; {count(line.entering, 'other')} became due and will enter the line with the next claim"
    return [Reason("behind", says, numbers)]


def _ahead_by_due(facts: Facts, line: JobsAhead) -> str:
    if not line.ahead:
        return ""
    if facts.job.queue == AGENTS_QUEUE:
        # A worker claims its own agents from anywhere in the line.
        return f"it is behind {count(line.ahead, 'agent')} due for longer: those of the same worker go before it"
    where = f" in its partition ({facts.partition + 1} of {facts.partitions})" if facts.partitions > 1 else ""
    return f"it is behind {count(line.ahead, 'job')} in line{where}"


def _ahead_by_priority(facts: Facts, line: JobsAhead) -> str:
    if not line.ahead:
        return ""
    return f"it is behind {count(line.ahead, 'job')} in line, with its priority {facts.job.priority!r}{_aged(facts)}"


def _ahead_by_turn(facts: Facts, line: JobsAhead) -> str:
    parts = []
    if line.ahead:
        parts.append(f"behind {count(line.ahead, 'job')} of its own tenant")
    # A tenant that is held by its limits has no turn at all.
    if line.turns and not _of_tenant(facts):
        parts.append(f"{count(line.turns, 'tenant')} to take a turn before its own")
    if line.above:
        parts.append(f"{count(line.above, 'job')} of a higher priority in line{_aged(facts)}")
    return f"it is in a line where tenants take turns: {', '.join(parts)}" if parts else ""


def _aged(facts: Facts) -> str:
    aging = facts.position.aging
    return "" if aging is None else f" (a band counts as {span(aging / 1000)} of age)"


def suspect(facts: Facts) -> list[Reason]:
    """A run that was recovered often may be the one that kills workers, so workers are careful with it."""
    recoveries = facts.job.recoveries
    if recoveries < SUSPECT:
        return []
    return [
        Reason(
            "suspect",
            f"its run was brought back {recoveries} times from workers that died or let its deadline pass: each worker "
            "tries only one such run at a time",
            {"recoveries": recoveries},
        )
    ]
