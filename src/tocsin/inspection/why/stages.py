"""One function for each stage: what a job there is doing, and why it is not running."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.inspection.why import queue_obstacles, worker_obstacles
from tocsin.inspection.why.answer import Explanation, Reason, at, count, shortened, typed
from tocsin.inspection.why.facts import Facts
from tocsin.model.durations import moment
from tocsin.model.errors import TriggerFailed
from tocsin.model.human_time import span
from tocsin.model.ids import EXTRA, job_of
from tocsin.model.job import Stage
from tocsin.model.outcome import OUTCOMES
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.store.transitions.dependencies import GONE
from tocsin.store.views.blocked_jobs import UnheardEnd

# A job that has been due for less than this may simply be about to start.
SETTLED_MS = 1000
# How many of the jobs that a blocked job waits for are shown.
MOST_SHOWN = 3
# The bits of a claim's intent, as in lua/lib/claim.lua, and what each does when the run ends.
_INTENTS = {
    1: ("pausing", "it will be paused when this run ends"),
    2: ("removing", "it will be removed when this run ends"),
    4: ("changing", "it was changed, and the change takes effect when this run ends"),
    8: ("cancelling", "its worker was asked to stop this run"),
}

# The states of an upstream job by the codes that dependency_watch returns. All other codes mean that it has not ended.
_UPSTREAM_STATES = {GONE: "unknown", **{str(number): name for number, name in enumerate(OUTCOMES)}}


def explain(facts: Facts) -> Explanation:
    job = facts.job
    reasons = _STAGES.get(job.stage, _other)(facts)
    return Explanation(job.id, job.queue, [*reasons, *_extra(facts)])


def _waiting(facts: Facts) -> list[Reason]:
    if facts.not_before <= facts.now:
        return _in_line(facts)
    waits = _retry(facts) if facts.job.attempt > 1 else _not_due(facts)
    return [
        waits,
        *_host_fails(facts),
        *_last_error(facts),
        *queue_obstacles.paused(facts),
        *worker_obstacles.reasons(facts),
    ]


def _not_due(facts: Facts) -> Reason:
    when = at(facts.not_before, facts.now)
    if facts.job.due_ms <= facts.now:
        due = at(facts.job.due_ms, facts.now)
        says = f"it was due at {due}, and was handed back without an attempt: it can be claimed again at {when}"
        times = {"due": moment(facts.job.due_ms), "not_before": moment(facts.not_before)}
        return Reason("handed_back", says, times)
    return Reason("not_due", f"it is not due until {when}", {"not_before": moment(facts.not_before)})


def _retry(facts: Facts) -> Reason:
    job = facts.job
    return Reason(
        "retry",
        f"it failed, and waits for attempt {_attempt(facts)} at {at(facts.not_before, facts.now)}",
        {"attempt": job.attempt, "attempts": _attempts(facts), "not_before": moment(facts.not_before)},
    )


def _attempts(facts: Facts) -> int | None:
    """How many attempts the run can have in all; None if unknown."""
    retry = facts.job.retry
    return None if retry is None or facts.job.attempt > retry.retries + 1 else retry.retries + 1


def _attempt(facts: Facts) -> str:
    attempts = _attempts(facts)
    return str(facts.job.attempt) if attempts is None else f"{facts.job.attempt} of {attempts}"


def _last_error(facts: Facts) -> list[Reason]:
    failure = facts.job.failure
    if failure is None or not facts.is_readable:
        return []
    when = f" at {at(failure.at, facts.now)}" if failure.at else ""
    return [
        Reason(
            "last_error",
            f"its last attempt failed{when}: {shortened(failure.error)}",
            {"error": failure.error, "at": moment(failure.at) if failure.at else None},
            (_command(facts, "jobs show"),),
        )
    ]


def _host_fails(facts: Facts) -> list[Reason]:
    outage = facts.outage
    if outage is None:
        return []
    since, until = at(outage.since, facts.now), at(outage.until, facts.now)
    then = f"until {until}, then one run as a probe" if outage.until > facts.now else "but one run as a probe"
    return [
        Reason(
            "host_fails",
            f"{outage.host} has failed since {since}: nothing is sent to it {then}; no attempt is counted meanwhile",
            {"host": outage.host, "since": moment(outage.since), "until": moment(outage.until)},
            (f"see why {outage.host} fails or cannot be reached; once it answers, runs go on by themselves",),
        )
    ]


def _in_line(facts: Facts) -> list[Reason]:
    held = [
        *queue_obstacles.paused(facts),
        *queue_obstacles.limits(facts),
        *_host_fails(facts),
        *worker_obstacles.reasons(facts),
        *queue_obstacles.ahead(facts),
        *queue_obstacles.suspect(facts),
    ]
    since, tried = at(facts.not_before, facts.now), _last_error(facts)
    if held:
        known = {"since": moment(facts.not_before), "attempt": facts.job.attempt}
        return [Reason("in_line", f"it has been due since {since}, and waits to be claimed", known), *held, *tried]
    return [_due(facts, since), *_overdue(facts), *tried]


def _due(facts: Facts, since: str) -> Reason:
    return Reason(
        "due",
        f"it has been due since {since}, and nothing is in its way: it starts with the next claim, which may be "
        "microseconds away",
        {"since": moment(facts.not_before), "attempt": facts.job.attempt},
    )


def _overdue(facts: Facts) -> list[Reason]:
    """Say how long the job has waited although nothing is in its way."""
    late = facts.now - facts.not_before
    if late < SETTLED_MS:
        return []
    late_s = late / 1000
    if facts.job.queue == AGENTS_QUEUE:
        return [
            Reason(
                "maybe_not_owned",
                f"it has waited for {span(late_s)} all the same: an agent runs only on a worker that declares it and "
                "whose patterns and shard have its name",
                {"late": late_s},
                ("compare redis.agent.enabled-pattern, redis.agent.disabled-pattern and --shard with its name",),
            )
        ]
    says = f"it has waited for {span(late_s)} all the same: the workers' health and logs may tell more"
    return [Reason("unexplained", says, {"late": late_s}, ("tocsin workers",))]


def _working(facts: Facts) -> list[Reason]:
    entry, deadline = facts.position.entry, facts.position.deadline
    if entry is None or deadline is None:
        # The run ended while we gathered the facts.
        return [Reason("running", "it is being run, or was a moment ago", {"attempt": facts.job.attempt})]
    # A token is the server's time in microseconds, or higher if tokens were needed faster than time passed.
    since = min(entry.token // 1000, facts.now)
    running = Reason(
        "running",
        f"it is being run by {entry.owner} since {at(since, facts.now)}, until {at(deadline, facts.now)} at the "
        f"latest; attempt {_attempt(facts)}",
        {
            "worker": entry.owner,
            "since": moment(since),
            "deadline": moment(deadline),
            "attempt": facts.job.attempt,
            "attempts": _attempts(facts),
            "due": moment(facts.job.due_ms),
        },
    )
    intents = [Reason(kind, says) for bit, (kind, says) in _INTENTS.items() if entry.intent & bit]
    return [running, *_owner(facts, entry.owner), *_past_deadline(facts, deadline), *intents, *_recovered(facts)]


def _owner(facts: Facts, owner: str) -> list[Reason]:
    """Say so if the worker that holds the run is not alive."""
    known = [worker for worker in facts.fleet.workers if worker.id == owner]
    back = "a live worker brings the run back with its old due time; you need to do nothing as long as one runs"
    about = {"worker": owner}
    if not known:
        says = f"{owner} is not among the workers: it was declared dead, or is a program that claims by itself; {back}"
        return [Reason("worker_gone", says, about, ("tocsin workers",))]
    if not facts.fleet.is_alive(known[0]):
        says = f"{owner} sent no heartbeat: if it is dead, {back}"
        return [Reason("worker_silent", says, about, ("tocsin workers",))]
    return []


def _past_deadline(facts: Facts, deadline: int) -> list[Reason]:
    if deadline > facts.now:
        return []
    says = f"its deadline passed {span((facts.now - deadline) / 1000)} ago: "
    if facts.job.queue == AGENTS_QUEUE:
        says += (
            "an agent may go on for redis.scheduler.zombie-cleanup.threshold-ms (exceptional ones longer), then its "
            "worker stops it; if it does not end, the run is given to another worker"
        )
    else:
        says += "its worker was asked to stop it; if it does not end, the run is given to another worker"
    return [Reason("past_deadline", says, {"deadline": moment(deadline)}, ("tocsin workers",))]


def _recovered(facts: Facts) -> list[Reason]:
    times = facts.job.recoveries
    if not times:
        return []
    says = f"this run was brought back {count(times, 'time')} from workers that died or let its deadline pass"
    return [Reason("recovered", says, {"recoveries": times})]


def _paused(facts: Facts) -> list[Reason]:
    job = facts.job
    do = f"tocsin jobs resume {typed(job.id)} --queue {typed(job.queue)}"
    return [Reason("paused", "it is paused, by a person", {"due": moment(job.due_ms)}, (do,)), *_last_error(facts)]


def _parked(facts: Facts) -> list[Reason]:
    if facts.job.failure is not None and facts.job.failure.type == TriggerFailed.__name__:
        return [_cannot_be_planned(facts, facts.job.failure.error)]
    if not facts.position.digest or not facts.is_readable:
        return [_cannot_be_read(facts)]
    if facts.job.queue == AGENTS_QUEUE:
        return [_undeclared(facts)]
    name, job = facts.job.name, facts.job
    parked = Reason(
        "parked",
        f"it is parked: the worker that claimed it does not know its handler {name!r}",
        {"handler": name, "due": moment(job.due_ms)},
    )
    able = worker_obstacles.workers_with_handler(facts)
    if not able:
        return [parked, *queue_obstacles.paused(facts), *worker_obstacles.reasons(facts)]
    says = f"by now {count(len(able), 'live worker')} can run it: it is in line again with the next claim"
    known = Reason("known_again", says, {"workers": [worker.id for worker in able]})
    return [
        parked,
        known,
        *queue_obstacles.paused(facts),
        *queue_obstacles.limits(facts),
        *worker_obstacles.reasons(facts),
        *queue_obstacles.suspect(facts),
    ]


def _cannot_be_planned(facts: Facts, error: str) -> Reason:
    done = "its last run has ended" if facts.job.attempt == 0 else "its run was not started"
    return Reason(
        "unplanned",
        f"it is parked: {shortened(error)}; {done}, and a worker tries again once an hour",
        {"error": error, "due": moment(facts.job.due_ms)},
        (
            f"give it another trigger: app.update({facts.job.id!r}, trigger=...)",
            f"to have it tried at once: {_command(facts, 'jobs unpark')}",
            f"or drop it: {_command(facts, 'jobs remove')}",
        ),
    )


def _undeclared(facts: Facts) -> Reason:
    job = facts.job
    return Reason(
        "parked",
        "it is parked: no live worker declared this agent when it had been overdue for "
        "redis.scheduler.orphan-cleanup.threshold-ms, or the worker that claimed it does not know its handler. "
        "A worker that declares it will claim it",
        {"handler": job.name, "due": moment(job.due_ms)},
        ("deploy a program that declares it", f"or drop it: {_command(facts, 'jobs remove')}"),
    )


def _cannot_be_read(facts: Facts) -> Reason:
    job = facts.job
    error = job.failure.error if job.failure else "no worker could read its record"
    return Reason(
        "unreadable",
        f"it is parked: its record cannot be read ({shortened(error)}); workers try again every few minutes",
        {"error": error},
        (
            "start a worker that has the version, the packages and the zones of the program that wrote it",
            f"to have it tried at once: {_command(facts, 'jobs unpark')}",
            f"or drop it: {_command(facts, 'jobs remove')}",
        ),
    )


def _dead(facts: Facts) -> list[Reason]:
    job, failure = facts.job, facts.job.failure
    why = "its error is unknown" if failure is None else shortened(failure.error)
    when = f" since {at(failure.at, facts.now)}" if failure and failure.at else ""
    dead = Reason(
        "dead",
        f"it is dead{when}, after attempt {_attempt(facts)}: {why}",
        {
            "error": failure.error if failure else None,
            "at": moment(failure.at) if failure and failure.at else None,
            "attempt": job.attempt,
            "attempts": _attempts(facts),
        },
        (f"{_command(facts, 'dead retry')}   # another life", f"{_command(facts, 'dead drop')}    # or remove it"),
    )
    return [dead]


def _blocked(facts: Facts) -> list[Reason]:
    upstreams = [] if facts.wait is None else list(facts.wait.upstreams)
    shown = [f"{upstream.id!r} of queue {upstream.queue}" for upstream in upstreams[:MOST_SHOWN]]
    if len(upstreams) > MOST_SHOWN:
        shown.append(f"{len(upstreams) - MOST_SHOWN} more")
    blocked = Reason(
        "blocked",
        f"it waits for {', '.join(shown) or 'something that nothing names any more'}",
        {"after": [{"queue": upstream.queue, "id": upstream.id} for upstream in upstreams]},
        tuple(f"tocsin why {typed(upstream.id)} --queue {typed(upstream.queue)}" for upstream in upstreams[:MOST_SHOWN])
        or ("tocsin doctor --repair",),
    )
    return [blocked, *_lost_waits(facts)]


def _lost_waits(facts: Facts) -> list[Reason]:
    """The jobs whose end would not unblock this one, until a worker registers it with them again."""
    if not facts.lost_waits:
        return []
    shown = [f"{each.upstream.id!r} of queue {each.upstream.queue} {_describe(each)}" for each in facts.lost_waits]
    if len(shown) > MOST_SHOWN:
        shown[MOST_SHOWN:] = [f"{len(shown) - MOST_SHOWN} more likewise"]
    return [
        Reason(
            "unheard",
            f"{', '.join(shown)}, and will not unblock it: a server lost its last writes; the worker that leads the "
            "cleanup finds that within minutes and repairs it",
            {
                "unheard": [
                    {
                        "queue": each.upstream.queue,
                        "id": each.upstream.id,
                        "state": _state_of(each),
                    }
                    for each in facts.lost_waits
                ]
            },
            ("tocsin doctor --repair   # to repair it now",),
        )
    ]


def _state_of(upstream: UnheardEnd) -> str:
    return _UPSTREAM_STATES.get(upstream.code, "there")


def _describe(upstream: UnheardEnd) -> str:
    state = _state_of(upstream)
    return {"unknown": "is not known any more", "there": "has not ended"}.get(state, f"has ended ({state})")


def _other(facts: Facts) -> list[Reason]:
    stage = facts.job.stage.value
    return [Reason(stage, f"it is {stage}", {}, (_command(facts, "jobs show"),))]


def _extra(facts: Facts) -> list[Reason]:
    member = facts.job.id
    if EXTRA not in member:
        return []
    says = f"it is an extra run of job {job_of(member)!r}, beside its schedule (fire, backfill or catching up)"
    return [Reason("extra_run", says, {"job": job_of(member), "due": moment(facts.job.due_ms)})]


def _command(facts: Facts, command: str) -> str:
    return f"tocsin {command} {typed(facts.job.id)} --queue {typed(facts.job.queue)}"


# Any other stage is explained by its name alone.
_STAGES: dict[Stage, Callable[[Facts], list[Reason]]] = {
    Stage.WAITING: _waiting,
    Stage.READY: _in_line,
    Stage.WORKING: _working,
    Stage.PAUSED: _paused,
    Stage.PARKED: _parked,
    Stage.BLOCKED: _blocked,
    Stage.DEAD: _dead,
}
