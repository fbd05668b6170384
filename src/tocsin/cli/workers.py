"""`tocsin workers`: which workers run, and in which state and health."""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.cli.options import Given, Watch, connected
from tocsin.cli.printing import Listing, iso, show, span
from tocsin.inspection.inspector import WorkerView
from tocsin.model.durations import Millis


async def list_workers(*, watch: Watch = False, options: Given) -> int:
    """List all workers, what they do, and whether they are alive."""
    async with connected(options) as (_, inspector):

        async def fetch() -> tuple[list[WorkerView], Millis]:
            return await inspector.workers(listen=True), await inspector.now()

        def as_json(found: tuple[list[WorkerView], Millis]) -> list[dict[str, Any]]:
            return [worker_dict(view) for view in found[0]]

        return await show(options, watch, fetch, lambda found: worker_listing(*found), as_json)


def worker_dict(view: WorkerView) -> dict[str, Any]:
    about: dict[str, Any] = msgspec.to_builtins(view.about)
    status: dict[str, Any] = {"state": view.state, "health": view.health}
    if view.alive is False:
        status |= {"reasons": view.reasons, "signals": []}
    beat = None if view.age is None else round(view.age / 1000, 1)
    return {
        "id": view.id,
        "alive": view.alive,
        "last_beat_s": beat,
        **about,
        **status,
        "started": iso(about["started"]),
    }


def worker_listing(views: list[WorkerView], now: Millis) -> Listing:
    columns = [
        "worker",
        "state",
        "health",
        "up",
        "last beat",
        "#running",
        "#finished",
        "#concurrency",
        "#stuck",
        "queues",
        "#handlers",
    ]
    rows = [
        [
            view.id,
            view.state,
            "; ".join([view.health, *view.reasons]),
            span(max(0, now - view.about.started) / 1000),
            None if view.age is None else f"{span(view.age / 1000)} ago",
            view.about.running,
            view.about.finished,
            view.about.concurrency,
            view.about.stuck,
            ",".join(view.about.queues),
            len(view.about.handlers),
        ]
        for view in views
    ]
    return Listing(columns, rows, empty="no worker is running: start one with `tocsin worker MODULE:APP`")
