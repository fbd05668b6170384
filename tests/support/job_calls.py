"""Calls of programs: jobs are put, edited, paused, fired and removed. Part of the machine in store_calls.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.support.call_values import (
    as_record,
    delays,
)
from tests.support.model_job import Definition
from tests.support.records import packed
from tocsin.model import msgpack
from tocsin.model.ids import job_of
from tocsin.model.outcome import EDIT, IGNORE, POSTPONE, REPLACE, UPDATE
from tocsin.store.store import RESULTS_MAX


class JobCalls:
    now: int
    model: Any
    members: tuple[str, ...]
    definitions: Any
    send: Callable[..., Any]

    @initialize(data=st.data())
    def some_jobs(self, data: st.DataObject) -> None:
        for member in self.members:
            self.send_put(data, member, data.draw(self.definitions), -1, IGNORE)

    def any_member(self, data: st.DataObject) -> str:
        """A job or an extra run, rather one that is working, now and then one that is not there."""
        there = sorted(self.model.jobs)
        working = [member for member in there if self.model.jobs[member].stage == "working"]
        anyone = data.draw(st.sampled_from(self.members))
        return data.draw(st.sampled_from([*working, *working, *there, anyone]), "member")

    def version(self, data: st.DataObject, member: str) -> int:
        """None expected, the right one, or a wrong one."""
        job = self.model.jobs.get(member)
        right = 0 if job is None else (job.wish or job).version
        return data.draw(st.sampled_from([0, 0, right, right + 1]), "expected")

    def send_put(self, data: st.DataObject, member: str, what: Definition, delay: int | None, mode: int) -> None:
        """No delay: an edit that leaves the due time alone."""
        expected = self.version(data, member)
        due = 0 if delay is None else self.now + delay
        relative = bool(delay and delay > 0) and data.draw(st.booleans(), "relative")
        item = packed(member, as_record(what), delay if relative else due, relative, mode, expected)
        answer = self.send(data, "job_put", item)
        assert int(answer[1]) == self.model.put(self.now, member, what, due, mode, expected)

    def put(self, data: st.DataObject) -> None:
        mode = data.draw(st.sampled_from([IGNORE, REPLACE, POSTPONE, UPDATE]), "mode")
        self.send_put(
            data, job_of(self.any_member(data)), data.draw(self.definitions), data.draw(delays, "delay"), mode
        )

    def edit(self, data: st.DataObject) -> None:
        """Body and keep change, what it is does not."""
        member = self.any_member(data)
        mode, delay = data.draw(st.sampled_from([EDIT, EDIT, UPDATE]), "mode"), data.draw(st.none() | delays, "delay")
        job = self.model.jobs.get(member)
        old = Definition(handler="x") if job is None else (job.wish or job).definition
        what = self.edited(data, old)
        self.send_put(data, member, what, delay if mode == EDIT else delay or 0, mode)

    def edited(self, data: st.DataObject, old: Definition) -> Definition:
        keep, body = data.draw(st.sampled_from([0, 60]), "keep"), data.draw(st.integers(0, 9), "body")
        return replace(old, keep=keep, body=body)

    def change(self, data: st.DataObject) -> None:
        """What can be asked of a job, rather what makes sense in its stage."""
        member = self.any_member(data)
        job = self.model.jobs.get(member)
        fitting = {"dead": ["revive", "drop"], "parked": ["unpark"], "paused": ["resume"], "working": ["pause"]}
        fitting["blocked"] = ["pause", "pause", "cancel"]
        verbs = ["delete", "drop", "pause", "resume", "cancel", "fire", "revive", "unpark"]
        verb = data.draw(st.sampled_from([*verbs, *fitting.get(job.stage if job else "", []) * 4]), "verb")
        getattr(self, f"_{verb}")(data, member)

    def _delete(self, data: st.DataObject, member: str, only: str = "") -> None:
        answer = self.send(data, "job_delete", only, msgpack.encode([member]))
        assert answer[1].decode() == self.model.delete(member, only)

    def _drop(self, data: st.DataObject, member: str) -> None:
        self._delete(data, member, "dead")

    def _pause(self, data: st.DataObject, member: str) -> None:
        assert self.send(data, "job_pause", member)[1] == self.model.pause(self.now, member)

    def _resume(self, data: st.DataObject, member: str) -> None:
        delay = data.draw(st.none() | delays, "delay")
        expected, due = self.version(data, member), 0 if delay is None else self.now + delay
        answer = self.send(data, "job_resume", member, expected, due)
        assert answer[1] == self.model.resume(member, expected, due)

    def _cancel(self, data: st.DataObject, member: str) -> None:
        job = self.model.jobs.get(member)
        due = data.draw(st.sampled_from([0, 0, job.due, job.due + 1]), "due") if job else 0
        answer = self.send(data, "job_cancel", member, due, RESULTS_MAX)
        assert answer[1] == self.model.cancel(self.now, member, due)
        if answer[1] == 2:
            assert answer[2:] == [job.owner.encode(), job.token, 0]

    def _fire(self, data: st.DataObject, member: str) -> None:
        member, ago = job_of(member), data.draw(st.sampled_from([0, 0, 1000]), "ago")
        due = self.now - ago if ago else 0
        answer = self.send(data, "job_fire", member, msgpack.encode([due]))
        assert (answer[2] if answer[1] else None) == self.model.fire(self.now, member, due)

    def _revive(self, data: st.DataObject, member: str) -> None:
        assert self.send(data, "job_revive", msgpack.encode([member]))[1].decode() == self.model.revive(
            self.now, member
        )

    def _unpark(self, data: st.DataObject, member: str) -> None:
        assert self.send(data, "job_unpark", member)[1] == self.model.unpark(member)
