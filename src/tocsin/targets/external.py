"""The targets outside this process: HTTP requests, messages and programs."""

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
    """Which hosts, secrets and programs jobs may use, as the operator configured them."""

    http_allow: tuple[str, ...] = ()
    message_allow: tuple[str, ...] = ()
    max_per_host: int = 50
    # For a request or a message, whatever its job asks for.
    max_timeout_s: float = 600.0
    # Secrets that jobs may name, with the hosts they may go to; programs that jobs may start, with the variables that
    # jobs may set.
    secrets: Grants = {}
    programs: Grants = {}
    # The longest Retry-After of a receiver that is obeyed.
    longest_wait_s: float = 600.0


class ExternalTargets:
    """The targets of one worker, and the connections that they hold open."""

    def __init__(self, store: Store, permissions: TargetPermissions, gates: HostGates) -> None:
        secrets, prefix, clock = Secrets(permissions.secrets), store.keys.prefix, store.clock
        longest, programs = permissions.max_timeout_s, permissions.programs
        self._http = HttpTarget(
            namespace=prefix,
            clock=clock,
            gates=gates,
            secrets=secrets,
            longest_wait_s=permissions.longest_wait_s,
            allow=permissions.http_allow,
            max_timeout_s=longest,
        )
        self._messages = MessageTarget(store, gates, secrets, permissions.message_allow, longest)
        self._programs = SubprocessTarget(prefix, clock, gates, secrets, programs) if programs else None

    def targets(self) -> Iterator[tuple[Handler, Deliver]]:
        """The targets that this worker has. It does not claim runs of the others, so other workers get them."""
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
