"""Outages of hosts outside: workers of a namespace share which hosts fail, and who may probe them."""

from __future__ import annotations

from msgspec import Struct

from tocsin.model.durations import LATEST_MS, Millis
from tocsin.store.numbers import time_of, whole
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, Store

# At most so many hosts are listed at a time, so that each worker can read them all.
MOST_HOSTS = LARGEST_BATCH


class HostOutage(Struct, frozen=True):
    """A host that fails. Nothing is sent to it before `until`, and then only a probe."""

    host: str
    since: Millis
    until: Millis


class HostProbe(Struct, frozen=True):
    """The answer to a worker that wants to probe: whether to send, and if not, when to ask again. `since` 0: no outage
    of the host is known."""

    go: bool
    until: Millis = 0
    since: Millis = 0


class HostOutages:
    """Each method may be repeated safely."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys.fleet()

    async def failing(self) -> dict[str, Millis]:
        """By host, until when nothing is sent to it."""
        found = await self._store.run_repeatable(
            lambda c: c.zrange(self._keys["hosts"], 0, MOST_HOSTS - 1, withscores=True),
        )
        # A time beyond all dates is not ours. It must not close a host, which would never be probed.
        return {host.decode(errors="replace"): time_of(score) for host, score in found if score <= LATEST_MS}

    async def find(self, host: str) -> HostOutage | None:
        score = await self._store.run_repeatable(lambda c: c.zscore(self._keys["hosts"], host))
        raw = await self._store.run_repeatable(lambda c: c.hget(self._keys["outages"], host))
        if score is None or raw is None:
            return None
        return HostOutage(host, whole(raw.partition(b"|")[0]), time_of(score))

    async def trip(self, host: str, cooldown: Millis, probe: str = "") -> Millis:
        """The host fails. Returns when it may be probed."""
        return int(
            await self._store.run_fleet_script(script("host_trip"), self._now(), host, cooldown, probe, MOST_HOSTS)
        )

    async def probe(self, host: str, probe: str, half_open: Millis) -> HostProbe:
        """`probe` names this probe: with the same name, a repeated call is the same probe."""
        code, *known = await self._store.run_fleet_script(script("host_probe"), self._now(), host, probe, half_open)
        return HostProbe(code != 0, int(known[0]), whole(known[1])) if known else HostProbe(code != 0)

    async def close(self, host: str, since: Millis) -> bool:
        """A probe found that the host answers again. Returns whether the outage was still listed."""
        return bool(await self._store.run_fleet_script(script("host_close"), host, since))

    def _now(self) -> Millis | str:
        now = self._store.clock.override()
        return "" if now is None else now
