"""Any sequence of calls, with lost replies, late copies, dead workers and a jumping clock, keeps the invariants."""

from __future__ import annotations

import itertools
import secrets
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from line import packed
from line import record as a_record
from waits import WaitCalls

from model import Definition, Model
from servers import Server
from tocsin.model import msgpack
from tocsin.model.ids import EXTRA, job_of
from tocsin.model.outcome import EDIT, IGNORE, NOT_ENDED, POSTPONE, REPLACE, UPDATE
from tocsin.model.queue import Queue
from tocsin.model.record import decode_header, decode_spec, handler_digest
from tocsin.model.run import Claim
from tocsin.store.formats import DUE_MASK, decode_claim_entry, is_apart, not_before
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.scripts.script import script
from tocsin.store.store import RESULTS_MAX, OpenQueue, Store
from tocsin.store.transitions.claims import Runs
from tocsin.store.transitions.settle import (
    Item,
    advance_item,
    bury_or_park_item,
    extra_run_item,
    finish_item,
    park_item,
    release_item,
    retry_item,
)

START = 1_900_000_000_000
MEMBERS = ("a", "b", "c")
# Who knows which handlers.
WORKERS = {"w1": {"x"}, "w2": {"x", "y"}}
ERROR = msgpack.encode(["bad"])

members = st.sampled_from(MEMBERS)
workers = st.sampled_from(sorted(WORKERS))
definitions = st.builds(
    lambda trigger, **rest: Definition(recurring=trigger > 0, trigger=trigger, **rest),
    trigger=st.sampled_from([0, 0, 1, 2]),
    keep=st.sampled_from([0, 0, 2, 60]),
    timeout=st.sampled_from([500, 2000, 60_000]),
    handler=st.sampled_from(["x", "x", "y"]),
    body=st.integers(0, 2),
)
delays = st.integers(-2000, 3000)

# What may happen, as often as it should.
EVENTS = ["put"] * 2 + ["edit"] * 3 + ["change"] * 6 + ["claim"] * 5 + ["claim_by_id"] * 2 + ["settle"] * 8
EVENTS += ["plan", "set_aside"] * 3 + ["workers_die_in_a_row"] * 2
EVENTS += ["extend", "a_worker_dies", "deadlines_are_looked_at", "time_passes", "the_clock_goes_back"]
EVENTS += ["a_late_copy_arrives"] + ["block"] * 3 + ["carry"] * 5


def as_record(what: Definition) -> bytes:
    about = {"keep": what.keep, "timeout": what.timeout, "args": (what.body,), "handler": what.handler}
    lane = {"band": what.band, "tenant": what.tenant, "cost": what.cost}
    return a_record(every=what.trigger or None, recurring=what.recurring, **about, **lane)


class Calls(WaitCalls, RuleBasedStateMachine):
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

    # A program

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

    # Workers

    def send_claim(self, data: st.DataObject, name: str, owner: str, suspects: int, last: Any) -> Any:
        known = b"".join(handler_digest(handler).to_bytes(4, "big") for handler in sorted(WORKERS[owner]))
        return self.send(data, name, owner, self.now, known, 0, suspects, "1", last, session=f"{owner}:claim")

    def claim(self, data: st.DataObject) -> None:
        self.now += data.draw(st.sampled_from([0, 0, 1500]), "after")
        owner, limit = data.draw(workers, "owner"), data.draw(st.sampled_from([1, 2, 100]), "limit")
        self.claim_as(data, owner, limit, data.draw(st.sampled_from([0, 1, 1000]), "suspects"))

    def claim_as(self, data: st.DataObject, owner: str, limit: int, suspects: int) -> int:
        """The token of what it got."""
        answer = self.send_claim(data, "run_claim", owner, suspects, limit)
        picked = self.model.pick(WORKERS[owner], limit, suspects)
        assert msgpack.decode(answer[3]) == picked.taken
        self.claimed(owner, answer, [*picked.taken, *picked.parked])
        assert (answer[6], answer[8]) == (self.model.next_due(), len(self.model.due_now(self.now)))
        return answer[2]

    def claim_by_id(self, data: st.DataObject) -> None:
        owner, named = data.draw(workers, "owner"), data.draw(st.lists(members, min_size=1, max_size=3), "named")
        suspects = data.draw(st.sampled_from([0, 1, 1000]), "suspects")
        answer = self.send_claim(data, "run_claim_ids", owner, suspects, msgpack.encode(named))
        picked, eligible = self.model.pick_named(WORKERS[owner], list(dict.fromkeys(named)), suspects)
        assert self.claimed(owner, answer, [*picked.taken, *picked.parked]) == eligible
        waiting = {member: job.score for member, job in self.model.jobs.items() if job.stage == "waiting"}
        assert answer[9] == [waiting.get(member, -1) for member in named]

    def known(self, owner: str, found: list[str]) -> list[str]:
        return [member for member in found if self.model.jobs[member].definition.handler in WORKERS[owner]]

    def claimed(self, owner: str, answer: Any, found: list[str]) -> list[str]:
        """Check a claim's answer against the model. Those that came from `parked`."""
        _, now, token, packed, records, stamps, _, parkings, *_ = answer
        taken = self.known(owner, found)
        names = msgpack.decode(packed)
        assert names[: len(taken)] == taken
        assert (now, parkings) == (self.now, len(found) - len(taken))
        parked = names[len(taken) :]
        if names:
            assert token > self.fence
            self.fence = token
        self.model.claim(self.now, owner, WORKERS[owner], token, found, parked)
        for name, record, stamp in sorted(zip(names, records, struct.iter_unpack(">QIHB", stamps), strict=True)):
            job, (due, attempt, recoveries, _) = self.model.jobs[name], stamp
            claim = Claim(
                "line", 0, name.encode(), token, job.due, job.attempt, job.recoveries, job.cancelled, job.score, record
            )
            assert (due & DUE_MASK, attempt, recoveries) == (claim.due, claim.attempt, claim.recoveries)
            self.claims = [*self.claims[-12:], (owner, claim)]
        return parked

    def held(self, owner: str, claim: Claim) -> bool:
        return self.model.holds(claim.member, owner, claim.token)

    def some_claims(self, data: st.DataObject) -> tuple[str, list[Claim]]:
        """Those that a worker holds; now and then lost ones, or those of another."""
        if not self.claims:
            return "w1", []
        owner, claims = self.claims[-1][0], [claim for _, claim in self.claims]
        live = [(by, claim) for by, claim in self.claims if self.held(by, claim)]
        if live and data.draw(st.integers(0, 3), "lost") > 0:
            owner = data.draw(st.sampled_from(sorted({by for by, _ in live})), "owner")
            claims = [claim for by, claim in live if by == owner]
        picked = data.draw(st.lists(st.sampled_from(claims), min_size=1, max_size=3), "claims")
        return owner, list({claim.key: claim for claim in picked}.values())

    def settle(self, data: st.DataObject) -> None:
        verb = data.draw(st.sampled_from(["finish", "finish", "retry", "release", "bury", "park"]), "verb")
        owner, claims = self.some_claims(data)
        if not claims:
            return
        delay, steps, outcome = (data.draw(st.integers(0, 3)) for _ in range(3))

        def ending(claim: Claim) -> tuple[int, int, int]:
            header = decode_header(claim.record)
            return claim.due + 1000 * steps if header.recurring and steps else 0, outcome, header.keep

        make: dict[str, Callable[[Claim], Item]] = {
            "finish": lambda claim: finish_item(claim, *ending(claim)),
            "retry": lambda claim: retry_item(claim, delay * 1000, ERROR),
            "release": release_item,
        }
        items = [make.get(verb, lambda claim: bury_or_park_item(claim, ERROR))(claim) for claim in claims]
        call = self.runs[owner].settle(verb, self.queue, 0, items)
        held = [claim for claim in claims if self.held(owner, claim)]
        answer = self.send(data, f"run_{verb}", *call.args, session=call.session, traced=bool(held))
        assert answer[1] == [claim.key for claim in claims if claim not in held]
        self.model.settled(held)
        for claim in held:
            args = {"finish": ending(claim), "retry": (delay * 1000,)}.get(verb, ())
            getattr(self.model, verb)(self.now, claim.member, *args)
        if held and verb == "finish":
            self.model.forget(self.now)

    def set_aside(self, data: st.DataObject) -> None:
        """Schedules of which nobody can tell when they are due next, and such that go on."""
        owner, claims = self.some_claims(data)
        claims = [claim for claim in claims if EXTRA not in claim.member and decode_header(claim.record).recurring]
        if not claims:
            return
        # Some have ended, the others could not be read.
        outcomes = [data.draw(st.integers(0, NOT_ENDED), "outcome") for _ in claims]
        wait, steps = (data.draw(st.integers(0, 3), name) for name in ("wait", "steps"))
        verb = data.draw(st.sampled_from(["park", "advance"]), "verb")
        if verb == "park":
            items = [
                park_item(claim, ERROR, b"", outcome, wait * 1000)
                for claim, outcome in zip(claims, outcomes, strict=True)
            ]
        else:
            items = [advance_item(claim, claim.due + 1000 * steps if steps else 0) for claim in claims]
        call = self.runs[owner].settle(verb, self.queue, 0, items)
        held = [self.held(owner, claim) for claim in claims]
        answer = self.send(data, f"run_{verb}", *call.args, session=call.session, traced=any(held))
        assert answer[1] == [claim.key for claim, is_held in zip(claims, held, strict=True) if not is_held]
        self.model.settled([claim for claim, is_held in zip(claims, held, strict=True) if is_held])
        for claim, outcome, is_held in zip(claims, outcomes, held, strict=True):
            if not is_held:
                continue
            if verb == "advance":
                self.model.advance(self.now, claim.member, claim.due + 1000 * steps if steps else 0)
            elif outcome == NOT_ENDED:
                self.model.park(self.now, claim.member, wait * 1000)
            else:
                self.model.park_ended(self.now, claim.member, outcome, wait * 1000)

    def plan(self, data: st.DataObject) -> None:
        """Occurrences get runs of their own; a run has none."""
        owner, claims = self.some_claims(data)
        claims = [claim for claim in claims if EXTRA not in claim.member]
        if not claims:
            return
        alone, steps = data.draw(st.booleans(), "alone"), data.draw(st.integers(0, 3), "steps")
        following = {claim.key: claim.due + 1000 * steps if steps else 0 for claim in claims}
        call = self.runs[owner].settle(
            "plan", self.queue, 0, [extra_run_item(claim, following[claim.key], alone) for claim in claims]
        )
        held = [claim for claim in claims if self.held(owner, claim)]
        answer = self.send(data, "run_plan", *call.args, session=call.session, traced=bool(held))
        assert answer[1] == [claim.key for claim in claims if claim not in held]
        self.model.settled(held)
        told = [
            part
            for claim in held
            for telling in self.model.plan(self.now, claim.member, following[claim.key], alone)
            for part in (telling[0].encode(), telling[1].encode(), telling[2])
        ]
        assert answer[4] == told

    def extend(self, data: st.DataObject) -> None:
        owner, claims = self.some_claims(data)
        by = data.draw(st.integers(0, 5000), "by")
        for claim in claims:
            answer = self.send(data, "run_extend", owner, claim.key, claim.token, by)
            held = self.held(owner, claim)
            assert answer[1] == (self.now + by if held else 0)
            if held:
                self.model.extend(self.now, claim.member, by)

    def a_worker_dies(self, data: st.DataObject) -> None:
        """Its claims are brought back; it may wake up later and try to end them all the same."""
        dead = data.draw(workers, "dead")
        if data.draw(st.booleans(), "for good"):
            self.claims = [(by, claim) for by, claim in self.claims if by != dead]
        self.bring_back(data, dead)

    def bring_back(self, data: st.DataObject, dead: str) -> None:
        answer = self.send(data, "run_recover", dead, "0", 0, 1000, session="w3:recover")
        assert answer[1] == b"0"
        self.recovered(answer, [member for member, job in self.model.jobs.items() if job.owner == dead])

    def workers_die_in_a_row(self, data: st.DataObject) -> None:
        """What they hold becomes suspect."""
        for owner in ("w2", "w2"):
            self.claim_as(data, owner, 100, 1000)
            self.bring_back(data, owner)

    def deadlines_are_looked_at(self, data: st.DataObject) -> None:
        overdue = data.draw(st.sampled_from([0, 1000]), "overdue")
        # One that finds nothing leaves nothing behind, not even its seq.
        answer = self.send(data, "run_recover", "", "0", overdue, 1000, session="w3:recover", traced=False)
        late = self.now - overdue
        over = [m for m, job in self.model.jobs.items() if job.stage == "working" and job.score <= late]
        self.recovered(answer, over)

    def recovered(self, answer: Any, expected: list[str]) -> None:
        assert sorted(key.decode() for key in answer[2]) == sorted(expected)
        self.model.calls += bool(expected)
        for key in answer[2]:
            self.model.recover(self.now, key.decode())

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
        lane = (header.band, header.tenant, header.cost)
        held = Definition(header.recurring, every, header.keep, header.timeout, spec.name, spec.args[0], *lane)
        assert (held, header.version) == (job.definition, job.version)
        assert (entry.token, entry.owner) == (job.token, job.owner) if entry else job.token == 0
        # In the order of the bits in lua/lib/claims.lua.
        intents = [job.pausing, job.removing, job.wish, job.cancelled]
        bits = sum(1 << bit for bit, wanted in enumerate(intents) if wanted) + 16 * job.unread
        assert (entry.intent if entry else 0) == bits
        pending = decode_header(entry.pending) if entry and entry.pending else None
        assert (pending and pending.version) == (job.wish and job.wish.version)


def try_any_sequence(machine: type[Calls], examples: int, steps: int) -> None:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    how = {"max_examples": examples, "stateful_step_count": steps, "print_blob": True}
    run_state_machine_as_test(machine, settings=settings(deadline=None, suppress_health_check=slow, **how))


def test_any_sequence_of_calls_keeps_the_invariants(valkey: Server):
    class OnServer(Calls):
        server = valkey

    try_any_sequence(OnServer, examples=60, steps=40)
