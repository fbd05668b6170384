"""Settings of queues: caps, rates and weights, as code declares them and operators change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.model import msgpack
from tocsin.model.errors import (
    QueueRepartitioned,
)
from tocsin.model.queue import SETTINGS, Queue, parse_rate, refuse_limits_on_partitions
from tocsin.store.numbers import is_whole, number
from tocsin.store.store import OpenQueue, Store


async def open_and_declare(store: Store, queue: Queue) -> OpenQueue:
    """Open the queue, and put the settings that code declares into force where no operator has set others."""
    opened = await store.open_queue(queue)
    while opened.declared != queue.settings:
        await store.shared.ask(("declare", queue.name), lambda: _declare(store, opened, queue))
    return opened


async def _declare(store: Store, opened: OpenQueue, queue: Queue) -> None:
    await update(store, opened, queue.settings, {}, operator=False)
    opened.declared = queue.settings


async def update(
    store: Store, queue: OpenQueue, settings: Mapping[str, str], weights: Mapping[str, str], *, operator: bool
) -> None:
    """Change the settings that differ, in all partitions. Code does not change what an operator has set."""
    items = msgpack.encode([part for name, value in settings.items() for part in _fields(name, value)])
    shares = msgpack.encode([part for pair in weights.items() for part in pair])
    while True:
        layout = queue.layout
        wanted = [name for name, value in settings.items() if value]
        refuse_limits_on_partitions(queue.queue, wanted if operator else await _left_to_code(store, queue, wanted))
        try:
            for partition in range(queue.partitions):
                args, more = ["1" if operator else "", items, shares], True
                # Resting tenants may go on under their new limits: a call wakes at most a thousand of them.
                while more:
                    queue.raise_if_repartitioned(layout)
                    more = (await store.change("queue_update", queue, partition, *args))[1]
                    args = ["1" if operator else "", msgpack.encode([]), msgpack.encode([])]
            return
        except QueueRepartitioned:
            continue


async def settings_of(store: Store, queue: OpenQueue) -> dict[str, str]:
    """The settings that have a value."""
    meta = queue.keys[0]["meta"]
    found = await store.run_repeatable(lambda c: c.hmget(meta, SETTINGS))
    known = zip(SETTINGS, found, strict=True)
    return {name: value.decode(errors="replace") for name, value in known if value is not None}


async def weights_of(store: Store, queue: OpenQueue) -> dict[str, float]:
    found = await store.run_repeatable(lambda c: c.hgetall(queue.keys[0]["weights"]))
    return {tenant.decode(errors="replace"): number(weight) or 1.0 for tenant, weight in found.items()}


async def _left_to_code(store: Store, queue: OpenQueue, settings: list[str]) -> list[str]:
    """The settings that no operator has set."""
    if not settings or queue.partitions == 1:
        return settings
    meta = queue.keys[0]["meta"]
    found = await store.run_repeatable(lambda c: c.hmget(meta, [f"set:{name}" for name in settings]))
    return [name for name, set_by in zip(settings, found, strict=True) if set_by is None]


def shown(settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings as a person reads them."""
    return {name: _shown(name, value) for name, value in settings.items()}


def _shown(name: str, value: str) -> Any:
    if not is_whole(value.encode(errors="replace")):
        return value
    return f"{int(value) / 1000:g}s" if name == "aging" else int(value)


def _fields(name: str, value: str) -> list[str]:
    """The fields of `meta` for a setting: field, the setting it belongs to, value, and so on."""
    fields = [name, name, value]
    if name in ("rate", "tenant_rate"):
        prefix = name.removesuffix("rate")
        rate = parse_rate(value) if value else None
        for part in ("every", "burst"):
            fields += [f"{prefix}{part}", name, "" if rate is None else repr(getattr(rate, part))]
    return fields
