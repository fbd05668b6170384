"""Keys that hold another kind of data than Tocsin keeps there: which they are, and how they are moved out of the way.

Somebody else writes to Tocsin's keys then. The server only says that some command met the wrong kind of data.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from redis.exceptions import RedisError

from tocsin.model.errors import StoreError, WrongKeyType
from tocsin.store.connection.address import Address
from tocsin.store.connection.errors import is_wrong_type, translate
from tocsin.store.keys import TYPES, Keys
from tocsin.store.open_queue import OpenQueue
from tocsin.store.scripts.script import script
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.kinds")

# So many keys are looked at to name one.
MOST = 2000


async def misused(client: Any, kept: Mapping[str, str]) -> dict[str, str]:
    """Of these keys, by what they should hold, those that hold something else, and what that is."""
    if not kept:
        return {}
    async with client.pipeline(transaction=False) as pipe:
        for key in kept:
            pipe.type(key)
        found = [kind.decode() for kind in await pipe.execute()]
    return {key: kind for key, kind in zip(kept, found, strict=True) if kind not in ("none", kept[key])}


def of_partition(queue: OpenQueue, partition: int) -> Iterator[tuple[str, str]]:
    """Its keys, and what each should hold."""
    return ((key, TYPES[base]) for base, key in queue.keys[partition].items())


def of_all(keys: Keys, queues: Iterable[OpenQueue]) -> Iterator[tuple[str, str]]:
    yield from keys.types_of_fleet().items()
    for queue in queues:
        yield keys.bell(queue.name), TYPES["bell"]
        for partition in range(queue.partitions):
            yield from of_partition(queue, partition)


async def explain(client: Any, error: Exception, address: Address, kept: Iterable[tuple[str, str]]) -> StoreError:
    """What the server said, as one of our errors. If some command met the wrong kind of data, the error names the first
    of these keys that holds some."""
    if is_wrong_type(error):
        with contextlib.suppress(RedisError, OSError):
            looked_at = dict(itertools.islice(kept, MOST))
            for key, kind in (await misused(client, looked_at)).items():
                return WrongKeyType(key, kind, looked_at[key])
    return translate(error, address)


def aside(key: str) -> str:
    """Where it goes: to the same slot of a cluster, also where the name has no hash tag."""
    return f"{key}:set-aside" if "{" in key else f"{{{key}}}:set-aside"


async def set_aside(client: Any, key: str, kept: str) -> bool:
    """Unless it holds what it should by now."""
    return _say(key, await script("key_set_aside")(client, [key, aside(key)], [kept]))


def set_aside_blocking(client: Any, key: str, kept: str) -> bool:
    return _say(key, script("key_set_aside").blocking(client, [key, aside(key)], [kept]))


def _say(key: str, held: bytes) -> bool:
    if held:
        log.error("a key held another kind of data and was set aside", key=key, held=held.decode(), to=aside(key))
    return bool(held)
