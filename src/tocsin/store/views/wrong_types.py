"""Keys with another type of data than Tocsin keeps there: finds them, and moves them out of the way.

Then another program writes to Tocsin's keys. The server only says that some command met the wrong type.
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

# How many keys to look at before giving up on naming one.
MOST = 2000


async def misused(client: Any, kept: Mapping[str, str]) -> dict[str, str]:
    """`kept`: keys, and the types that they should have. Returns those of another type, with that."""
    if not kept:
        return {}
    async with client.pipeline(transaction=False) as pipe:
        for key in kept:
            pipe.type(key)
        found = [kind.decode() for kind in await pipe.execute()]
    return {key: kind for key, kind in zip(kept, found, strict=True) if kind not in ("none", kept[key])}


def of_partition(queue: OpenQueue, partition: int) -> Iterator[tuple[str, str]]:
    """The keys of a partition, and the types that they should have."""
    return ((key, TYPES[base]) for base, key in queue.keys[partition].items())


def of_all(keys: Keys, queues: Iterable[OpenQueue]) -> Iterator[tuple[str, str]]:
    yield from keys.types_of_fleet().items()
    for queue in queues:
        yield keys.bell(queue.name), TYPES["bell"]
        for partition in range(queue.partitions):
            yield from of_partition(queue, partition)


async def explain(client: Any, error: Exception, address: Address, kept: Iterable[tuple[str, str]]) -> StoreError:
    """The server's error, as one of ours. If a command met the wrong type of data, it names the first of these keys
    that has one."""
    if is_wrong_type(error):
        with contextlib.suppress(RedisError, OSError):
            looked_at = dict(itertools.islice(kept, MOST))
            for key, kind in (await misused(client, looked_at)).items():
                return WrongKeyType(key, kind, looked_at[key])
    return translate(error, address)


def aside(key: str) -> str:
    """The new name of a key that is set aside: in the same slot of a cluster, even if the name has no hash tag."""
    return f"{key}:set-aside" if "{" in key else f"{{{key}}}:set-aside"


async def set_aside(client: Any, key: str, kept: str) -> bool:
    """Rename the key, unless it has its own type by now."""
    return _say(key, await script("key_set_aside")(client, [key, aside(key)], [kept]))


def set_aside_blocking(client: Any, key: str, kept: str) -> bool:
    return _say(key, script("key_set_aside").blocking(client, [key, aside(key)], [kept]))


def _say(key: str, held: bytes) -> bool:
    if held:
        log.error("a key held another kind of data and was set aside", key=key, held=held.decode(), to=aside(key))
    return bool(held)
