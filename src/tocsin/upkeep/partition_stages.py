"""A stage of one partition: the place that a walk over all queues visits page by page."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tocsin.store.store import OpenQueue


class PartitionStage(Struct, frozen=True):
    queue: OpenQueue
    # Repartitioning changes the layout, so the place in the old layout equals none in the new one.
    layout: str
    partition: int
    stage: str


def partition_stages(queues: Sequence[OpenQueue], stages: Sequence[str]) -> list[PartitionStage]:
    return [
        PartitionStage(queue, queue.layout, partition, stage)
        for queue in queues
        for partition in range(queue.partitions)
        for stage in stages
    ]
