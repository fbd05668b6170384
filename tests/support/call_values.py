"""What calls of store_calls.py are made with: members, workers, definitions, delays."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.model_job import Definition
from tests.support.records import record as a_record
from tocsin.model import msgpack

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
    served = {"band": what.band, "tenant": what.tenant, "cost": what.cost}
    return a_record(every=what.trigger or None, recurring=what.recurring, **about, **served)
