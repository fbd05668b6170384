"""Any sequence of calls, with lost replies, late copies, dead workers and a jumping clock, keeps the invariants."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from line import packed

from model import Definition, Model
from servers import Server
from tocsin.model import codec
from tocsin.model.job import Header, Queue, Spec
from tocsin.model.run import Claim
from tocsin.store.jobs import EDIT, IGNORE, POSTPONE, REPLACE, UPDATE, read_entry, record_of
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.runs import Item, Runs, failed_item, finish_item, release_item, retry_item
from tocsin.store.scripts import script
from tocsin.store.store import OpenQueue, Store

START = 1_900_000_000_000
MEMBERS = ("a", "b", "c")
# Who knows which handlers.
WORKERS = {"w1": {"x"}, "w2": {"x", "y"}}
ERROR = codec.encode(["bad"])

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


def as_record(what: Definition) -> bytes:
    digest = codec.handler_digest(what.handler)
    header = Header(what.recurring, what.timeout, digest, trigger=what.trigger, keep=what.keep)
    return record_of(header, Spec(what.handler, (what.body,)))


class Calls(RuleBasedStateMachine):
    """Sends calls to a server and to the model, and compares what they answer and what they hold."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.model = Model()
        self.client = self.server.client()
        store = Store(self.server.url, prefix=f"m{secrets.token_hex(4)}:")
        self.queue = OpenQueue(Queue("line", partitions=1), store.keys, [b"epoch"])
        self.keys = self.queue.keys[0]
        script("partition_open").blocking(self.client, [self.keys["meta"]], ["epoch", "due", 1])
        self.runs = {owner: Runs(store, owner) for owner in WORKERS}
        self.claims: list[tuple[str, Claim]] = []
        self.seq = itertools.count(1)
        self.sent: list[tuple[str, str, int, list[Any]]] = []
        self.newest: dict[str, int] = {}
        self.fence = 0

    def teardown(self) -> None:
        self.client.delete(*self.keys.values())
        self.client.close()

    # Sending

    def deliver(self, name: str, session: str, seq: int, args: list[Any]) -> Any:
        what = script(name)
        about = [self.queue.epochs[0], self.now, session, seq]
        return what.blocking(self.client, self.queue.keys_of(what, 0), [*about, *args])

    def send(self, data: st.DataObject, name: str, *args: Any, session: str = "program") -> Any:
        """Now and then the reply is lost and the call is sent again."""
        call = (name, session, next(self.seq), list(args))
        answer = self.deliver(*call)
        assert answer[0] == 1
        if data.draw(st.booleans(), "again"):
            assert self.deliver(*call) == answer
        self.sent = [*self.sent[-30:], call]
        self.newest[session] = call[2]
        return answer

    @precondition(lambda self: any(call[2] < self.newest[call[1]] for call in self.sent))
    @rule(data=st.data())
    def a_late_copy_arrives(self, data: st.DataObject) -> None:
        old = [call for call in self.sent if call[2] < self.newest[call[1]]]
        assert self.deliver(*data.draw(st.sampled_from(old), "call")) == [-2]

    # Time

    @rule(by=st.integers(0, 5000))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(by=st.integers(1, 3000))
    def the_clock_goes_back(self, by: int) -> None:
        self.now -= by

    # A program

    def any_member(self, data: st.DataObject) -> str:
        """A job, or an extra run."""
        return data.draw(st.sampled_from(sorted({*MEMBERS, *self.model.jobs})), "member")

    def version(self, data: st.DataObject, member: str) -> int:
        """None expected, the right one, or a wrong one."""
        job = self.model.jobs.get(member)
        right = 0 if job is None else (job.wish or job).version
        return data.draw(st.sampled_from([0, 0, right, right + 1]), "expected")

    @rule(data=st.data(), member=members, what=definitions, delay=delays)
    def put(self, data: st.DataObject, member: str, what: Definition, delay: int) -> None:
        mode = data.draw(st.sampled_from([IGNORE, REPLACE, POSTPONE, UPDATE]), "mode")
        expected = self.version(data, member)
        relative = delay >= 0 and data.draw(st.booleans(), "relative")
        item = packed(member, as_record(what), delay if relative else self.now + delay, relative, mode, expected)
        answer = self.send(data, "job_put", item)
        assert int(answer[1]) == self.model.put(self.now, member, what, self.now + delay, mode, expected)

    @rule(data=st.data(), body=st.integers(0, 9), keep=st.sampled_from([0, 60]), delay=st.none() | delays)
    def edit(self, data: st.DataObject, body: int, keep: int, delay: int | None) -> None:
        member = self.any_member(data)
        job = self.model.jobs.get(member)
        old = Definition() if job is None else (job.wish or job).definition
        what = Definition(old.recurring, old.trigger, keep, old.timeout, old.handler or "x", body)
        expected = self.version(data, member)
        due = 0 if delay is None else self.now + delay
        answer = self.send(data, "job_put", packed(member, as_record(what), due, mode=EDIT, expected=expected))
        assert int(answer[1]) == self.model.put(self.now, member, what, due, EDIT, expected)

    @rule(data=st.data(), only=st.sampled_from(["", "", "dead"]))
    def delete(self, data: st.DataObject, only: str) -> None:
        member = self.any_member(data)
        answer = self.send(data, "job_delete", only, codec.encode([member]))
        assert answer[1].decode() == self.model.delete(member, only)

    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        member = self.any_member(data)
        assert self.send(data, "job_pause", member)[1] == self.model.pause(self.now, member)

    @rule(data=st.data(), delay=st.none() | delays)
    def resume(self, data: st.DataObject, delay: int | None) -> None:
        member = self.any_member(data)
        expected, due = self.version(data, member), 0 if delay is None else self.now + delay
        answer = self.send(data, "job_resume", member, expected, due)
        assert answer[1] == self.model.resume(member, expected, due)

    @rule(data=st.data(), this_run=st.booleans())
    def cancel(self, data: st.DataObject, this_run: bool) -> None:
        member = self.any_member(data)
        job = self.model.jobs.get(member)
        due = data.draw(st.sampled_from([job.due, job.due + 1]), "due") if job and this_run else 0
        answer = self.send(data, "job_cancel", member, due)
        assert answer[1] == self.model.cancel(self.now, member, due)
        if answer[1] == 2:
            assert answer[2:] == [job.owner.encode(), job.token]

    @rule(data=st.data(), member=members, ago=st.sampled_from([0, 0, 1000]))
    def fire(self, data: st.DataObject, member: str, ago: int) -> None:
        due = self.now - ago if ago else 0
        answer = self.send(data, "job_fire", member, codec.encode([due]))
        assert (answer[2] if answer[1] else None) == self.model.fire(self.now, member, due)

    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        member = self.any_member(data)
        assert self.send(data, "job_revive", codec.encode([member]))[1].decode() == self.model.revive(self.now, member)

    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        member = self.any_member(data)
        assert self.send(data, "job_unpark", member)[1] == self.model.unpark(member)

    # Workers

    def send_claim(self, data: st.DataObject, name: str, owner: str, last: Any) -> Any:
        known = b"".join(codec.handler_digest(handler).to_bytes(4, "big") for handler in sorted(WORKERS[owner]))
        return self.send(data, name, owner, self.now, known, 0, last, session=f"{owner}:claim")

    @rule(data=st.data(), owner=workers, limit=st.sampled_from([1, 2, 100]))
    def claim(self, data: st.DataObject, owner: str, limit: int) -> None:
        found = self.model.due_now(self.now)[:limit]
        eligible = set(self.model.parked_for(self.now, WORKERS[owner]))
        all_parked = [job for job in self.model.jobs.values() if job.stage == "parked"]
        answer = self.send_claim(data, "run_claim", owner, limit)
        room = limit - len(self.known(owner, found))
        some = self.claimed(owner, answer, found)
        assert set(some) <= eligible
        assert len(some) <= room
        if len(all_parked) <= room:
            assert set(some) == eligible
        due = self.model.due_now(self.now)
        waiting = [job.score for job in self.model.jobs.values() if job.stage == "waiting"]
        assert (answer[6], answer[8]) == (min(waiting, default=-1), len(due))

    @rule(data=st.data(), owner=workers, named=st.lists(members, min_size=1, max_size=3))
    def claim_by_id(self, data: st.DataObject, owner: str, named: list[str]) -> None:
        due = set(self.model.due_now(self.now))
        found = [member for member in dict.fromkeys(named) if member in due]
        parked = self.model.parked_for(self.now, WORKERS[owner])
        eligible = [member for member in dict.fromkeys(named) if member in parked]
        answer = self.send_claim(data, "run_claim_ids", owner, codec.encode(named))
        assert self.claimed(owner, answer, found) == eligible

    def known(self, owner: str, found: list[str]) -> list[str]:
        return [member for member in found if self.model.jobs[member].definition.handler in WORKERS[owner]]

    def claimed(self, owner: str, answer: Any, found: list[str]) -> list[str]:
        """Check a claim's answer against the model. Those that came from `parked`."""
        _, now, token, keys, records, raws, _, parkings, _ = answer
        taken = self.known(owner, found)
        names = [key.decode() for key in keys]
        assert names[: len(taken)] == taken
        assert (now, parkings) == (self.now, len(found) - len(taken))
        assert all(self.model.jobs[member].score <= self.now for member in taken)
        parked = names[len(taken) :]
        if names:
            assert token > self.fence
            self.fence = token
        self.model.claim(self.now, owner, WORKERS[owner], token, found, parked)
        for key, record, raw in zip(keys, records, raws, strict=True):
            job, entry = self.model.jobs[key.decode()], read_entry(raw)
            claim = Claim("line", 0, key, token, job.due, job.attempt, job.recoveries, job.cancelled, job.score, record)
            assert (entry.due, entry.attempt, entry.recoveries) == (claim.due, claim.attempt, claim.recoveries)
            self.claims = [*self.claims[-12:], (owner, claim)]
        return parked

    def some_claims(self, data: st.DataObject, owner: str) -> list[Claim]:
        """Of this worker, also long lost ones; now and then those of another, which it does not hold."""
        mine = [claim for by, claim in self.claims if by == owner or data.draw(st.integers(0, 9), "not mine") == 0]
        if not mine:
            return []
        picked = data.draw(st.lists(st.sampled_from(range(len(mine))), min_size=1, max_size=3, unique=True), "claims")
        return list({claim.key: claim for claim in (mine[i] for i in picked)}.values())

    def settle(self, data: st.DataObject, verb: str, owner: str, items: list[tuple[Claim, Item]]) -> list[Claim]:
        """Those that were held."""
        if not items:
            return []
        call = self.runs[owner].settle(verb, self.queue, 0, [item for _, item in items])
        held = [claim for claim, _ in items if self.model.holds(claim.member, owner, claim.token)]
        answer = self.send(data, f"run_{verb}", *call.args, session=call.session)
        assert answer[1] == [claim.key for claim, _ in items if claim not in held]
        self.model.calls += 1
        return held

    @rule(data=st.data(), owner=workers, steps=st.integers(0, 3), outcome=st.integers(0, 3))
    def finish(self, data: st.DataObject, owner: str, steps: int, outcome: int) -> None:
        def ending(claim: Claim) -> tuple[int, int, int]:
            header = codec.decode_header(claim.record)
            return claim.due + 1000 * steps if header.recurring and steps else 0, outcome, header.keep

        items = [(claim, finish_item(claim, *ending(claim))) for claim in self.some_claims(data, owner)]
        for claim in self.settle(data, "finish", owner, items):
            self.model.finish(self.now, claim.member, *ending(claim))
        if items:
            self.model.forget(self.now)

    @rule(data=st.data(), owner=workers, delay=st.integers(0, 3000))
    def retry(self, data: st.DataObject, owner: str, delay: int) -> None:
        items = [(claim, retry_item(claim, delay, ERROR)) for claim in self.some_claims(data, owner)]
        for claim in self.settle(data, "retry", owner, items):
            self.model.retry(self.now, claim.member, delay)
        if items:
            self.model.forget(self.now)

    @rule(data=st.data(), owner=workers)
    def release(self, data: st.DataObject, owner: str) -> None:
        items = [(claim, release_item(claim)) for claim in self.some_claims(data, owner)]
        for claim in self.settle(data, "release", owner, items):
            self.model.release(self.now, claim.member)

    @rule(data=st.data(), owner=workers, verb=st.sampled_from(["bury", "park"]))
    def bury_or_park(self, data: st.DataObject, owner: str, verb: str) -> None:
        items = [(claim, failed_item(claim, ERROR)) for claim in self.some_claims(data, owner)]
        for claim in self.settle(data, verb, owner, items):
            getattr(self.model, verb)(self.now, claim.member)

    @rule(data=st.data(), owner=workers, by=st.integers(0, 5000))
    def extend(self, data: st.DataObject, owner: str, by: int) -> None:
        for claim in self.some_claims(data, owner)[:1]:
            answer = self.send(data, "run_extend", owner, claim.key, claim.token, by)
            held = self.model.holds(claim.member, owner, claim.token)
            assert answer[1] == (self.now + by if held else 0)
            if held:
                self.model.extend(self.now, claim.member, by)

    @rule(owner=workers)
    def crash(self, owner: str) -> None:
        self.claims = [(by, claim) for by, claim in self.claims if by != owner]

    @rule(data=st.data(), dead=workers)
    def recover_by_owner(self, data: st.DataObject, dead: str) -> None:
        answer = self.send(data, "run_recover", dead, "0", 0, 1000, session="w3:recover")
        assert answer[1] == b"0"
        self.recovered(answer, [member for member, job in self.model.jobs.items() if job.owner == dead])

    @rule(data=st.data(), overdue=st.sampled_from([0, 1000]))
    def recover_by_deadline(self, data: st.DataObject, overdue: int) -> None:
        answer = self.send(data, "run_recover", "", "0", overdue, 1000, session="w3:recover")
        late = self.now - overdue
        over = [m for m, job in self.model.jobs.items() if job.stage == "working" and job.score <= late]
        self.recovered(answer, over)

    def recovered(self, answer: Any, expected: list[str]) -> None:
        assert sorted(key.decode() for key in answer[2]) == sorted(expected)
        self.model.calls += bool(expected)
        for member in expected:
            self.model.recover(self.now, member)

    # What must hold after each step

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        with self.client.pipeline(transaction=False) as pipe:
            for key in ("jobs", "claims", "errors", "results"):
                pipe.hgetall(self.keys[key])
            for key in (*STAGE_KEYS, "done"):
                pipe.zrange(self.keys[key], 0, -1, withscores=True)
            pipe.hget(self.keys["meta"], "seq")
            pipe.xlen(self.keys["events"])
            records, raws, errors, results, *sets, seq, events = pipe.execute()
        stages = dict(zip((*STAGE_KEYS, "done"), map(dict, sets), strict=True))
        self.each_job_is_in_one_stage(records, stages)
        entries = {key: read_entry(raw) for key, raw in raws.items()}
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

    def each_job_is_in_one_stage(self, records: dict[bytes, bytes], stages: dict[str, dict[bytes, float]]) -> None:
        placed = sorted(key for stage in STAGE_KEYS for key in stages[stage])
        assert placed == sorted(records)
        assert sorted(key.decode() for key in records) == sorted(self.model.jobs)

    def same(self, key: bytes, record: bytes, entry: Any, stages: dict[str, dict[bytes, float]]) -> None:
        job, header, spec = self.model.jobs[key.decode()], codec.decode_header(record), codec.decode_spec(record)
        score = stages[job.stage][key]
        assert score == job.score
        run = (entry.due, entry.attempt, entry.recoveries) if entry else (score, 1, 0)
        assert run == (job.due, job.attempt, job.recoveries)
        assert (header.succeeded, header.failed, header.attempts) == (job.succeeded, job.failed, job.attempts)
        held = Definition(header.recurring, header.trigger, header.keep, header.timeout, spec.name, spec.args[0])
        assert (held, header.version) == (job.definition, job.version)
        if entry:
            assert (entry.token, entry.owner) == (job.token, job.owner)
        pending = codec.decode_header(entry.pending) if entry and entry.pending else None
        assert (pending and pending.version) == (job.wish and job.wish.version)


def test_any_sequence_of_calls_keeps_the_invariants(valkey: Server):
    class OnServer(Calls):
        server = valkey

    run_state_machine_as_test(
        OnServer,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
