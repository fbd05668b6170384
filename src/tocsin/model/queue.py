"""Queues: their order, their partitions and their limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from tocsin.model.durations import Duration, millis
from tocsin.model.errors import InvalidArgument, did_you_mean

DEFAULT_QUEUE = "default"
AGENTS_QUEUE = "agents"
# One partition keeps the order exact and lets a worker serve hundreds of queues. It is enough until a queue holds very
# many jobs; docs/operate/sizing.md has the measurements.
DEFAULT_PARTITIONS = 1
MOST_PARTITIONS = 4096
MOST_WEIGHT = 1000
# Above OUTGROWN jobs in one partition each run costs the server 50 % more. ROOMY is the number to aim for.
OUTGROWN = 250_000
ROOMY = 100_000
ORDERS = ("due", "priority", "fair")

# A rate lets this many ms' worth of runs start at once: the runs that become due while a worker's call is under way.
BURST_MS = 100.0
_RATE = re.compile(r"\s*(\d+)\s*/\s*(\d*)\s*(ms|s|m|h|d)\s*")
# Limits that are counted in one place, so they need a queue of one partition.
COUNTED = ("max_active", "rate", "tenant_max_active", "tenant_rate")
# Settings that only queues of some orders have.
_ORDERED = {"aging": ("priority", "fair"), "tenant_max_active": ("fair",), "tenant_rate": ("fair",)}
SETTINGS = ("max_active", "rate", "tenant_max_active", "tenant_rate", "aging")


class Queue(Struct, frozen=True):
    """A queue as code or Redis describes it. Redis stores the order and the number of partitions, and code must agree
    with it until an operator changes the partitions. Settings declared in code hold until an operator changes them."""

    name: str
    order: Literal["due", "priority", "fair"] = "due"
    partitions: int = DEFAULT_PARTITIONS
    settings: dict[str, str] = {}
    # Whether code gives the number of partitions. If not, the queue keeps the partitions that it has.
    partitions_given: bool = True


class Rate(Struct, frozen=True):
    """One run per `every` ms; `burst` ms' worth of runs may start at once."""

    every: float
    burst: float


def queue_from_code(name: str, order: str, partitions: int | None, settings: dict[str, Any]) -> Queue:
    """Check a queue that a program declares. Settings that it leaves out (None) are not declared."""
    if order not in ORDERS:
        raise InvalidArgument(f"there is no order {order!r}; {did_you_mean(str(order), ORDERS)}")
    given_partitions = partitions is not None
    if partitions is None:
        partitions = DEFAULT_PARTITIONS
    if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidArgument(f"partitions must be a whole number from 1 to {MOST_PARTITIONS}, not {partitions!r}")
    queue = Queue(name, order, partitions)  # type: ignore[arg-type]
    given = {setting: value for setting, value in settings.items() if value is not None}
    return Queue(name, queue.order, partitions, settings_as_text(queue, given), given_partitions)


def outgrown(queue: Queue, jobs: int) -> str:
    """Advice to repartition, if the queue's partitions are too full and it may have more; else ''."""
    if jobs < OUTGROWN or queue.order != "due" or queue.name == AGENTS_QUEUE or queue.settings.keys() & set(COUNTED):
        return ""
    wanted = 1 << (queue.partitions * jobs // ROOMY).bit_length()
    return (
        f"queue {queue.name!r} holds {jobs} jobs in one partition, which makes each run more expensive: "
        f"`tocsin queues repartition {queue.name} {min(wanted, MOST_PARTITIONS)}`"
    )


def check_shares(weights: Mapping[str, int]) -> dict[str, int]:
    """Check how the queues of a worker share its permits. Raises InvalidArgument."""
    for name, weight in weights.items():
        if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= MOST_WEIGHT:
            raise InvalidArgument(f"the weight of queue {name!r} must be from 1 to {MOST_WEIGHT}, not {weight!r}")
    return dict(weights)


def settings_as_text(queue: Queue, settings: dict[str, Any]) -> dict[str, str]:
    """Check settings and return them as they are stored: text, '' for no limit. Raises InvalidArgument."""
    for name in settings:
        if name not in SETTINGS:
            raise InvalidArgument(f"a queue has no setting {name!r}; {did_you_mean(name, (*SETTINGS, 'weights'))}")
        orders = _ORDERED.get(name, ORDERS)
        if queue.order not in orders:
            raise InvalidArgument(
                f"{name} is for queues of order {' or '.join(orders)}: queue {queue.name!r} has order {queue.order!r}"
            )
    if queue.name == AGENTS_QUEUE and any(value is not None for value in settings.values()):
        raise InvalidArgument("the agents' queue has no limits: its workers' concurrency is one")
    refuse_limits_on_partitions(queue, [name for name, value in settings.items() if value is not None])
    return {name: "" if value is None else _text(name, value) for name, value in settings.items()}


def refuse_limits_on_partitions(queue: Queue, settings: Iterable[str]) -> None:
    """Raise InvalidArgument for a counted limit on a queue with several partitions."""
    for name in settings:
        if name in COUNTED and queue.partitions > 1:
            raise InvalidArgument(
                f"{name} needs a queue of one partition, {queue.name!r} has {queue.partitions}: declare it with "
                f"partitions=1, or run `tocsin queues repartition {queue.name} 1`"
            )


def _text(name: str, value: Any) -> str:
    if name.endswith("rate"):
        parse_rate(value)
        return str(value)
    if name == "aging":
        return str(millis(value, "aging"))
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise InvalidArgument(f"{name} must be a whole number from 1, or None for no limit, not {value!r}")
    return str(value)


def parse_rate(text: Any) -> Rate:
    """'100/s', '6000/m', '5/10s'."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None or not int(match[1]) or match[2] == "0":
        raise InvalidArgument(f"a rate is text like '100/s', '6000/m' or '5/10s', not {text!r}")
    period: Duration = f"{match[2] or 1}{match[3]}"
    every = millis(period, "the period of a rate") / int(match[1])
    return Rate(every, max(0.0, BURST_MS - every))


def check_weights(weights: Any) -> dict[str, str]:
    """Check tenants' weights and return them as they are stored. None removes a weight."""
    if not isinstance(weights, dict):
        raise InvalidArgument(f"weights are given by tenant, like {{'acme': 10}}, not {weights!r:.100}")
    checked: dict[str, str] = {}
    for tenant, weight in weights.items():
        if not isinstance(tenant, str) or "\0" in tenant or len(tenant.encode()) > 250:
            raise InvalidArgument(f"a tenant is text of at most 250 bytes without NUL, not {tenant!r:.100}")
        fits = isinstance(weight, (int, float)) and not isinstance(weight, bool) and 1e-6 <= weight <= 1e6
        if weight is not None and not fits:
            raise InvalidArgument(f"a weight is a number from 0.000001 to 1000000, or None, not {weight!r}")
        checked[tenant] = "" if weight is None else repr(float(weight))
    return checked
