"""Any sequence of calls keeps the invariants of queues of order priority and fair, and each claim takes who is next."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.support.call_values import EVENTS, WORKERS, definitions, workers
from tests.support.model_job import Definition
from tests.support.ordered_model import BANDS, FairModel, OrderedModel
from tests.support.servers import Server
from tests.support.state_model import Model
from tests.support.store_calls import Calls, try_any_sequence
from tocsin.model import msgpack
from tocsin.store.formats import decode_claim_entry

TENANTS = ("t1", "t2", "t3")
ORDERED_EVENTS = [what for what in EVENTS if what != "claim_by_id"] + ["claim"] * 3 + ["limits_change"] * 2
LIMITS: dict[str, list[str]] = {"max_active": ["", "1", "2", "4"], "aging": ["", "0", "700"]}


class OrderedCalls(Calls):
    """The calls of any queue, by priority."""

    order = "priority"
    members = ("a", "b", "c", "d", "e", "f")
    definitions = st.builds(
        lambda what, **lane: replace(what, **lane),
        definitions,
        band=st.sampled_from([0, 2, 2, 4]),
        tenant=st.sampled_from(TENANTS),
        cost=st.sampled_from([1, 1, 3]),
    )
    limits = LIMITS
    model: OrderedModel

    def make_model(self) -> Model:
        return OrderedModel()

    @rule(data=st.data(), what=st.sampled_from(ORDERED_EVENTS))
    def something_happens(self, data: st.DataObject, what: str) -> None:
        getattr(self, what)(data)

    def edited(self, data: st.DataObject, old: Definition) -> Definition:
        """Also reprioritised, or given to another tenant."""
        lane = {"band": data.draw(st.sampled_from([0, 1, 2]), "band"), "tenant": data.draw(st.sampled_from(TENANTS))}
        return replace(super().edited(data, old), **data.draw(st.sampled_from([{}, lane])))

    def limits_change(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.limits)), "setting")
        value = data.draw(st.sampled_from(self.limits[name]), "value")
        before = self.client.hmget(self.keys["meta"], name, f"set:{name}")
        self.send(data, "queue_update", "1", msgpack.encode([name, name, value]), msgpack.encode([]))
        self.model.settings.pop(name, None)
        if value:
            self.model.settings[name] = float(value)
        changed = before != [value.encode() or None, b"1"]
        self.model.calls += self.model.stand_up() or changed

    def claim(self, data: st.DataObject) -> None:
        self.now += data.draw(st.sampled_from([0, 0, 1500]), "after")
        owner, limit = data.draw(workers, "owner"), data.draw(st.sampled_from([1, 2, 3, 100]), "limit")
        self.claim_as(data, owner, limit, data.draw(st.sampled_from([0, 1, 1000]), "suspects"))

    def claim_as(self, data: st.DataObject, owner: str, limit: int, suspects: int) -> int:
        answer = self.send_claim(data, "run_claim_ordered", owner, suspects, limit)
        picked = self.model.pick(WORKERS[owner], limit, suspects)
        assert msgpack.decode(answer[3]) == picked.taken
        assert answer[7] == len(picked.parked)
        found = [*picked.taken, *picked.parked]
        self.claimed(owner, answer, found)
        full = self.model.is_full()
        assert answer[6] == (-1 if full else self.model.or_again(self.model.head()))
        assert answer[8] == (0 if full else len(self.model.ready()))
        return answer[2]

    # What must hold after each step

    def ready(self) -> dict[bytes, float]:
        self.model.end_call()
        found: dict[bytes, float] = {}
        for band in BANDS:
            for key, score in self.client.zrange(self.keys[f"ready{band}"], 0, -1, withscores=True):
                job = self.model.jobs[key.decode()]
                assert (job.definition.band, job.place) == (band, (score % 1) * 4096)
                assert key not in found
                found[key] = int(score)
        return found

    @invariant()
    def an_entry_is_kept_as_long_as_it_says_something(self) -> None:
        self.model.end_call()
        raws = self.client.hgetall(self.keys["claims"])
        assert {key.decode() for key in raws} == self.model.entries
        for key, raw in raws.items():
            # Of what has no attempt behind it, all that an entry says is where it stood.
            job = self.model.jobs[key.decode()]
            assert struct.unpack_from(">H", raw, 8)[0] == (job.place or 0)


class FairCalls(OrderedCalls):
    """And with tenants, each in its turn."""

    order = "fair"
    limits = LIMITS | {"tenant_max_active": ["", "1", "2"]}
    model: FairModel

    def make_model(self) -> Model:
        return FairModel()

    @rule(data=st.data(), what=st.sampled_from([*ORDERED_EVENTS, "weights_change"]))
    def something_happens(self, data: st.DataObject, what: str) -> None:
        getattr(self, what)(data)

    def weights_change(self, data: st.DataObject) -> None:
        tenant, weight = data.draw(st.sampled_from(TENANTS)), data.draw(st.sampled_from([0.5, 1.0, 3.0]), "weight")
        self.send(data, "queue_update", "1", msgpack.encode([]), msgpack.encode([tenant, repr(weight)]))
        self.model.calls += self.model.stand_up() or self.model.weights.get(tenant) != weight
        self.model.weights[tenant] = weight

    def ready(self) -> dict[bytes, float]:
        self.model.end_call()
        spots = self.client.hgetall(self.keys["spots"])
        found: dict[bytes, float] = {}
        for band in BANDS:
            for member, score in self.client.zrange(self.keys[f"ready{band}"], 0, -1, withscores=True):
                tenant, due, place, key = member.split(b"\0", 3)
                job = self.model.jobs[key.decode()]
                assert (job.definition.band, job.definition.tenant, job.place) == (band, tenant.decode(), int(place))
                assert spots.pop(key) == b"%d%s\0%s\0%s" % (band, tenant, due, place)
                assert score == 0
                found[key] = int(due)
        assert spots == {}
        return found

    @invariant()
    def everybody_has_the_turns_that_are_due(self) -> None:
        """Who has work and does not rest is in the turns; who has none may be until its turn comes."""
        self.model.end_call()
        for band in BANDS:
            turns = dict(self.client.zrange(self.keys[f"turns{band}"], 0, -1, withscores=True))
            assert {tenant.decode(): tag for tenant, tag in turns.items()} == self.model.turns[band]
            jobs = (self.model.jobs[member].definition for member in self.model.ready())
            due = {what.tenant for what in jobs if what.band == band}
            assert due - self.model.resting <= set(self.model.turns[band])
        resting = self.client.zrange(self.keys["resting"], 0, -1, withscores=True)
        assert {(tenant.decode(), until) for tenant, until in resting} == {
            (tenant, float("inf")) for tenant in self.model.resting
        }

    @invariant()
    def who_is_counted_is_working(self) -> None:
        self.model.end_call()
        claims, working = self.client.hgetall(self.keys["claims"]), self.client.zrange(self.keys["working"], 0, -1)
        held = {key.decode(): tenant for key in working if (tenant := tenant_of(claims[key])) is not None}
        assert held == self.model.shares
        shares = list(held.values())
        states = self.client.hgetall(self.keys["tenants"])
        counted = {tenant.decode(): struct.unpack_from(">I", raw)[0] for tenant, raw in states.items()}
        assert {tenant: n for tenant, n in counted.items() if n} == {name: shares.count(name) for name in set(shares)}
        assert all(decode_claim_entry(raw).token > 0 or tenant_of(raw) is None for raw in claims.values())


def tenant_of(raw: bytes) -> str | None:
    """For whose cap it counts, if for one."""
    at = 24 + raw[23]
    return raw[at + 1 : at + 1 + raw[at]].decode().removeprefix("=") if raw[at] else None


@pytest.mark.parametrize("calls", [OrderedCalls, FairCalls])
def test_any_sequence_of_calls_keeps_the_order(calls, valkey: Server):
    class OnServer(calls):
        server = valkey

    try_any_sequence(OnServer, examples=25, steps=40)
