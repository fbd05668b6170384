"""The opening half of `Tocsin`: where the server is, and the connection to it."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any, Self

from tocsin.app.blocking import BlockingApp
from tocsin.app.declarations import Declarations
from tocsin.app.declaring import DeclaringCalls
from tocsin.app.dependencies import DependentWriter, carry_on
from tocsin.app.lookup import Lookup
from tocsin.config import Config, load_config
from tocsin.config.rules import keep_of, longest_of
from tocsin.model.clock import Clock, ServerClock
from tocsin.model.errors import StoreError, TocsinError
from tocsin.store.connection.pool import ConnectionSettings
from tocsin.store.embedded.server import EmbeddedServer, default_folder
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.fleet import BellRinger, Fleet
from tocsin.store.transitions.jobs import Jobs
from tocsin.telemetry.logs import get_logger
from tocsin.upkeep.outbox_carrier import OutboxCarrier

log = get_logger("tocsin.config")


def find_server(url: str | None, config: Config) -> str | EmbeddedServer:
    """The address as given, else $TOCSIN_URL, else the configured one, else an embedded server."""
    found = url or os.environ.get("TOCSIN_URL") or config.redis.connection.url
    return found or EmbeddedServer(default_folder())


class AppConnection(DeclaringCalls):
    """Declares, and opens and closes the store."""

    def __init__(
        self,
        url: str | None = None,
        *,
        data: str | Path | None = None,
        prefix: str | None = None,
        hash_tag: str | None = None,
        config: Config | str | Path | None = None,
        clock: Clock | None = None,
        registry: Declarations | None = None,
    ) -> None:
        """What is not given here is as the configuration says: that of the file `config`, or `Config` itself."""
        super().__init__(registry)
        self._url, self._data = url, data
        self._prefix, self._hash_tag, self._clock = prefix, hash_tag, clock
        self._given_config = config
        self._config: Config | None = None
        self._store: Store | None = None
        self._made_jobs: Jobs | None = None
        # Connections belong to one event loop: the blocking calls have an app of their own, with the same handlers.
        self.sync = BlockingApp(self.elsewhere)

    def elsewhere(self, **changes: Any) -> Self:
        """The same declarations on another server, or in another namespace."""
        kept: dict[str, Any] = {
            "prefix": self._prefix, "hash_tag": self._hash_tag, "clock": self._clock, "config": self._given_config
        }  # fmt: skip
        if not {"url", "data"} & changes.keys():
            kept |= {"url": self._url, "data": self._data}
        return type(self)(**{**kept, **changes}, registry=self._registry)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises StoreUnavailable or StoreRefused with what to do."""
        if self._store is not None:
            raise TocsinError("this app is open already")
        config = self.config
        server = find_server(self._url, config) if self._data is None else EmbeddedServer(Path(self._data))
        store = store_of(server, config, self._prefix, self._hash_tag, self._clock)
        await store.open()
        self._store = store
        self._fleet = Fleet(store)
        self._ringer = BellRinger(self._fleet)

    @property
    def config(self) -> Config:
        """Read when first needed. Raises InvalidConfig with all that is wrong."""
        if self._config is None:
            given = self._given_config
            self._config = given if isinstance(given, Config) else _read(given)
        return self._config

    async def close(self) -> None:
        """Disconnect, when the puts under way have ended."""
        if self._store is not None:
            try:
                await self._store.putter.quiet()
                await self._ringer.quiet()
            finally:
                # Also when they were cancelled with the event loop.
                await self._store.close()
                self._store = self._made_jobs = None

    @functools.cached_property
    def _default_keep(self) -> int:
        """For how many seconds `enqueue` keeps outcomes."""
        return keep_of(self.config.results.keep)

    @property
    def _largest_arguments(self) -> int:
        return self.config.limits.arguments_bytes

    @functools.cached_property
    def _longest_delivery(self) -> float:
        """Seconds that a request or a message may be given."""
        return longest_of(self.config.http.max_timeout)

    @property
    def _limits(self) -> dict[str, Any]:
        """What `options.plan` checks each job against."""
        return {"largest": self._largest_arguments, "longest_s": self._longest_delivery}

    @property
    def store(self) -> Store:
        if self._store is None:
            raise TocsinError("the app is not open: use `async with app:` around this call, or app.sync")
        return self._store

    @property
    def _jobs(self) -> Jobs:
        """One for all calls: each handle keeps it."""
        if self._made_jobs is None:
            self._made_jobs = Jobs(self.store, self._carry)
        return self._made_jobs

    @property
    def _carrier(self) -> OutboxCarrier:
        return OutboxCarrier(self.store, self.store.clock, self._ringer.ring)

    @property
    def _dependents(self) -> DependentWriter:
        return DependentWriter(self.store, self._lookup, self._jobs, self._carrier)

    async def _carry(self, queue: OpenQueue, partition: int) -> None:
        """Tell those who wait for what ended there. What cannot be told now is told by a worker."""
        carrier = self._carrier
        carrier.note_filled(queue, partition)
        with contextlib.suppress(StoreError):
            await carry_on(carrier)

    @property
    def _lookup(self) -> Lookup:
        return Lookup(self.store, self._jobs)


def _read(path: str | Path | None) -> Config:
    loaded = load_config(None if path is None else str(path))
    for warning in loaded.warnings:
        log.warning("configuration", warning=warning)
    return loaded.config


def store_of(
    server: str | EmbeddedServer, config: Config, prefix: str | None, hash_tag: str | None, clock: Clock | None
) -> Store:
    scheduler, connection = config.redis.scheduler, config.redis.connection
    keys = scheduler.keys
    names = {"waiting": keys.waiting_set, "working": keys.working_set, "cleanup-leader": keys.cleanup_leader_key}
    return Store(
        server,
        prefix=keys.prefix if prefix is None else prefix,
        hash_tag=keys.hash_tag if hash_tag is None else hash_tag,
        names=names,
        clock=clock or ServerClock(scheduler.time_cache_duration_ms / 1000),
        connections=ConnectionSettings(
            max_total=connection.pool.max_total,
            max_idle=connection.pool.max_idle,
            min_idle=connection.pool.min_idle,
            max_wait_s=connection.pool.max_wait_millis / 1000,
            timeout_s=connection.timeout / 1000,
            connect_timeout_s=connection.connect_timeout / 1000,
        ),
        results_max=config.results.max,
    )
