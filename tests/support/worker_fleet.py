"""Real worker processes on a real server, and what they did."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.support.python_path import PYTHON_PATH
from tests.support.waiting import eventually
from tests.support.worker_handlers import FOLDER, ORDINARY, declare
from tocsin import Tocsin
from tocsin.store.store import OpenQueue
from tocsin.store.transitions.fleet import Fleet as Roll

# In the ratio of the defaults, and as quick as a busy machine can keep up with: a late look starts over.
QUICK = {"beat_s": 0.3, "ttl_s": 1.2}


class Entry(msgspec.Struct, frozen=True):
    """A line of the diary."""

    what: str
    pid: int
    at: float
    run: str = ""
    attempt: int = 0
    recoveries: int = 0
    token: int = 0
    handler: str = ""
    # Of the lines `ready` and `stats`.
    worker: str = ""
    ran: int = 0
    lost: int = 0
    recovered: int = 0

    @property
    def job(self) -> str:
        return self.run.rpartition("@")[0]

    @property
    def due(self) -> int:
        return int(self.run.rpartition("@")[2])


class Diary:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._entries: list[Entry] = []
        self._decoder = msgspec.json.Decoder(Entry)

    def entries(self, *what: str, pid: int | None = None) -> list[Entry]:
        self._read_on()
        return [e for e in self._entries if (not what or e.what in what) and (pid is None or e.pid == pid)]

    def started(self, pid: int | None = None) -> set[str]:
        """The jobs that were started, by anybody or by this process."""
        return {entry.job for entry in self.entries("start", pid=pid)}

    def starts_of(self, job: str) -> list[Entry]:
        return [entry for entry in self.entries("start") if entry.job == job]

    def starts_by_job(self) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        for entry in self.entries("start"):
            found.setdefault(entry.job, []).append(entry)
        return found

    def started_twice(self) -> dict[str, list[Entry]]:
        """By run id: each start of the runs that have more than one."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries("start"):
            found.setdefault(entry.run, []).append(entry)
        return {run: starts for run, starts in found.items() if len(starts) > 1}

    def _read_on(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        if whole:
            self._read += len(whole) + 1
            self._entries += map(self._decoder.decode, whole.splitlines())


class Member:
    """One worker process."""

    def __init__(self, order: dict[str, Any], folder: Path, diary: Diary) -> None:
        self._diary = diary
        env = os.environ | {"PYTHONPATH": PYTHON_PATH, FOLDER: str(folder)}
        command = [sys.executable, "-m", order["program"], json.dumps(order | {"parent": os.getpid()})]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def is_ready(self) -> bool:
        if not self.alive:
            raise AssertionError(
                f"worker {self.pid} ended with {self._process.returncode}; see the log beside the diary"
            )
        return bool(self._diary.entries("ready", pid=self.pid))

    @property
    def mark(self) -> str:
        """What all its incarnations have in their names."""
        return f":{self.pid}:"

    @property
    def first_name(self) -> str:
        """Of its first incarnation."""
        return self._diary.entries("ready", pid=self.pid)[0].worker

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        if self.alive:
            self._process.kill()
            self._process.wait()

    async def end(self) -> None:
        self.send(signal.SIGTERM)
        assert await self.ended() == 0

    async def ended(self, within: float = 30.0) -> int:
        """Its exit code."""
        await eventually(lambda: not self.alive, f"worker {self.pid} ends", within=within)
        return int(self._process.returncode)

    async def stats(self) -> Entry:
        before = len(self._diary.entries("stats", pid=self.pid))
        self.send(signal.SIGUSR1)
        await eventually(
            lambda: len(self._diary.entries("stats", pid=self.pid)) > before, "the worker tells its stats", within=30
        )
        return self._diary.entries("stats", pid=self.pid)[-1]


class Fleet:
    """A namespace of its own on a server, an app to put jobs with, and the workers that run them."""

    def __init__(self, url: str, folder: Path, *, hash_tag: str = "", handlers: tuple[str, ...] = ORDINARY) -> None:
        self.folder = folder
        self.diary = Diary(folder / "diary")
        self.members: list[Member] = []
        self._order: dict[str, Any] = {
            "program": "tests.support.worker_process",
            "url": url,
            "prefix": f"chaos-{secrets.token_hex(4)}:",
            "hash_tag": hash_tag,
            "handlers": handlers,
            "agent_every": None,
            "queues": ["default"],
            "concurrency": 20,
            "settings": QUICK,
            "reach": {},
            "grace": 10,
        }
        self.app = Tocsin(url, prefix=self._order["prefix"], hash_tag=hash_tag)
        self.does = declare(self.app, handlers, None)

    async def __aenter__(self) -> Self:
        await self.app.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()
        await self.app.close()

    def launch(self, **order: Any) -> Member:
        """Start a worker and do not wait for it."""
        member = Member(self._order | order, self.folder, self.diary)
        self.members.append(member)
        return member

    async def start(self, n: int = 1, **order: Any) -> list[Member]:
        members = [self.launch(**order) for _ in range(n)]
        for member in members:
            await eventually(member.is_ready, "the worker is ready", within=30)
        return members

    def log(self) -> str:
        """What all its workers said."""
        return (self.folder / "log").read_text()

    def open_gate(self, gate: str, only: Member | None = None) -> None:
        name = f"gate-{gate}" if only is None else f"gate-{gate}-{only.pid}"
        (self.folder / name).touch()

    # What the server says

    async def queue(self, name: str = "default") -> OpenQueue:
        found = await self.app.store.find_queue(name)
        assert found is not None
        return found

    async def ask_each(self, command: str, key: str, *args: Any, queue: str = "default") -> list[Any]:
        """The answers of all partitions to one command on one of their keys."""
        opened, store = await self.queue(queue), self.app.store
        names = [keys[key] for keys in opened.keys]
        return [await store.run_repeatable(lambda c, k=name: c.execute_command(command, k, *args)) for name in names]

    async def count(self, counter: str, queue: str = "default") -> int:
        return sum(int(found or 0) for found in await self.ask_each("HGET", "meta", counter, queue=queue))

    async def left(self, queue: str = "default") -> int:
        """Jobs that have not ended: one-shots are forgotten when they do."""
        return sum(await self.ask_each("HLEN", "jobs", queue=queue))

    async def until_left(self, n: int, *, within: float, queue: str = "default") -> None:
        async def so_many() -> bool:
            return await self.left(queue) == n

        await eventually(so_many, f"all jobs but {n} have ended", within=within)

    async def all_done(self, *, within: float, queue: str = "default") -> None:
        await self.until_left(0, within=within, queue=queue)

    async def none_left_but(self, job: str, queue: str = "default") -> bool:
        return await self.left(queue) == 1 and await self.app.get(job, queue=queue) is not None

    async def is_in(self, stage: str, job: str) -> bool:
        found = await self.app.get(job)
        return found is not None and found.stage.value == stage

    async def held_by(self, owner: str, queue: str = "default") -> set[str]:
        """The jobs that are claimed and not settled by workers with this in their name."""
        claims = await self.ask_each("HGETALL", "claims", queue=queue)
        return {job.decode() for found in claims for job, claim in found.items() if owner.encode() in claim}

    async def alive(self) -> set[str]:
        """The names of the workers that nobody has buried."""
        return {worker.id for worker in await Roll(self.app.store).workers()}
