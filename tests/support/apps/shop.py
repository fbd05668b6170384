"""A program as users write it, for `tocsin worker shop:app`.

Tests import it as `tests.support.apps.shop`, so its names are given.
"""

import asyncio

from tocsin import Retry, Tocsin

# Nobody listens there: tests say --url.
app = Tocsin("redis://127.0.0.1:1")
app.queue("mail", partitions=2)


@app.agent(every="1h", name="shop.tick")
async def tick() -> None:
    """There so that a worker has an agent to register."""


@app.job(queue="mail", name="shop.quick")
async def quick(n: int) -> int:
    return n


@app.job(queue="mail", name="shop.slow")
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


@app.job(queue="mail", name="shop.bad", retry=Retry(1, "10ms"))
async def bad() -> None:
    raise ValueError("no [good] at\nall")


@app.job(queue="mail", name="shop.hopeless")
async def hopeless() -> None:
    raise ValueError("never")
