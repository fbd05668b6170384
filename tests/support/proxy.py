"""A proxy that cuts connections: what happens to a call when its reply, or the call itself, is lost or late."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol, Self

from tocsin.store.scripts.script import script

CUTS = ("before", "after")


class Listening(Protocol):
    @property
    def socket(self) -> Path: ...


class Proxy:
    """Passes everything on until the next call of one script: around that it cuts the connection."""

    def __init__(self, server: Listening) -> None:
        self.cuts = 0
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-", dir="/tmp"))
        self._server = server
        self._when, self._mark, self._passing = "", b"", 0
        self._off = False
        self._let_go = asyncio.Event()
        self._callers: set[asyncio.StreamWriter] = set()
        self._busy: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def _socket(self) -> Path:
        # Clients of some servers look for a name.
        return self.folder / self._server.socket.name

    def cut(self, when: str, name: str, order: str = "due") -> None:
        """`before` it reaches the server, or `after` the server ran it and before its reply is heard."""
        self.cut_at(when, script(name, order).sha.encode())

    def cut_at(self, when: str, mark: bytes, *, passing: int = 0) -> None:
        """Around the next call in which the mark stands, after as many others with it have passed."""
        self._when, self._mark, self._passing = when, mark, passing

    def hold(self, name: str, order: str = "due") -> None:
        """Let the next call of this script reach the server, and keep its reply back until `let_go`."""
        self.cut_at("held", script(name, order).sha.encode())
        self._let_go.clear()

    def let_go(self) -> None:
        self._let_go.set()

    def cut_off(self) -> None:
        """Everything, and let nobody in until it is mended."""
        self._off = True
        for writer in self._callers:
            writer.transport.abort()

    def mend(self) -> None:
        self._off = False

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_unix_server(self._serve, str(self._socket))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)
        shutil.rmtree(self.folder)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._off:
            writer.close()
            return
        self._busy.add(task)
        self._callers.add(writer)
        answers, calls = await asyncio.open_unix_connection(str(self._server.socket))
        deaf, held = asyncio.Event(), asyncio.Event()
        back = asyncio.create_task(self._answer(answers, writer, deaf, held))
        try:
            while data := await reader.read(1 << 20):
                if self._is_the_one(data):
                    if self._when == "before":
                        break
                    (held if self._when == "held" else deaf).set()
                calls.write(data)
                if deaf.is_set():
                    await back
                    break
        except ConnectionError:
            pass
        finally:
            back.cancel()
            calls.close()
            writer.close()
            self._callers.discard(writer)
            self._busy.discard(task)

    async def _answer(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, deaf: asyncio.Event, held: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while (data := await answers.read(1 << 20)) and not deaf.is_set():
                if held.is_set():
                    await self._let_go.wait()
                    held.clear()
                writer.write(data)
            # Some clients wait until the server hangs up.
            writer.close()

    def _is_the_one(self, data: bytes) -> bool:
        if not self._mark or self._mark not in data:
            return False
        if self._passing:
            self._passing -= 1
            return False
        self.cuts += 1
        self._mark = b""
        return True


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between any two stores: epochs, sessions and the ids of events."""
    same: dict[str, Any] = {}
    for key, value in found.items():
        if key.startswith("meta"):
            same[key] = {name: kept for name, kept in value.items() if name != b"epoch"}
        elif key.startswith("events"):
            same[key] = [fields for _, fields in value]
        elif not key.startswith("sessions"):
            same[key] = value
    return same
