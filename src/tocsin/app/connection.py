"""Where the app's server is, and the store that is connected to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tocsin.config import Config, load_config
from tocsin.model.clock import Clock, ServerClock
from tocsin.store.connection.pool import ConnectionSettings
from tocsin.store.embedded.server import EmbeddedServer, default_folder
from tocsin.store.store import Store
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.config")


class AppConnection:
    """The address and the names of keys as the program gave them; all else is as the configuration says."""

    def __init__(
        self,
        url: str | None,
        data: str | Path | None,
        config: Config | str | Path | None,
        *,
        prefix: str | None,
        hash_tag: str | None,
        clock: Clock | None,
    ) -> None:
        self._url, self._data = url, data
        self._given_config = config
        self._config: Config | None = None
        self._prefix, self._hash_tag, self._clock = prefix, hash_tag, clock

    def arguments(self, changes: dict[str, Any]) -> dict[str, Any]:
        """What `Tocsin` was called with, with these changes. Another server replaces `url` and `data` together."""
        kept: dict[str, Any] = {
            "prefix": self._prefix, "hash_tag": self._hash_tag, "clock": self._clock, "config": self._given_config
        }  # fmt: skip
        if not {"url", "data"} & changes.keys():
            kept |= {"url": self._url, "data": self._data}
        return kept | changes

    @property
    def config(self) -> Config:
        """Read when first needed. Raises InvalidConfig with all that is wrong."""
        if self._config is None:
            given = self._given_config
            self._config = given if isinstance(given, Config) else _read(given)
        return self._config

    async def open(self) -> Store:
        config = self.config
        server = find_server(self._url, config) if self._data is None else EmbeddedServer(Path(self._data))
        store = store_of(server, config, self._prefix, self._hash_tag, self._clock)
        await store.open()
        return store


def find_server(url: str | None, config: Config) -> str | EmbeddedServer:
    """The address as given, else $TOCSIN_URL, else the configured one, else an embedded server."""
    found = url or os.environ.get("TOCSIN_URL") or config.redis.connection.url
    return found or EmbeddedServer(default_folder())


def _read(path: str | Path | None) -> Config:
    loaded = load_config(None if path is None else str(path))
    for warning in loaded.warnings:
        log.warning("configuration", warning=warning)
    return loaded.config


def store_of(
    server: str | EmbeddedServer, config: Config, prefix: str | None, hash_tag: str | None, clock: Clock | None
) -> Store:
    """A store that is not open yet."""
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
