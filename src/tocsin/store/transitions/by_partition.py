"""Changing many jobs at once: each in the partition where it is when the call is made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from tocsin.model.errors import QueueRepartitioned
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store

Item = TypeVar("Item")


async def change_by_partition(
    store: Store,
    name: str,
    queue: OpenQueue,
    items: Sequence[Item],
    key: Callable[[Item], bytes],
    packed: Callable[[Sequence[Item]], Sequence[Any]],
) -> AsyncIterator[tuple[int, list[int], list[Any]]]:
    """Call the script for all items, partition by partition. Yields the partition, the indexes of the items, and the
    answer of each call. `key`: the job that an item is about; `packed`: the arguments for some items.

    If the queue is repartitioned meanwhile, the items that are left go to their new partitions. The items of one
    partition go in their order, and so do those about one job."""
    left = list(range(len(items)))
    while left:
        layout, by_partition = queue.layout, dict[int, list[int]]()
        for n in left:
            by_partition.setdefault(queue.partition_of_key(key(items[n])), []).append(n)
        left = []
        calls = [(partition, some) for partition, all_of_it in by_partition.items() for some in _batches(all_of_it)]
        for at, (partition, some) in enumerate(calls):
            try:
                # The queue may have been repartitioned while the last call waited.
                queue.raise_if_repartitioned(layout)
                answer = await store.change(name, queue, partition, *packed([items[n] for n in some]))
            except QueueRepartitioned:
                left = sorted(n for _, rest in calls[at:] for n in rest)
                break
            yield partition, some, answer


def _batches(numbers: list[int]) -> list[list[int]]:
    return [numbers[first : first + LARGEST_BATCH] for first in range(0, len(numbers), LARGEST_BATCH)]
