"""Blocked jobs in the plain model of state_model.py, and the calls about them for any sequence of calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tests.support.records import packed_block
from tests.support.records import record as a_record
from tocsin.model import msgpack
from tocsin.model.outcome import (
    CANCELLED,
    CHANGED,
    FAILED,
    IGNORE,
    IS_WORKING,
    NEW,
    POSTPONE,
    REMEMBERED,
    REPLACE,
    SUCCEEDED,
    UNCHANGED,
)

if TYPE_CHECKING:
    from tests.support.model_job import Definition, Job

NAMES = ("a", "b", "c")
WATCHED_KEEP_S = 3600


@dataclass
class Wait:
    life: str
    anyway: bool
    sources: set[str]


@dataclass
class Waits:
    """What waits for what, and what is to be carried. Part of `Model`."""

    jobs: dict[str, Job] = field(default_factory=dict)
    # Ended one-shots: until when, and how they ended.
    done: dict[str, tuple[int, int]] = field(default_factory=dict)
    calls: int = 0
    waits: dict[str, Wait] = field(default_factory=dict)
    # Those of `done` that nobody asked to keep.
    only_watched: set[str] = field(default_factory=set)
    # (upstream, dependent, life)
    watchers: set[tuple[str, str, str]] = field(default_factory=set)
    # ("E", upstream, outcome) and ("W", dependent, life, upstream)
    outbox: set[tuple[Any, ...]] = field(default_factory=set)

    def block(self, now: int, member: str, what: Definition, due: int, mode: int, wait: Wait) -> int:
        code = self._block(now, member, what, due, mode)
        if code in (NEW, CHANGED):
            self.calls += 1
            self.waits[member] = replace(wait, sources=set(wait.sources))
            self.outbox |= {("W", member, wait.life, source) for source in wait.sources}
        return code

    def _block(self, now: int, member: str, what: Definition, due: int, mode: int) -> int:
        job = self.jobs.get(member)
        if job is None:
            if mode == IGNORE and self.remembers(member, now):
                return REMEMBERED
            self.done.pop(member, None)
            self.jobs[member] = self.new_job(what, "blocked", due)
            return NEW
        if mode == IGNORE and not job.removing:
            return UNCHANGED
        if job.stage == "working":
            return IS_WORKING
        job.define(what, self.calls + 1)
        job.fresh(due)
        job.move("blocked", due)
        return CHANGED

    def remembers(self, member: str, now: int) -> bool:
        return member not in self.only_watched and self.done.get(member, (0, 0))[0] > now

    def new_job(self, what: Definition, stage: str, due: int) -> Job:
        raise NotImplementedError

    def pending(self, upstream: str) -> int | None:
        """The outcome of an end that is still to be told."""
        return next((entry[2] for entry in self.outbox if entry[:2] == ("E", upstream)), None)

    def tell(self, upstream: str, outcome: int) -> bool:
        """It has ended: whether anybody waits for it."""
        watched = any(watcher[0] == upstream for watcher in self.watchers)
        if watched and self.pending(upstream) is None:
            self.outbox.add(("E", upstream, outcome))
        return watched

    def watch(self, upstream: str, member: str, life: str) -> str:
        job, pending = self.jobs.get(upstream), self.pending(upstream)
        if job is None:
            if upstream in self.done:
                return f"{self.done[upstream][1]}"
            return "g" if pending is None else f"{pending}"
        if job.definition.recurring:
            return "r"
        if job.stage == "dead":
            return f"{FAILED}"
        if pending is not None:
            return "l"
        self.calls += 1
        self.watchers.add((upstream, member, life))
        return "w"

    def unblock(self, now: int, tellings: list[tuple[str, str, str, int]], carried: list[tuple[Any, ...]]) -> str:
        codes = "".join(self._unblock(now, *telling) for telling in tellings)
        self.outbox -= set(carried)
        self.calls += bool(carried or codes.strip("0"))
        return codes

    def _unblock(self, now: int, member: str, life: str, upstream: str, outcome: int) -> str:
        wait = self.waits.get(member)
        if wait is None or wait.life != life or upstream not in wait.sources:
            return "0"
        job = self.jobs[member]
        if outcome != SUCCEEDED and not wait.anyway:
            self.end(now, member, job.definition.keep, CANCELLED)
            return "3"
        wait.sources.discard(upstream)
        if wait.sources:
            return "1"
        del self.waits[member]
        due = max(now, job.score)
        job.fresh(due)
        if job.pausing:
            self.set_aside(member, due)
        else:
            self.line_up(member, due)
        return "2"

    def end_watch(self, entry: tuple[Any, ...], told: set[tuple[str, str, str]]) -> int:
        self.calls += 1
        self.watchers -= told
        left = any(watcher[0] == entry[1] for watcher in self.watchers)
        if not left:
            self.outbox.discard(entry)
        return int(left)

    def end(self, now: int, member: str, keep: int, outcome: int) -> None:
        """It is no more, and remembered for a while."""
        self.only_watched.discard(member)
        if self.tell(member, outcome) and outcome == SUCCEEDED:
            self.only_watched |= {member} if not keep else set()
            keep = max(keep, WATCHED_KEEP_S)
        del self.jobs[member]
        self.waits.pop(member, None)
        if keep:
            self.done[member] = (now + keep * 1000, outcome)


def as_entry(entry: tuple[Any, ...]) -> str:
    if entry[0] == "E":
        return f"E\0{entry[1]}\0{entry[2]}"
    return f"W\0{entry[1]}\0{entry[2]}\0line\0{entry[3]}"


class WaitCalls:
    """Calls about blocked jobs. Part of the machine in store_calls.py."""

    now: int
    model: Any
    lives = 0
    # What is put, as strategies.
    definitions: Any

    def send(self, data: st.DataObject, name: str, *args: Any, session: str = "program") -> Any:
        raise NotImplementedError

    def block(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(NAMES), "dependent")
        what = replace(data.draw(self.definitions, "what"), recurring=False, trigger=0)
        sources = data.draw(st.sets(st.sampled_from([*NAMES, "ghost"]), min_size=1), "sources") - {member}
        mode = data.draw(st.sampled_from([IGNORE, REPLACE, REPLACE, POSTPONE]), "mode")
        due, anyway = self.now + data.draw(st.integers(-1000, 2000), "delay"), data.draw(st.booleans(), "anyway")
        self.lives += 1
        wait = Wait(f"{self.lives}", anyway, sources or {"ghost"})
        about = {"keep": what.keep, "timeout": what.timeout, "args": (what.body,), "handler": what.handler}
        about |= {"band": what.band, "tenant": what.tenant, "cost": what.cost}
        named = [f"line\0{source}" for source in sorted(wait.sources)]
        item = packed_block(member, a_record(**about), due, wait.life, *named, anyway=anyway, mode=mode)
        answer = self.send(data, "dependency_block", item)
        assert int(answer[1]) == self.model.block(self.now, member, what, due, mode, wait)

    def carry(self, data: st.DataObject) -> None:
        """An entry, if there is one; now and then whoever carries it dies on the way."""
        entries = sorted(self.model.outbox, key=as_entry)
        if entries:
            entry = data.draw(st.sampled_from(entries), "entry")
            dies = data.draw(st.integers(0, 3), "dies") == 0
            (self._carry_end if entry[0] == "E" else self._carry_ask)(data, entry, dies)

    def _carry_ask(self, data: st.DataObject, entry: tuple[Any, ...], dies: bool) -> None:
        _, member, life, upstream = entry
        answer = self.send(data, "dependency_watch", msgpack.encode([upstream, f"line\0{member}\0{life}"]))
        code = answer[1].decode()
        assert code == self.model.watch(upstream, member, life)
        if code == "l" or dies:
            return
        outcome = CANCELLED if code in "gr" else None if code == "w" else int(code)
        self._unblock(data, [] if outcome is None else [(member, life, upstream, outcome)], [entry])

    def _carry_end(self, data: st.DataObject, entry: tuple[Any, ...], dies: bool) -> None:
        told = {watcher for watcher in self.model.watchers if watcher[0] == entry[1]}
        tellings = [(member, life, upstream, entry[2]) for upstream, member, life in sorted(told)]
        self._unblock(data, tellings, [])
        if dies:
            return
        names = [f"{upstream}\0line\0{member}\0{life}" for upstream, member, life in sorted(told)]
        answer = self.send(data, "dependency_end", msgpack.encode([[as_entry(entry), entry[1], *names]]))
        assert answer[1] == self.model.end_watch(entry, told)

    def _unblock(self, data: st.DataObject, tellings: list[tuple[str, str, str, int]], carried: list[Any]) -> None:
        flat = [
            part for member, life, source, outcome in tellings for part in (member, life, f"line\0{source}", outcome)
        ]
        before = len(self.model.outbox) - len(carried)
        answer = self.send(
            data, "dependency_unblock", msgpack.encode(flat), msgpack.encode([as_entry(entry) for entry in carried])
        )
        assert answer[1].decode() == self.model.unblock(self.now, tellings, carried)
        if len(self.model.outbox) > before:
            assert answer[3] == 1

    def what_waits_is_the_same(self, needs: dict[bytes, bytes], watchers: list[bytes], outbox: list[bytes]) -> None:
        held = {}
        for key, raw in needs.items():
            life, anyway, *sources = msgpack.decode(raw)
            held[key.decode()] = Wait(life, bool(anyway), {source.partition("\0")[2] for source in sources})
        assert held == self.model.waits
        assert set(held) == {member for member, job in self.model.jobs.items() if job.stage == "blocked"}
        assert sorted(watchers) == sorted(
            f"{upstream}\0line\0{member}\0{life}".encode() for upstream, member, life in self.model.watchers
        )
        assert sorted(outbox) == sorted(as_entry(entry).encode() for entry in self.model.outbox)
