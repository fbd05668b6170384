"""Where runs go that leave this process: requests, messages, programs."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from tocsin.engine.handlers import Deliver, Handler
from tocsin.model.grants import Grants
from tocsin.model.target import HTTP, MESSAGE, SUBPROCESS
from tocsin.store.store import Store
from tocsin.targets.builtin import handler_named
from tocsin.targets.host_gates import HostGates
from tocsin.targets.http.target import HttpTarget
from tocsin.targets.messages.broker import is_installed
from tocsin.targets.messages.target import MessageTarget
from tocsin.targets.secrets import Secrets
from tocsin.targets.subprocess.target import SubprocessTarget


class TargetPermissions(Struct, frozen=True):
    """Where jobs may go, as the operator says."""

    http_allow: tuple[str, ...] = ()
    message_allow: tuple[str, ...] = ()
    max_per_host: int = 50
    # Of a request or a message, whatever its job says.
    max_timeout_s: float = 600.0
    # Secrets that jobs may name, and their hosts; programs that they may start, and their variables.
    secrets: Grants = {}
    programs: Grants = {}
    # The other side may not make us wait longer than this.
    longest_wait_s: float = 600.0


class ExternalTargets:
    """The targets of one worker, and what they hold open."""

    def __init__(self, store: Store, reach: TargetPermissions, gates: HostGates) -> None:
        secrets, prefix, clock = Secrets(reach.secrets), store.keys.prefix, store.clock
        longest = reach.max_timeout_s
        self._http = HttpTarget(prefix, clock, gates, secrets, reach.longest_wait_s, reach.http_allow, longest)
        self._messages = MessageTarget(store, gates, secrets, reach.message_allow, longest)
        self._programs = SubprocessTarget(prefix, clock, gates, secrets, reach.programs) if reach.programs else None

    def targets(self) -> Iterator[tuple[Handler, Deliver]]:
        """Those that this worker can deliver to: what is missing here is not known here, and left to others."""
        yield _handler(HTTP), self._http
        for broker, name in MESSAGE.items():
            if is_installed(broker):
                yield _handler(name), self._messages
        if self._programs is not None:
            yield _handler(SUBPROCESS), self._programs

    async def close(self) -> None:
        await self._http.close()
        await self._messages.close()


def _handler(name: str) -> Handler:
    found = handler_named(name)
    assert found is not None
    return found
