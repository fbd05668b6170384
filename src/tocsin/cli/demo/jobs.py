"""The example jobs of `tocsin demo`. They read like a small shop: stock, orders, reminders, an index, reports."""

from __future__ import annotations

import asyncio

from tocsin.app import Tocsin
from tocsin.model.job import Retry
from tocsin.model.run import Run

app = Tocsin()
app.queue("shop", partitions=1)

REPORT_S = 3.0


@app.agent(every="2s", name="count stock")
async def count_stock() -> None:
    """An agent runs for ever, one run at a time, each on one of the workers."""
    await asyncio.sleep(0.05)


@app.job(queue="shop", name="remind")
async def remind(who: str) -> str:
    """The demo enqueues it with a delay."""
    return f"{who} was reminded"


@app.job(queue="shop", name="order", retry=Retry(retries=3, interval="500ms", jitter="100ms"))
async def order(what: str, run: Run) -> str:
    """Fails twice: the supplier answers at the third attempt."""
    if run.attempt < 3:
        raise ConnectionError("the supplier does not answer")
    return f"{what} is on its way"


@app.job(queue="shop", name="index", batch=50)
async def index(runs: list[Run]) -> list[int]:
    """Takes up to 50 records in one call, and returns how many it got as each one's result."""
    await asyncio.sleep(0.05)
    return [len(runs)] * len(runs)


@app.job(queue="shop", name="report", timeout="1m")
async def report(number: int) -> str:
    """Takes a while, so that a killed worker leaves unfinished reports behind."""
    await asyncio.sleep(REPORT_S)
    return f"report {number} is written"
