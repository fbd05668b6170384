"""Calls to the server: a script is sent once, or repeated while the server is away.

Repeating is safe. A call that changes state has a session and a seq, and the server answers a repeated seq as it did
the first time. Everything else only reads, or writes the same thing again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from tocsin.model.clock import Clock, monotonic
from tocsin.model.durations import Millis
from tocsin.model.errors import StoreError, StoreFull, StoreUnavailable
from tocsin.store.connection.address import Address
from tocsin.store.connection.client import Client
from tocsin.store.connection.errors import translate
from tocsin.store.connection.pool import SingleServerClient
from tocsin.store.connection.shared_calls import SharedCalls
from tocsin.store.formats import kept_session
from tocsin.store.keys import Keys
from tocsin.store.open_queue import Call, OpenQueue
from tocsin.store.scripts.reload import ScriptReloader
from tocsin.store.scripts.script import Script, script
from tocsin.store.views import wrong_types

# How long a program's call is repeated while the server is away, and the first pause between two tries.
PATIENCE_S = 5.0
PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class Calls:
    """The calls of one store."""

    def __init__(
        self, address: Address, keys: Keys, clock: Clock, revive_server: Callable[[], Awaitable[None]]
    ) -> None:
        """`revive_server`: starts a server of our own again if it has died."""
        self.address = address
        self.keys = keys
        self.clock = clock
        self.client: Client = None  # type: ignore[assignment]  # opened by Store.open()
        self.scripts = ScriptReloader(address)
        # One call for all callers that ask for the same thing at the same time.
        self.shared = SharedCalls()
        # The queues that this process has open, by name. The queue directory fills this.
        self.open_queues: dict[str, OpenQueue] = {}
        self._revive_server = revive_server
        self._fleet_keys = keys.fleet()

    async def now(self) -> Millis:
        """The server's time."""
        given = self.clock.override()
        if given is not None:
            return given
        seconds, micros = await self.run_repeatable(lambda c: c.time())
        return int(seconds) * 1000 + int(micros) // 1000

    # Commands that may be repeated

    async def run_repeatable(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        """A command that may be sent again, whatever came of the first. Tried again for a while if the server is
        away."""
        return await self._retry_while_away(self.run_once, command)

    async def run_fleet_script(self, what: Script, *args: Any) -> Any:
        """A script on keys of the whole fleet, which may be sent again."""
        keys = [self._fleet_keys[key] for key in what.keys]
        return await self.run_repeatable(lambda c: what(c, keys, args))

    async def run_once(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            return await command(self.client)
        except (RedisError, OSError) as error:
            known = wrong_types.of_all(self.keys, self.open_queues.values())
            raise await self._explained(error, known) from error

    async def _retry_while_away(self, attempt: Callable[[Any], Awaitable[Any]], of: Any) -> Any:
        """`attempt(of)`, tried again for PATIENCE_S while the server is away."""
        give_up = monotonic() + PATIENCE_S
        pause = PAUSE_S
        while True:
            try:
                return await attempt(of)
            except StoreFull:
                raise
            except StoreUnavailable:
                if monotonic() + pause > give_up:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)
                with contextlib.suppress(StoreError):
                    await self._revive_server()

    # Calls with a session and a seq

    async def call(self, call: Call) -> list[Any]:
        """Once. Raises StoreUnavailable if the answer did not come: repeat it with the same seq."""
        keys, args = call.queue.keys_of(call.script, call.partition), self._arguments(call)
        try:
            answer = await call.script(self.client, keys, args)
        except (RedisError, OSError) as error:
            raise await self._explained(error, wrong_types.of_partition(call.queue, call.partition)) from error
        return call.checked(answer)

    async def call_all(self, calls: Sequence[Call]) -> list[list[Any] | StoreError]:
        """Several at once, each with its own answer or error; one round trip where the server is not a cluster."""
        client = self.client
        if not isinstance(client, SingleServerClient) or any(call.layout != call.queue.layout for call in calls):
            answers = await asyncio.gather(*map(self.call, calls), return_exceptions=True)
            return [_error_or_answer(answer) for answer in answers]
        try:
            answers = await client.send_together([self._command(call) for call in calls])
        except (RedisError, OSError) as error:
            failed = translate(error, self.address)
            return [failed for _ in calls]
        return [await self._read_answer(call, answer) for call, answer in zip(calls, answers, strict=True)]

    async def call_each(self, what: Script, calls: Sequence[tuple[list[str], list[Any]]]) -> list[Any]:
        """One script on several lists of keys; one round trip where the server is not a cluster. Raises the first
        error."""
        client = self.client
        if not isinstance(client, SingleServerClient):
            return await asyncio.gather(*(what(client, keys, args) for keys, args in calls))
        answers = await client.send_together([("EVALSHA", what.sha, len(keys), *keys, *args) for keys, args in calls])
        for n, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                answers[n] = await what(client, *calls[n])
            elif isinstance(answer, RedisError):
                self.scripts.count(answer)
                raise answer
        return answers

    async def find_kept_answer(self, call: Call) -> list[Any] | None:
        """The answer to a call on a queue that was repartitioned since; None if the call was never made."""
        kept = kept_session(call.session.encode(), call.queue.former[call.layout][call.partition])
        look, sessions = script("session_answer"), call.queue.keys[0]["sessions"]
        answer = await self.run_repeatable(lambda c: look(c, [sessions], [kept, call.seq]))
        return answer[1] if answer[0] else None

    async def _read_answer(self, call: Call, answer: Any) -> list[Any] | StoreError:
        try:
            if isinstance(answer, NoScriptError):
                return await self.call(call)
            if isinstance(answer, (RedisError, OSError)):
                self.scripts.count(answer)
                return await self._explained(answer, wrong_types.of_partition(call.queue, call.partition))
            return call.checked(answer)
        except StoreError as error:
            return error

    async def _explained(self, error: Exception, kept: Iterable[tuple[str, str]]) -> StoreError:
        """`kept`: the keys that the call is about, and the types that they should have."""
        return await wrong_types.explain(self.client, error, self.address, kept)

    def _command(self, call: Call) -> tuple[Any, ...]:
        keys = call.queue.keys_of(call.script, call.partition)
        return "EVALSHA", call.script.sha, len(keys), *keys, *self._arguments(call)

    def _arguments(self, call: Call) -> list[Any]:
        call.queue.raise_if_repartitioned(call.layout)
        now = self.clock.override()
        return [
            call.queue.epochs[call.partition],
            "" if now is None else now,
            call.session,
            call.seq,
            *call.args,
        ]


def _error_or_answer(answer: Any) -> list[Any] | StoreError:
    if isinstance(answer, BaseException) and not isinstance(answer, StoreError):
        raise answer
    return answer  # type: ignore[no-any-return]
