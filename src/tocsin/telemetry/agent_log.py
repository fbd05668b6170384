"""Logs each step in the life of agents, under `tocsin.agents` at DEBUG.

Callers call `is_wanted` once per batch, so a worker that does not log these lines pays nothing per run.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from tocsin.model.durations import Millis, moment
from tocsin.model.run import Claim
from tocsin.telemetry.logs import get_logger

_NAME = "tocsin.agents"
_log, _logger = get_logger(_NAME), logging.getLogger(_NAME)

# The step that each settling call logs. A job that then waits also logs "rescheduled".
_STEPS = {"finish": "completed", "plan": "completed", "release": "released", "bury": "buried", "park": "parked"}


def is_wanted() -> bool:
    return _logger.isEnabledFor(logging.DEBUG)


def registered(agents: Iterable[str]) -> None:
    for agent in agents:
        _log.debug("registered", agent=agent)


def unregistered(agents: Iterable[str]) -> None:
    for agent in agents:
        _log.debug("unregistered here", agent=agent)


def acquired(claims: Iterable[Claim]) -> None:
    for claim in claims:
        _log.debug("acquired", agent=claim.job_id, run=claim.run_id, deadline=_time(claim.deadline))


def executed(claim: Claim, how: str) -> None:
    _log.debug("executed", agent=claim.job_id, run=claim.run_id, outcome=how)


def settled(verb: str, agents: Iterable[tuple[str, float]], lost: Collection[str]) -> None:
    """The server has settled the runs. `agents` are (id, next due time or 0); other workers own those in `lost` now."""
    for agent, due in agents:
        if agent in lost:
            _log.debug("lost to another worker", agent=agent)
            continue
        if verb in _STEPS:
            _log.debug(_STEPS[verb], agent=agent)
        if due > 0 and verb != "release":
            _log.debug("rescheduled", agent=agent, due=_time(int(due)))


def recovered(runs: int, worker: str) -> None:
    _log.debug("recovered", runs=runs, worker=worker or "(past their deadline)")


def _time(at: Millis) -> str:
    return moment(at).isoformat()
