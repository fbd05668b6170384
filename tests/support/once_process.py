"""A receiver in a process of its own: `once_process WHAT ADDRESS NAME KEY FILE`, the file for its effects.

crowd: twenty callers at once, whose answers it prints. die: begins, says so, and is at work until it is killed.
within: writes its effect in the transaction of the key; `within-die` is killed before the commit.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tocsin.receive import Once


def note(file: str, word: str) -> None:
    """One write, so that lines of several processes do not mix."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{word}\n".encode())
    os.close(handle)


async def crowd(once: Once, key: str, file: str) -> None:
    async def work() -> int:
        note(file, "effect")
        return os.getpid()

    sys.stdout.write(json.dumps(await asyncio.gather(*(once(key, work, wait="60s") for _ in range(20)))))


async def die(once: Once, key: str, file: str) -> None:
    async def work() -> None:
        note(file, "effect")
        await asyncio.Event().wait()

    await once(key, work)


async def within(where: str, name: str, key: str, file: str, *, dies: bool) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(where)
    once = Once(engine, name=name)
    await once.setup()
    async with engine.begin() as connection:

        async def work() -> int:
            await connection.execute(text("INSERT INTO effects VALUES (:name)"), {"name": name})
            return os.getpid()

        sys.stdout.write(json.dumps(await once.within(connection, key, work)))
        if dies:
            note(file, "written")
            await asyncio.Event().wait()
    await engine.dispose()


async def main(what: str, where: str, name: str, key: str, file: str) -> None:
    if what.startswith("within"):
        await within(where, name, key, file, dies=what.endswith("die"))
        return
    # Who is to die leaves the key soon; the others must not lose it on a busy machine.
    async with Once(where, name=name, lease="2s" if what == "die" else "30s") as once:
        await {"crowd": crowd, "die": die}[what](once, key, file)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
