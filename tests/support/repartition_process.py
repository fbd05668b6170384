"""A change of partitions that dies half-way: `repartition_process URL PREFIX QUEUE PARTITIONS`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tocsin import Tocsin


def die_half_way(done: int, total: int) -> None:
    if done * 2 >= total:
        os.kill(os.getpid(), signal.SIGKILL)


async def move(url: str, prefix: str, queue: str, partitions: int) -> None:
    async with Tocsin(url, prefix=prefix) as app:
        await app.repartition_queue(queue, partitions, die_half_way)


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(move(given[0], given[1], given[2], int(given[3])))
