"""What an audit can find, in words: what is wrong, and what to do about it."""

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
        f"{_REPAIR} settles those that a worker holds, and takes out of `ready` what stands elsewhere as well; "
        "take the others out of the stage that is wrong (ZREM)",
    ),
    "misplaced": FindingKind(
        "wrong", "jobs are ready, but not where the line has them", f"{_REPAIR} gives them their places again"
    ),
    "stray-place": FindingKind(
        "wrong",
        "places in line belong to no job, or to one that stands elsewhere",
        f"{_REPAIR} takes them out; a job that stands nowhere else keeps its place",
    ),
    "passed-over": FindingKind(
        "wrong", "tenants have work that is ready, but no turn", f"{_REPAIR} gives them their turns"
    ),
    "miscounted-tenant": FindingKind(
        "wrong", "tenants' counts of runs are not what their claims say", f"{_REPAIR} counts them anew"
    ),
    "rests-in-vain": FindingKind(
        "wrong", "tenants rest until one of their runs ends, although they are below their cap", f"{_REPAIR} wakes them"
    ),
    "over-cap": FindingKind(
        "wrong",
        "more runs are worked on than the queue's max_active",
        "nothing more is claimed until they have ended; if it comes back, report it",
    ),
    "held-not-working": FindingKind(
        "wrong", "claims are held although their job is not working", f"{_REPAIR} lets them go"
    ),
    "working-unclaimed": FindingKind(
        "wrong",
        "jobs are working but nobody holds their claim",
        f"{_REPAIR} puts them back in line; without it they come back after their deadline",
    ),
    "unreadable-claim": FindingKind(
        "wrong", "claims cannot be read, and stop every script that meets them", f"{_REPAIR} drops them"
    ),
    "done-and-alive": FindingKind(
        "wrong", "ids are remembered as done and exist as well", "remove or rename one of the two by hand"
    ),
    "blocked-for-nothing": FindingKind(
        "wrong",
        "jobs are blocked, and nothing is known of what they wait for",
        f"{_REPAIR} pauses them; then resume or cancel each",
    ),
    "unheard-wait": FindingKind(
        "wrong",
        "jobs are blocked, and nothing will tell them of the end of what they wait for: a server lost its last writes",
        f"nothing, if a worker runs: it asks anew within minutes; {_REPAIR} does it now",
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
        "start a worker of this queue: it opens them anew; then look again",
    ),
    "unreadable-queue": FindingKind(
        "wrong",
        "queues are registered with what cannot be read",
        f"{_REPAIR} registers them as their first partition says; if a newer version wrote it, use that",
    ),
    "wrong-type": FindingKind(
        "wrong",
        "keys hold another kind of data than Tocsin keeps there, and stop what needs them",
        f"{_REPAIR} renames them to KEY:set-aside and puts jobs that lost their place back in line; then find out who "
        "else writes to Tocsin's keys",
    ),
    "garbled-settings": FindingKind(
        "wrong",
        "settings or counters of partitions are no numbers",
        f"{_REPAIR} drops them: counters begin anew; then set the queue's limits again (`tocsin queues set`)",
    ),
    "garbage": FindingKind(
        "wrong",
        "entries of keys are such as no version of Tocsin writes",
        f"{_REPAIR} drops those that nobody can read, and makes due now what has an impossible time; then find out who "
        "else writes to Tocsin's keys",
    ),
    "write-errors": FindingKind(
        "wrong", "the server cannot write to its disk", "free disk space or mend the disk, and read the server's log"
    ),
    "left-over": FindingKind(
        "warning", "claims, errors or waits are left of jobs that do not exist, or do not wait", f"{_REPAIR} drops them"
    ),
    "done-without-result": FindingKind(
        "warning", "jobs are remembered as done without their outcome", "nothing: they are forgotten in their time"
    ),
    "result-without-done": FindingKind("warning", "outcomes are kept that nobody remembers", f"{_REPAIR} drops them"),
    "unreadable-record": FindingKind(
        "warning",
        "records cannot be read by this version, and are parked when they are due",
        "upgrade if a newer version wrote them; otherwise somebody else did: `tocsin jobs remove ID`",
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
        "paused; `tocsin why NAME` says more of one",
    ),
    "moving": FindingKind(
        "warning",
        "queues are being repartitioned or deleted, and stand still until that is done",
        "wait, or if nobody does it any more: run `tocsin queues repartition` again with the same number, or "
        "`tocsin queues delete`",
    ),
    "moved": FindingKind("warning", "queues were repartitioned while this audit looked at them", "run it again"),
    "sealed": FindingKind(
        "warning", "partitions are sealed, although nobody repartitions their queue", f"{_REPAIR} opens them"
    ),
    "buried": FindingKind("warning", "dead workers' runs are not brought back yet", "start a worker: any will do it"),
    "unreadable-worker": FindingKind(
        "warning",
        "entries of workers cannot be read",
        f"nothing if workers live: they declare these dead soon; {_REPAIR} does it now",
    ),
    "silent-worker": FindingKind(
        "warning",
        "workers were not heard while this audit listened",
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
        "queues hold so many jobs in one partition that each run costs the server more",
        "give them more partitions, as the example says",
    ),
    "stale-session": FindingKind(
        "note",
        "sessions are left of workers or programs that are gone",
        f"nothing: workers drop them after a day; {_REPAIR} does it now",
    ),
    "cap-lowered": FindingKind(
        "note",
        "more runs are worked on than the max_active that was set meanwhile",
        "nothing: nothing more is claimed until they have ended",
    ),
    "dead": FindingKind("note", "jobs are dead", "`tocsin dead list` shows them; retry or drop them"),
}


class Finding(Struct, frozen=True):
    """One kind of trouble in one place."""

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
    """Counts what is found by kind and place, and keeps a few examples of each."""

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
        """All of one place, or of one kind."""
        for found in list(self._counts):
            if found[0] == kind or found[1] == where:
                del self._counts[found]

    def all(self) -> list[Finding]:
        """The worst first."""
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


# There are few ways to stand, and millions of jobs.
@functools.cache
def diagnose(standing: JobPresence) -> str | None:
    """The first thing that is wrong with how a job stands at one instant; None: it is in order, or does not exist."""
    stages = standing.stages
    if JobPresence.UNREADABLE in standing:
        return "unreadable-claim"
    if JobPresence.RECORD not in standing:
        if stages:
            return "no-record"
        if standing & (JobPresence.CLAIM | JobPresence.ERROR | JobPresence.NEEDS):
            return "left-over"
    elif JobPresence.DONE in standing:
        return "done-and-alive"
    elif len(stages) != 1:
        return "two-stages" if stages else "no-stage"
    elif JobPresence.MISPLACED in standing:
        return "misplaced"
    elif (JobPresence.WORKING in standing) != (JobPresence.HELD in standing):
        return "working-unclaimed" if JobPresence.WORKING in standing else "held-not-working"
    if JobPresence.RECORD in standing and (JobPresence.BLOCKED in standing) != (JobPresence.NEEDS in standing):
        return "blocked-for-nothing" if JobPresence.BLOCKED in standing else "left-over"
    if (JobPresence.DONE in standing) != (JobPresence.RESULT in standing):
        return "done-without-result" if JobPresence.DONE in standing else "result-without-done"
    if JobPresence.UNNAMED in standing and JobPresence.DONE not in standing:
        return "result-without-done"
    return None
