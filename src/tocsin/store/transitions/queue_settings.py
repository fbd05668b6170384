"""Queues' settings: how much of a queue may run, as it stands in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tocsin.model import codec
from tocsin.model.errors import (
    InvalidConfig,
    NodeUnavailable,
    QueueRepartitioned,
    QueueRepartitioning,
    StoreError,
    StoreUnavailable,
    WrongKeyType,
)
from tocsin.model.queue import SETTINGS, Queue, parse_rate, refuse_limits_on_partitions
from tocsin.store import queue_directory
from tocsin.store.numbers import is_whole, number
from tocsin.store.store import OpenQueue, Store


async def open_queue(store: Store, queue: Queue) -> OpenQueue:
    """Opened, and its settings as code declares them in force where no operator has set others."""
    opened = await store.open_queue(queue)
    while opened.declared != queue.settings:
        await store.shared.ask(("declare", queue.name), lambda: _declare(store, opened, queue))
    return opened


async def _declare(store: Store, opened: OpenQueue, queue: Queue) -> None:
    await update(store, opened, queue.settings, {}, operator=False)
    opened.declared = queue.settings


async def open_all(store: Store) -> list[OpenQueue]:
    """All that are registered, as they stand now; without those that are being repartitioned, or cannot be read."""
    opened, _ = await open_registered(store)
    return opened


async def open_registered(store: Store) -> tuple[list[OpenQueue], list[str]]:
    """The same, and the names of those that are being repartitioned, or on a node of a cluster that is away. Nobody
    waits for these, and an entry that cannot be read, or a partition that cannot be opened, is passed over: they may
    not stop work on other queues. The doctor reports all of them. Where the register itself is garbled, these are the
    queues that this process has open."""
    try:
        found = await store.read(lambda c: c.hgetall(store.keys.fleet()["queues"]))
    except WrongKeyType:
        return store.opened(), []
    entries = sorted((name.decode(errors="replace"), raw) for name, raw in found.items())
    opened = await asyncio.gather(*(_open_registered(store, name, raw) for name, raw in entries))
    moving = [name for (name, _), each in zip(entries, opened, strict=True) if isinstance(each, StoreError)]
    return [each for each in opened if isinstance(each, OpenQueue)], moving


async def _open_registered(store: Store, name: str, raw: bytes) -> OpenQueue | StoreError | None:
    try:
        entry = queue_directory.read(raw)
        if entry.moving is not None:
            return QueueRepartitioning(name, entry.moving.to)
        queue = await store.find_queue(name)
        if queue is not None and queue.layout != entry.move:
            await store.reopen(queue)
        return queue
    except (QueueRepartitioning, NodeUnavailable) as later:
        return later
    except StoreUnavailable:
        raise
    except (StoreError, InvalidConfig):
        return None


async def update(
    store: Store, queue: OpenQueue, settings: Mapping[str, str], weights: Mapping[str, str], *, operator: bool
) -> None:
    """Change what differs, in all partitions. What an operator has set, code leaves alone."""
    items = codec.encode([part for name, value in settings.items() for part in _fields(name, value)])
    shares = codec.encode([part for pair in weights.items() for part in pair])
    while True:
        layout = queue.layout
        wanted = [name for name, value in settings.items() if value]
        refuse_limits_on_partitions(queue.queue, wanted if operator else await _left_to_code(store, queue, wanted))
        try:
            for partition in range(queue.partitions):
                args, more = ["1" if operator else "", items, shares], True
                # Tenants who rest are asked to stand up, a thousand at a time: their new limits may let them.
                while more:
                    queue.expect(layout)
                    more = (await store.change("queue_update", queue, partition, *args))[1]
                    args = ["1" if operator else "", codec.encode([]), codec.encode([])]
            return
        except QueueRepartitioned:
            continue


async def settings_of(store: Store, queue: OpenQueue) -> dict[str, str]:
    """Those that are set."""
    meta = queue.keys[0]["meta"]
    found = await store.read(lambda c: c.hmget(meta, SETTINGS))
    known = zip(SETTINGS, found, strict=True)
    return {name: value.decode(errors="replace") for name, value in known if value is not None}


async def weights_of(store: Store, queue: OpenQueue) -> dict[str, float]:
    found = await store.read(lambda c: c.hgetall(queue.keys[0]["weights"]))
    return {tenant.decode(errors="replace"): number(weight) or 1.0 for tenant, weight in found.items()}


async def _left_to_code(store: Store, queue: OpenQueue, settings: list[str]) -> list[str]:
    """Those of the settings that no operator has set."""
    if not settings or queue.partitions == 1:
        return settings
    meta = queue.keys[0]["meta"]
    found = await store.read(lambda c: c.hmget(meta, [f"set:{name}" for name in settings]))
    return [name for name, set_by in zip(settings, found, strict=True) if set_by is None]


def shown(settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings as a person reads them."""
    return {name: _shown(name, value) for name, value in settings.items()}


def _shown(name: str, value: str) -> Any:
    if not is_whole(value.encode(errors="replace")):
        return value
    return f"{int(value) / 1000:g}s" if name == "aging" else int(value)


def _fields(name: str, value: str) -> list[str]:
    """What is stored for a setting: [field, the setting it belongs to, value]…"""
    fields = [name, name, value]
    if name in ("rate", "tenant_rate"):
        prefix = name.removesuffix("rate")
        rate = parse_rate(value) if value else None
        for part in ("every", "burst"):
            fields += [f"{prefix}{part}", name, "" if rate is None else repr(getattr(rate, part))]
    return fields
