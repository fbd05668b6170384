"""A web server with a worker in its lifespan: `python -m tests.support.web_server_process URL PREFIX`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import uvicorn

from tocsin import Tocsin

tocsin = Tocsin(sys.argv[1], prefix=sys.argv[2])


@tocsin.job
async def greet() -> bytes:
    return b"hello\n"


async def lifespan(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Says `hello` when both are up, and `bye` when the worker has ended after the server."""
    await receive()
    async with tocsin:
        working = asyncio.create_task(tocsin.work())
        hello = await (await tocsin.enqueue(greet)).result()
        await send({"type": "lifespan.startup.complete"})
        while not server.started:
            await asyncio.sleep(0.01)
        os.write(1, hello)
        await receive()
        outlived = not working.done()
        working.cancel()
        await asyncio.wait([working])
    if outlived:
        os.write(1, b"bye\n")
    await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    server = uvicorn.Server(uvicorn.Config(lifespan, port=0, log_level="warning"))
    server.run()
