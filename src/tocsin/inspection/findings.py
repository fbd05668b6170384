"""What the doctor can find: each kind of finding in words, and what to do about it."""

from __future__ import annotations

import functools
from typing import Literal

from msgspec import Struct

from tocsin.store.views.audit import JobPresence

# wrong: an invariant is broken, or jobs are in danger. warning: look at it. note: good to know.
Level = Literal["wrong", "warning", "note"]
EXAMPLES = 5
_REPAIR = "`tocsin doctor --repair`"


class FindingKind(Struct, frozen=True):
    level: Level
    what: str
    todo: str


KINDS: dict[str, FindingKind] = {
    "no-stage": FindingKind("wrong", "jobs are in no stage and would never run", f"{_REPAIR} puts them back in line"),
    "no-record": FindingKind("wrong", "ids are in a stage but have no record", f"{_REPAIR} takes them out"),
    "two-stages": FindingKind(
        "wrong",
        "jobs are in two stages at once",
        f"{_REPAIR} settles those that a worker holds, and takes out of `ready` those that are in another stage too; "
        "take the others out of the wrong stage by hand (ZREM)",
    ),
    "misplaced": FindingKind(
        "wrong", "jobs are ready, but have no place or a wrong one in line", f"{_REPAIR} gives them their places again"
    ),
    "stray-place": FindingKind(
        "wrong",
        "places in line belong to no job, or to a job that has another place",
        f"{_REPAIR} takes them out; a job without another place keeps its place",
    ),
    "passed-over": FindingKind(
        "wrong", "tenants have work that is ready, but no turn", f"{_REPAIR} gives them their turns"
    ),
    "miscounted-tenant": FindingKind(
        "wrong", "tenants' counts of runs differ from their claims", f"{_REPAIR} counts them again"
    ),
    "rests-in-vain": FindingKind(
        "wrong", "tenants rest until one of their runs ends, although they are below their cap", f"{_REPAIR} wakes them"
    ),
    "over-cap": FindingKind(
        "wrong",
        "more runs are working than the queue's max_active allows",
        "no run is claimed until enough have ended; if this comes back, report it",
    ),
    "held-not-working": FindingKind(
        "wrong", "claims are held although their job is not working", f"{_REPAIR} releases them"
    ),
    "working-unclaimed": FindingKind(
        "wrong",
        "jobs are working but nobody holds their claim",
        f"{_REPAIR} puts them back in line; otherwise they come back after their deadline",
    ),
    "unreadable-claim": FindingKind(
        "wrong", "claims cannot be read, and stop every script that reads them", f"{_REPAIR} drops them"
    ),
    "done-and-alive": FindingKind(
        "wrong", "jobs exist although their ids are recorded as done", "remove or rename one of the two by hand"
    ),
    "blocked-for-nothing": FindingKind(
        "wrong",
        "jobs are blocked, but nothing says what they wait for",
        f"{_REPAIR} pauses them; then resume or cancel each",
    ),
    "unheard-wait": FindingKind(
        "wrong",
        "jobs are blocked, and the end of the jobs they wait for will not unblock them: a server lost its last writes",
        f"nothing, if a worker runs: it repairs this within minutes; {_REPAIR} does it now",
    ),
    "wrong-partition": FindingKind(
        "wrong", "jobs are in a partition that their id does not belong to", "put them again and remove these by hand"
    ),
    "settings": FindingKind(
        "wrong",
        "partitions disagree with the register about order or number of partitions",
        "restore the queue's meta keys from a backup, or wipe the queue",
    ),
    "no-settings": FindingKind(
        "wrong",
        "partitions hold jobs but have lost their epoch",
        "start a worker of this queue: it opens them again; then run the doctor again",
    ),
    "unreadable-queue": FindingKind(
        "wrong",
        "entries of queues in the register cannot be read",
        f"{_REPAIR} registers them as their first partition says; if a newer version wrote them, use that version",
    ),
    "wrong-type": FindingKind(
        "wrong",
        "keys hold another type of data than Tocsin keeps there, and every call that needs them fails",
        f"{_REPAIR} renames them to KEY:set-aside and puts jobs that lost their place back in line; then find out who "
        "else writes to Tocsin's keys",
    ),
    "garbled-settings": FindingKind(
        "wrong",
        "settings or counters of partitions are not numbers",
        f"{_REPAIR} drops them: counters start again; then set the queue's limits again (`tocsin queues set`)",
    ),
    "garbage": FindingKind(
        "wrong",
        "keys have entries that no version of Tocsin writes",
        f"{_REPAIR} drops those that nobody can read, and makes jobs with an impossible time due now; then find out "
        "who else writes to Tocsin's keys",
    ),
    "write-errors": FindingKind(
        "wrong", "the server cannot write to its disk", "free disk space or repair the disk, and read the server's log"
    ),
    "left-over": FindingKind(
        "warning",
        "claims, errors or waits are left from jobs that do not exist, or do not wait",
        f"{_REPAIR} drops them",
    ),
    "done-without-result": FindingKind(
        "warning", "jobs are recorded as done without their outcome", "nothing: the records expire by themselves"
    ),
    "result-without-done": FindingKind(
        "warning", "outcomes are kept of jobs that are not recorded as done", f"{_REPAIR} drops them"
    ),
    "unreadable-record": FindingKind(
        "warning",
        "records cannot be read by this version, and are parked when they are due",
        "upgrade if a newer version wrote them; otherwise something else did: `tocsin jobs remove ID`",
    ),
    "bell": FindingKind(
        "warning", "bells rang more often than there are partitions", "nothing: workers answer them all"
    ),
    "overdue": FindingKind(
        "warning",
        "runs are long past their deadline and nobody has brought them back",
        "start a worker of this queue",
    ),
    "late-agents": FindingKind(
        "warning",
        "agents have been due for a quarter of an hour or longer and no worker runs them",
        "start a worker that declares them and whose patterns and shard have their names; resume the queue if it is "
        "paused; `tocsin why NAME` explains one of them",
    ),
    "moving": FindingKind(
        "warning",
        "queues are being repartitioned or deleted, and stand still until that is done",
        "wait; if the program that did it is gone, run `tocsin queues repartition` again with the same number, or "
        "`tocsin queues delete`",
    ),
    "moved": FindingKind("warning", "queues were repartitioned during this audit", "run it again"),
    "sealed": FindingKind(
        "warning", "partitions are sealed, although nobody repartitions their queue", f"{_REPAIR} opens them"
    ),
    "buried": FindingKind("warning", "dead workers' runs are not brought back yet", "start any worker: it does this"),
    "unreadable-worker": FindingKind(
        "warning",
        "entries of workers cannot be read",
        f"nothing if workers live: they declare these dead soon; {_REPAIR} does it now",
    ),
    "silent-worker": FindingKind(
        "warning",
        "workers sent no heartbeat while this audit waited for one",
        "nothing if other workers live: these are declared dead soon; otherwise start one",
    ),
    "no-aof": FindingKind(
        "warning",
        "servers keep no append-only file: a crash loses what changed since the last snapshot",
        "set appendonly to yes",
    ),
    "memory": FindingKind("warning", "servers are nearly out of memory", "raise maxmemory, or remove jobs"),
    "parked": FindingKind(
        "note",
        "jobs are parked: no live worker knows their handler, declares them as agents, can read their record, or can "
        "work out their next time",
        "start a worker that knows them, or remove them; `tocsin jobs list --stage parked` shows them",
    ),
    "outgrown": FindingKind(
        "note",
        "queues have so many jobs in one partition that each run costs the server more",
        "give them more partitions, as the example says",
    ),
    "stale-session": FindingKind(
        "note",
        "sessions are left from workers or programs that are gone",
        f"nothing: workers drop them after a day; {_REPAIR} does it now",
    ),
    "cap-lowered": FindingKind(
        "note",
        "more runs are working than a max_active that was set after they started",
        "nothing: no run is claimed until enough have ended",
    ),
    "dead": FindingKind("note", "jobs are dead", "`tocsin dead list` shows them; retry or drop them"),
}


class Finding(Struct, frozen=True):
    """All findings of one kind in one queue, server or key."""

    kind: str
    level: Level
    where: str
    count: int
    mended: int
    examples: list[str]
    what: str
    todo: str

    @property
    def left(self) -> int:
        return self.count - self.mended


class Findings:
    """Counts findings by kind and place, and keeps a few examples of each."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._examples: dict[tuple[str, str], list[str]] = {}

    def add(self, kind: str, where: str, *examples: str, count: int | None = None, mended: int = 0) -> None:
        counts = self._counts.setdefault((kind, where), [0, 0])
        counts[0] += len(examples) if count is None else count
        counts[1] += mended
        kept = self._examples.setdefault((kind, where), [])
        kept += examples[: EXAMPLES - len(kept)]

    def forget(self, *, where: str | None = None, kind: str | None = None) -> None:
        """Drop all findings of one place, or of one kind."""
        for found in list(self._counts):
            if found[0] == kind or found[1] == where:
                del self._counts[found]

    def all(self) -> list[Finding]:
        """All findings, the worst first."""
        order = list(KINDS)
        return [
            Finding(
                kind=kind,
                level=KINDS[kind].level,
                where=where,
                count=count,
                mended=mended,
                examples=self._examples[kind, where],
                what=KINDS[kind].what,
                todo=KINDS[kind].todo,
            )
            for (kind, where), (count, mended) in sorted(
                self._counts.items(), key=lambda found: (order.index(found[0][0]), found[0][1])
            )
            if count
        ]


# Cached, because millions of jobs have few different presences.
@functools.cache
def diagnose(presence: JobPresence) -> str | None:
    """Return the first thing that is wrong with a job, given the keys that had it at one instant. None if the job is in
    order, or does not exist."""
    stages = presence.stages
    if JobPresence.UNREADABLE in presence:
        return "unreadable-claim"
    if JobPresence.RECORD not in presence:
        if stages:
            return "no-record"
        if presence & (JobPresence.CLAIM | JobPresence.ERROR | JobPresence.NEEDS):
            return "left-over"
    elif JobPresence.DONE in presence:
        return "done-and-alive"
    elif len(stages) != 1:
        return "two-stages" if stages else "no-stage"
    elif JobPresence.MISPLACED in presence:
        return "misplaced"
    elif (JobPresence.WORKING in presence) != (JobPresence.HELD in presence):
        return "working-unclaimed" if JobPresence.WORKING in presence else "held-not-working"
    if JobPresence.RECORD in presence and (JobPresence.BLOCKED in presence) != (JobPresence.NEEDS in presence):
        return "blocked-for-nothing" if JobPresence.BLOCKED in presence else "left-over"
    if (JobPresence.DONE in presence) != (JobPresence.RESULT in presence):
        return "done-without-result" if JobPresence.DONE in presence else "result-without-done"
    if JobPresence.UNNAMED in presence and JobPresence.DONE not in presence:
        return "result-without-done"
    return None
