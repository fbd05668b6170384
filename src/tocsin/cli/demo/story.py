"""The story of `tocsin demo`: what it has shown so far, derived from the runs that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from tocsin.model.durations import Millis
from tocsin.store.views.events import PastRun

RECENT = 14


class Story:
    """Counts what the runs show.

    A job's id begins with its kind: reminder, order, record or report. Agents have a queue of their own.
    """

    def __init__(self) -> None:
        self.recent: deque[tuple[Millis, str]] = deque(maxlen=RECENT)
        self.agent_runs = 0
        # Job id -> milliseconds from its due time to its end.
        self.reminders: dict[str, int] = {}
        self.retries = 0
        # Job id of each order that succeeded -> the attempt that did.
        self.orders: dict[str, int] = {}
        self.records = 0
        self.batch = 0
        self.victim = ""
        self.killed_at: Millis = 0
        self.recovered_at: Millis = 0
        # Jobs that the killed worker was running, and those of them that another worker has finished.
        self.held: set[str] = set()
        self.finished: set[str] = set()

    def killed(self, worker: str, held: set[str], at: Millis) -> str:
        self.victim, self.held, self.killed_at = worker, held, at
        return self._note(at, f"kill -9 {worker}, which had {len(held)} unfinished runs")

    def joined(self, count: int, at: Millis) -> str:
        return self._note(at, f"{count} workers are at work")

    def add_runs(self, runs: Iterable[PastRun]) -> Iterator[str]:
        """Count attempts that ended, and yield a line for each that is worth one."""
        kinds = {"agent": self._agent_ran, "reminder": self._reminded, "order": self._ordered, "report": self._reported}
        before = self.records
        for run in runs:
            kind = "agent" if run.queue == "agents" else run.job_id.partition(" ")[0]
            if kind in kinds:
                yield self._note(run.ended_ms, kinds[kind](run))
            elif kind == "record" and run.outcome == "succeeded":
                self.records += 1
                last = run.ended_ms
        if self.records > before:
            yield self._note(last, f"{self.records - before} records are indexed")

    def recovered(self, at: Millis) -> str:
        self.recovered_at = at
        return self._note(at, "the runs of the killed worker are back in line, at their own due time")

    def _note(self, at: Millis, text: str) -> str:
        self.recent.append((at, text))
        return text

    def _agent_ran(self, run: PastRun) -> str:
        self.agent_runs += 1
        return f"agent {run.job_id!r} ran"

    def _reminded(self, run: PastRun) -> str:
        late = run.ended_ms - run.due_ms
        self.reminders[run.job_id] = late
        return f"{run.job_id} was sent {late} ms after its time"

    def _ordered(self, run: PastRun) -> str:
        if run.outcome == "retried":
            self.retries += 1
            return f"{run.job_id} failed at attempt {run.attempt}, trying again"
        self.orders[run.job_id] = run.attempt
        return f"{run.job_id} went through at attempt {run.attempt}"

    def _reported(self, run: PastRun) -> str:
        back = run.job_id in self.held
        self.finished |= {run.job_id} & self.held
        return f"{run.job_id} is written{', by another worker than the one that was killed' if back else ''}"

    # Summary

    def summary(self) -> dict[str, tuple[bool, str]]:
        """Each thing that the demo shows: whether it was seen, and a line that says so."""
        late = max(self.reminders.values(), default=0)
        third = sum(attempt == 3 for attempt in self.orders.values())
        return {
            "agents": (self.agent_runs > 1, f"an agent ran {self.agent_runs} times, every 2 s"),
            "delays": (bool(self.reminders), f"{len(self.reminders)} delayed jobs ran, within {late} ms of their time"),
            "retries": (third > 0, f"{third} orders went through at their third attempt, {self.retries} retries"),
            "batches": (self.batch > 1, f"{self.records} records were indexed, up to {self.batch} in one call"),
            "recovery": (self.recovery_shown, self._recovery()),
        }

    @property
    def recovery_shown(self) -> bool:
        return bool(self.held) and self.finished == self.held

    def _recovery(self) -> str:
        if not self.victim:
            return "no worker was killed"
        text = f"{self.victim} was killed with {len(self.held)} unfinished runs"
        if not self.recovered_at:
            return f"{text}; they are not back in line yet"
        seconds = (self.recovered_at - self.killed_at) / 1000
        return f"{text}; they were back in line after {seconds:.1f} s, and {len(self.finished)} of them are finished"
