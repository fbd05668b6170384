"""The way of a call from a transition to the server is short."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import tocsin
from tests.support.one_queue import Line
from tocsin.store.connection.pool import SingleServerClient

OURS = str(Path(tocsin.__file__).parent)
# Including the transition itself.
MOST_FRAMES = 5

CHANGES: dict[str, Callable[[Line], Awaitable[Any]]] = {
    "put": lambda line: line.put("b"),
    "pause": lambda line: line.jobs.pause(line.queue, "a"),
    "delete": lambda line: line.jobs.delete(line.queue, "a"),
    "read": lambda line: line.jobs.get_all(line.queue, 0, [b"a"]),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_few_functions_are_between_a_transition_and_the_server(
    line: Line, change: str, monkeypatch: pytest.MonkeyPatch
):
    await line.put("a")
    depths: list[int] = []
    execute = SingleServerClient.execute_command

    async def counted(self: SingleServerClient, *args: Any, **options: Any) -> Any:
        depths.append(sum(frame.filename.startswith(OURS) for frame in traceback.extract_stack()))
        return await execute(self, *args, **options)

    monkeypatch.setattr(SingleServerClient, "execute_command", counted)
    await CHANGES[change](line)
    assert depths
    assert max(depths) <= MOST_FRAMES
