"""Calls of workers: runs are claimed, settled, extended and brought back. Part of the machine in store_calls.py."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.support.call_values import (
    ERROR,
    WORKERS,
    members,
    workers,
)
from tocsin.model import msgpack
from tocsin.model.ids import EXTRA
from tocsin.model.outcome import NOT_ENDED
from tocsin.model.record import decode_header, handler_digest
from tocsin.model.run import Claim
from tocsin.store.formats import DUE_MASK
from tocsin.store.store import OpenQueue
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


class RunCalls:
    now: int
    model: Any
    queue: OpenQueue
    send: Callable[..., Any]
    runs: dict[str, Runs]
    claims: list[tuple[str, Claim]]
    fence: int

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
