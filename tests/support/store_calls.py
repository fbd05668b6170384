"""Any sequence of calls to a server and to the model, with lost replies, late copies and dead workers."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.support.call_values import (
    EVENTS,
    MEMBERS,
    START,
    WORKERS,
    definitions,
)
from tests.support.dependency_model import WaitCalls
from tests.support.job_calls import JobCalls
from tests.support.model_job import Definition
from tests.support.run_calls import RunCalls
from tests.support.servers import Server
from tests.support.state_model import Model
from tocsin.model.queue import Queue
from tocsin.model.record import decode_header, decode_spec
from tocsin.model.run import Claim
from tocsin.store.formats import decode_claim_entry, is_apart, not_before
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.scripts.script import script
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import (
    Runs,
)


class Calls(JobCalls, RunCalls, WaitCalls, RuleBasedStateMachine):
    """Sends calls to a server and to the model, and compares what they answer and what they hold."""

    server: Server
    order: Any = "due"
    members: tuple[str, ...] = MEMBERS
    definitions = definitions

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.model = self.make_model()
        self.client = self.server.client()
        store = Store(self.server.url, prefix=f"m{secrets.token_hex(4)}:")
        self.queue = OpenQueue(Queue("line", self.order, partitions=1), store.keys, [b"epoch"])
        self.keys = self.queue.keys[0]
        script("partition_open").blocking(self.client, [self.keys["meta"]], ["epoch", self.order, 1])
        self.runs = {owner: Runs(store, owner) for owner in WORKERS}
        self.claims: list[tuple[str, Claim]] = []
        self.seq = itertools.count(1)
        self.sent: list[tuple[str, str, int, list[Any]]] = []
        self.newest: dict[str, int] = {}
        self.fence = 0

    def make_model(self) -> Model:
        return Model()

    def teardown(self) -> None:
        self.client.delete(*self.keys.values())
        self.client.close()

    # Sending

    def deliver(self, name: str, session: str, seq: int, args: list[Any]) -> Any:
        self.model.now = self.now
        what = self.queue.script(name)
        about = [self.queue.epochs[0], self.now, session, seq]
        return what.blocking(self.client, self.queue.keys_of(what, 0), [*about, *args])

    def send(self, data: st.DataObject, name: str, *args: Any, session: str = "program", traced: bool = True) -> Any:
        """Now and then the reply is lost and the call is sent again. `traced`: the server remembers its seq."""
        call = (name, session, next(self.seq), list(args))
        answer = self.deliver(*call)
        assert answer[0] == 1
        if data.draw(st.booleans(), "again"):
            assert self.told_again(name, self.deliver(*call)) == self.told_again(name, answer)
        self.sent = [*self.sent[-30:], call]
        if traced:
            self.newest[session] = call[2]
        return answer

    def told_again(self, name: str, answer: Any) -> Any:
        """What of an answer must be the same when the call is repeated."""
        return answer

    @rule(data=st.data(), what=st.sampled_from(EVENTS))
    def something_happens(self, data: st.DataObject, what: str) -> None:
        getattr(self, what)(data)

    def a_late_copy_arrives(self, data: st.DataObject) -> None:
        # Not of looks at deadlines: these leave nothing behind, and may be done at any time.
        old = [call for call in self.sent if call[3][0] != "" and call[2] < self.newest.get(call[1], 0)]
        if old:
            assert self.deliver(*data.draw(st.sampled_from(old), "call")) == [-2]

    # Time

    def time_passes(self, data: st.DataObject) -> None:
        self.now += data.draw(st.integers(1, 3000), "by")

    def the_clock_goes_back(self, data: st.DataObject) -> None:
        self.now -= data.draw(st.integers(1, 2000), "by")

    # What must hold after each step

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        with self.client.pipeline(transaction=False) as pipe:
            for key in ("jobs", "claims", "errors", "results", "needs"):
                pipe.hgetall(self.keys[key])
            for key in ("watchers", "outbox"):
                pipe.zrange(self.keys[key], 0, -1)
            for key in (*STAGE_KEYS, "done"):
                pipe.zrange(self.keys[key], 0, -1, withscores=True)
            pipe.hget(self.keys["meta"], "seq")
            pipe.xlen(self.keys["events"])
            records, raws, errors, results, needs, watchers, outbox, *sets, seq, events = pipe.execute()
        self.what_waits_is_the_same(needs, watchers, outbox)
        stages = dict(zip((*STAGE_KEYS, "done"), map(dict, sets), strict=True))
        stages["ready"] = self.ready()
        self.each_job_is_in_one_stage(records, stages)
        entries = {key: decode_claim_entry(raw) for key, raw in raws.items()}
        assert {key for key, entry in entries.items() if entry.token > 0} == set(stages["working"])
        assert all(bool(entry.owner) == (entry.token > 0) for entry in entries.values())
        assert set(entries) <= set(records)
        assert set(errors) <= set(records)
        assert (int(seq or 0), events) == (self.model.calls, self.model.calls)
        assert {key.decode(): int(score) for key, score in stages["done"].items()} == {
            member: until for member, (until, _) in self.model.done.items()
        }
        assert {key.decode(): raw[0] for key, raw in results.items()} == {
            member: outcome for member, (_, outcome) in self.model.done.items()
        }
        for key, record in records.items():
            self.same(key, record, entries.get(key), stages)

    def ready(self) -> dict[bytes, float]:
        """Who stands there, and when each was due."""
        return {}

    def each_job_is_in_one_stage(self, records: dict[bytes, bytes], stages: dict[str, dict[bytes, float]]) -> None:
        placed = sorted(key for stage in (*STAGE_KEYS, "ready") for key in stages[stage])
        assert placed == sorted(records)
        assert sorted(key.decode() for key in records) == sorted(self.model.jobs)

    def same(self, key: bytes, record: bytes, entry: Any, stages: dict[str, dict[bytes, float]]) -> None:
        job, header, spec = self.model.jobs[key.decode()], decode_header(record), decode_spec(record)
        score = stages[job.stage][key]
        assert job.apart == (job.stage == "waiting" and is_apart(score))
        if job.apart:
            score = not_before(score)
        # Half a digest tells of a suspect.
        score, job.below = (score, 0.0) if job.stage == "parked" else divmod(score, 1)
        assert score == job.score
        uncounted = 0
        if self.order == "due":
            uncounted = entry.uncounted if entry else int(job.below * 16)
        run = (entry.due, entry.attempt, entry.recoveries) if entry else (score, 1, 0)
        assert run == (job.due, job.attempt, job.recoveries)
        counts = (header.succeeded + uncounted, header.failed, header.attempts + uncounted)
        assert counts == (job.succeeded, job.failed, job.attempts)
        every = int(spec.trigger.interval) if spec.trigger else 0
        served = (header.band, header.tenant, header.cost)
        held = Definition(header.recurring, every, header.keep, header.timeout, spec.name, spec.args[0], *served)
        assert (held, header.version) == (job.definition, job.version)
        assert (entry.token, entry.owner) == (job.token, job.owner) if entry else job.token == 0
        # In the order of the bits in lua/lib/claim.lua.
        intents = [job.pausing, job.removing, job.wish, job.cancelled]
        bits = sum(1 << bit for bit, wanted in enumerate(intents) if wanted) + 16 * job.unread
        assert (entry.intent if entry else 0) == bits
        pending = decode_header(entry.pending) if entry and entry.pending else None
        assert (pending and pending.version) == (job.wish and job.wish.version)


def try_any_sequence(machine: type[Calls], examples: int, steps: int) -> None:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    how = {"max_examples": examples, "stateful_step_count": steps, "print_blob": True}
    run_state_machine_as_test(machine, settings=settings(deadline=None, suppress_health_check=slow, **how))
