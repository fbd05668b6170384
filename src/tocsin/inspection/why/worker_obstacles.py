"""Reasons among the workers that keep a job from running."""

from __future__ import annotations

from tocsin.inspection.why.answer import Reason, count, typed
from tocsin.inspection.why.facts import Facts
from tocsin.model.target import SUBPROCESS
from tocsin.store.transitions.fleet import WorkerRecord
from tocsin.targets.builtin import how_to_enable

OPEN = "OPEN"


def reasons(facts: Facts) -> list[Reason]:
    """The first thing that keeps every worker of the queue from running the job. Empty if one of them could run it."""
    queue, fleet = facts.job.queue, facts.fleet
    serving = [worker for worker in fleet.workers if queue in worker.about.queues]
    if not serving:
        return [_no_worker(facts)]
    alive = [worker for worker in serving if fleet.is_alive(worker)]
    if not alive:
        return [_all_silent(queue, serving)]
    knowing = [worker for worker in alive if facts.job.name in worker.about.handlers]
    if not knowing:
        return [_unknown_handler(facts, alive)]
    claiming = [worker for worker in knowing if worker.about.state == "running"]
    if not claiming:
        return _not_claiming(knowing)
    through = [worker for worker in claiming if OPEN not in worker.about.breakers.values()]
    if not through:
        return [_breakers_open(claiming)]
    free = [worker for worker in through if not 0 < worker.about.concurrency <= worker.about.running]
    return [] if free else [_all_busy(through)]


def workers_with_handler(facts: Facts) -> list[WorkerRecord]:
    """The live workers of the queue that know the job's handler."""
    return [
        worker
        for worker in facts.fleet.workers
        if facts.job.queue in worker.about.queues
        and facts.fleet.is_alive(worker)
        and facts.job.name in worker.about.handlers
    ]


def _no_worker(facts: Facts) -> Reason:
    queue, fleet = facts.job.queue, facts.fleet
    others = [worker for worker in fleet.workers if fleet.is_alive(worker)]
    beside = f"; other queues have {count(len(others), 'worker')}" if others else ""
    return Reason(
        "no_worker",
        f"no worker serves queue {queue}{beside}",
        {"queue": queue, "workers": [worker.id for worker in others]},
        (f"tocsin worker MODULE:APP --queues {typed(queue)}",),
    )


def _all_silent(queue: str, serving: list[WorkerRecord]) -> Reason:
    return Reason(
        "workers_silent",
        f"{count(len(serving), 'worker')} served queue {queue}, and none is alive: none sent a heartbeat",
        {"workers": [worker.id for worker in serving]},
        ("tocsin workers", f"tocsin worker MODULE:APP --queues {typed(queue)}"),
    )


def _unknown_handler(facts: Facts, alive: list[WorkerRecord]) -> Reason:
    if not facts.is_readable:
        return Reason("unreadable", "its record cannot be read: the worker that claims it will park it")
    name = facts.job.name
    lacks = f"knows its handler {name!r}"
    do = f"start a worker of a program that declares {name!r}, or give the handler that name again (name={name!r})"
    if name == SUBPROCESS:
        lacks = "may start programs: `subprocess.allow` is empty there"
    return Reason(
        "unknown_handler",
        f"queue {facts.job.queue} has {count(len(alive), 'live worker')}, and none {lacks}",
        {"handler": name, "workers": [worker.id for worker in alive]},
        (how_to_enable(name) or do,),
    )


def _not_claiming(knowing: list[WorkerRecord]) -> list[Reason]:
    found = []
    disabled = [worker.id for worker in knowing if worker.about.state == "disabled"]
    stopping = [worker.id for worker in knowing if worker.about.state != "disabled"]
    if disabled:
        found.append(
            Reason(
                "workers_disabled",
                f"{count(len(disabled), 'worker')} could run it but may not: redis.scheduler.enabled is false there",
                {"workers": disabled},
                ("set redis.scheduler.enabled to true and restart them; `tocsin config show` shows where it is set",),
            )
        )
    if stopping:
        says = f"{count(len(stopping), 'worker')} could run it, but none claims any more: they are stopping"
        found.append(Reason("workers_stopping", says, {"workers": stopping}, ("tocsin workers",)))
    return found


def _breakers_open(claiming: list[WorkerRecord]) -> Reason:
    breakers = {worker.id: worker.about.breakers for worker in claiming}
    names = sorted({name for each in breakers.values() for name, state in each.items() if state == OPEN})
    return Reason(
        "breaker_open",
        f"the workers that could run it pause after failures of the server: the {' and the '.join(names)} breaker is "
        "open, and is tried again by itself",
        {"breakers": breakers},
        ("tocsin workers", "see whether the server answers the workers in time: `tocsin doctor`"),
    )


def _all_busy(through: list[WorkerRecord]) -> Reason:
    running, permits = (sum(getattr(each.about, name) for each in through) for name in ("running", "concurrency"))
    return Reason(
        "workers_busy",
        f"no permit is free: {running} of {permits} are in use on {count(len(through), 'worker')} that could run it",
        {"running": running, "permits": permits, "workers": [worker.id for worker in through]},
        ("start more workers, or raise --concurrency",),
    )
