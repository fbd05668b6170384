"""The opening half of `Tocsin`: where the server is, and the connection to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from tocsin.app.declaring import Declaring
from tocsin.app.lookup import Lookup
from tocsin.app.registry import Registry
from tocsin.app.sync import Sync
from tocsin.model.clock import Clock
from tocsin.model.errors import TocsinError
from tocsin.store.embedded import EmbeddedServer, default_folder
from tocsin.store.fleet import Fleet, Ringer
from tocsin.store.jobs import Jobs
from tocsin.store.store import Store


def find_server(url: str | None) -> str | EmbeddedServer:
    """The address as given, else $TOCSIN_URL, else an embedded server."""
    found = url or os.environ.get("TOCSIN_URL")
    return found or EmbeddedServer(default_folder())


class Opening(Declaring):
    """Declares, and opens and closes the store."""

    def __init__(
        self,
        url: str | None = None,
        *,
        data: str | Path | None = None,
        prefix: str = "",
        hash_tag: str = "",
        clock: Clock | None = None,
        registry: Registry | None = None,
    ) -> None:
        super().__init__(registry)
        self._url, self._data = url, data
        self._prefix, self._hash_tag, self._clock = prefix, hash_tag, clock
        self._store: Store | None = None
        # Connections belong to one event loop: the blocking calls have an app of their own, with the same handlers.
        self.sync = Sync(self.elsewhere)

    def elsewhere(self, **changes: Any) -> Self:
        """The same declarations on another server, or in another namespace."""
        kept: dict[str, Any] = {"prefix": self._prefix, "hash_tag": self._hash_tag, "clock": self._clock}
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
        server = find_server(self._url) if self._data is None else EmbeddedServer(Path(self._data))
        store = Store(server, prefix=self._prefix, hash_tag=self._hash_tag, clock=self._clock)
        await store.open()
        self._store = store
        self._fleet = Fleet(store)
        self._ringer = Ringer(self._fleet)

    async def close(self) -> None:
        if self._store is not None:
            await self._ringer.quiet()
            await self._store.close()
            self._store = None

    @property
    def store(self) -> Store:
        if self._store is None:
            raise TocsinError("the app is not open: use `async with app:` around this call, or app.sync")
        return self._store

    @property
    def _jobs(self) -> Jobs:
        return Jobs(self.store)

    @property
    def _lookup(self) -> Lookup:
        return Lookup(self.store, self._jobs)
