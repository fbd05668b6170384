"""A receiver behind uvicorn: `receiver_process PORT ADDRESS NAME FOLDER [SECRET PATH]`.

It notes in the folder what it does. To `/slow` it answers when there is a file `go_on`. With a secret, requests to
that path must be signed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn

from tests.support.once_process import note
from tocsin.receive import Once, Receiver


class Shop:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["method"] == "POST":
            await receive()
            await self._order(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"%d" % os.getpid(), "more_body": True})
        await send({"type": "http.response.body"})

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        note(f"{self._folder}/notes", "up")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _order(self, path: str) -> None:
        note(f"{self._folder}/notes", "begun")
        while path == "/slow" and not (self._folder / "go_on").exists():
            await asyncio.sleep(0.01)
        note(f"{self._folder}/notes", "effect")


def main(port: str, where: str, name: str, folder: str, secret: str | None = None, *paths: str) -> None:
    once = Once(where, name=name, lease="5s")
    options: dict[str, Any] = {"wait": "300ms", "body_timeout": "500ms", "largest_body": 10_000}
    app = Receiver(Shop(Path(folder)), once, secrets=secret, paths=paths or None, **options)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error")


if __name__ == "__main__":
    main(*sys.argv[1:])
