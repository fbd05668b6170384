"""A worker keeps nothing of the requests that it has sent."""

from __future__ import annotations

from tests.support.http_receiver import Receiver
from tests.support.memory_use import kept_by
from tests.support.waiting import eventually
from tocsin import Http, Tocsin

# Many, because the receiver, which is in this process too, holds the last request of each connection.
RUNS, SIZE = 200, 20_000


async def test_the_body_of_a_request_is_freed_when_it_was_sent(tocsin_app: Tocsin, receiver: Receiver) -> None:
    worker = await tocsin_app.worker()
    await worker.start()

    async def send_some() -> None:
        so_far = worker.pool.ran
        for _ in range(RUNS):
            await tocsin_app.enqueue(Http("POST", receiver.url, body="x" * SIZE))
        await eventually(
            lambda: worker.pool.ran == so_far + RUNS and worker.finisher.idle(), "all were sent", within=60
        )
        receiver.received.clear()

    try:
        await send_some()
        assert await kept_by(send_some) < RUNS * SIZE / 4
    finally:
        await worker.stop()
