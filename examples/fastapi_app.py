"""A web server whose handlers put jobs. Run it, and beside it as many workers as the jobs need:

pip install 'tocsin[embedded]' fastapi uvicorn
uvicorn fastapi_app:web
tocsin worker fastapi_app:jobs
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from tocsin import Retry, Tocsin

jobs = Tocsin()  # $TOCSIN_URL, or an embedded server that both processes share


@jobs.job(timeout="30s", retry=Retry(retries=3, interval="1s"))
async def welcome(name: str) -> str:
    return f"Dear {name}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with jobs:
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/users/{name}", status_code=202)
async def sign_up(name: str) -> dict[str, Any]:
    # The same user twice is one job.
    handle = await jobs.enqueue(welcome, name, id=f"welcome-{name}")
    return {"job": handle.id, "new": handle.new}
