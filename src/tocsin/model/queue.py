"""Queues: their order, their partitions, and how much of them may run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from tocsin.model.durations import Duration, millis
from tocsin.model.errors import InvalidArgument, did_you_mean

DEFAULT_QUEUE = "default"
AGENTS_QUEUE = "agents"
# One is enough until a queue holds very many jobs, keeps its order exact, and lets a worker serve hundreds of queues;
# docs/operate/sizing.md has the measurements.
DEFAULT_PARTITIONS = 1
MOST_PARTITIONS = 4096
MOST_WEIGHT = 1000
# Jobs in one partition from where on each run costs the server half as much again, and how many then belong in one.
OUTGROWN = 250_000
ROOMY = 100_000
ORDERS = ("due", "priority", "fair")

# A rate lets so many ms' worth of runs start at once: what falls due while a worker is on its way to ask.
BURST_MS = 100.0
_RATE = re.compile(r"\s*(\d+)\s*/\s*(\d*)\s*(ms|s|m|h|d)\s*")
# What needs one line to be counted in.
COUNTED = ("max_active", "rate", "tenant_max_active", "tenant_rate")
# What only queues of some orders have.
_ORDERED = {"aging": ("priority", "fair"), "tenant_max_active": ("fair",), "tenant_rate": ("fair",)}
SETTINGS = ("max_active", "rate", "tenant_max_active", "tenant_rate", "aging")


class Queue(Struct, frozen=True):
    """A lane. Order and number of partitions live in Redis and code must agree, until an operator changes the
    partitions; of the settings, None for no limit, code only declares what holds until an operator changes it."""

    name: str
    order: Literal["due", "priority", "fair"] = "due"
    partitions: int = DEFAULT_PARTITIONS
    settings: dict[str, str] = {}
    # Whether code says how many partitions; otherwise the queue keeps those that it has.
    partitions_given: bool = True


class Rate(Struct, frozen=True):
    """A run each `every` ms, and how many ms' worth of them at once."""

    every: float
    burst: float


def queue_from_code(name: str, order: str, partitions: int | None, settings: dict[str, Any]) -> Queue:
    """What a program says of a queue, checked. The settings of those it leaves out are not declared."""
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
    """Advice, if a partition of the queue holds so many that more partitions would pay and are allowed; else ''."""
    if jobs < OUTGROWN or queue.order != "due" or queue.name == AGENTS_QUEUE or queue.settings.keys() & set(COUNTED):
        return ""
    wanted = 1 << (queue.partitions * jobs // ROOMY).bit_length()
    return (
        f"queue {queue.name!r} holds {jobs} jobs in one partition, which makes each run dearer: "
        f"`tocsin queues repartition {queue.name} {min(wanted, MOST_PARTITIONS)}`"
    )


def check_shares(weights: Mapping[str, int]) -> dict[str, int]:
    """How the queues of a worker share its permits. Raises InvalidArgument."""
    for name, weight in weights.items():
        if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= MOST_WEIGHT:
            raise InvalidArgument(f"the weight of queue {name!r} must be from 1 to {MOST_WEIGHT}, not {weight!r}")
    return dict(weights)


def settings_as_text(queue: Queue, settings: dict[str, Any]) -> dict[str, str]:
    """Settings as they are stored: text, '' for none. Raises InvalidArgument."""
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
    """Raise InvalidArgument for a limit on a queue that has no one line to count in."""
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
    """Tenants' weights as they are stored; None takes one back."""
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
