"""Schedules that run again and again: whatever else is done to them, each run is counted, and none is early."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.support.call_values import EVENTS
from tests.support.model_job import Definition
from tests.support.servers import Server
from tests.support.store_calls import Calls, try_any_sequence
from tocsin.model.outcome import SUCCEEDED
from tocsin.store.transitions.settle import finish_item

SCHEDULE_EVENTS = [what for what in EVENTS if what not in ("block", "carry")] + ["runs_in_time"] * 12


class Schedules(Calls):
    definitions = st.builds(
        lambda trigger, **rest: Definition(recurring=trigger > 0, trigger=trigger, **rest),
        trigger=st.sampled_from([0, 1, 1, 1, 2]),
        keep=st.sampled_from([0, 0, 0, 60]),
        timeout=st.sampled_from([500, 60_000]),
        handler=st.just("x"),
        body=st.integers(0, 2),
    )

    @rule(data=st.data(), what=st.sampled_from(SCHEDULE_EVENTS))
    def something_happens(self, data: st.DataObject, what: str) -> None:
        getattr(self, what)(data)

    def runs_in_time(self, data: st.DataObject) -> None:
        """All that is due is run, a few times, as by a worker that has nothing else to do."""
        for _ in range(data.draw(st.sampled_from([1, 2, 5, 15, 16]), "times")):
            self.now += 1000
            token = self.claim_as(data, "w1", 100, 1000)
            self.finish_in_time(data, [claim for _, claim in self.claims if claim.token == token])

    def finish_in_time(self, data: st.DataObject, claims: list[Any]) -> None:
        if not claims:
            return
        nexts = [claim.due + 1000 if self.model.jobs[claim.member].definition.recurring else 0 for claim in claims]
        items = [finish_item(claim, due, SUCCEEDED) for claim, due in zip(claims, nexts, strict=True)]
        call = self.runs["w1"].settle("finish", self.queue, 0, items)
        assert self.send(data, "run_finish", *call.args, session=call.session)[1] == []
        self.model.calls += 1
        for claim, due in zip(claims, nexts, strict=True):
            self.model.finish(self.now, claim.member, due, SUCCEEDED, 0)
        self.model.forget(self.now)
        self.redis_holds_what_the_model_holds()


def test_each_run_of_a_schedule_is_counted(valkey: Server):
    class OnServer(Schedules):
        server = valkey

    try_any_sequence(OnServer, examples=40, steps=30)
