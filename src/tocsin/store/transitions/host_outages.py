"""Hosts outside that fail, as the workers of a namespace tell each other."""

from __future__ import annotations

from msgspec import Struct

from tocsin.model.durations import LATEST_MS, Millis
from tocsin.store.numbers import time_of, whole
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, Store

# So many are known at a time, so that each worker can read them all.
MOST_HOSTS = LARGEST_BATCH


class HostOutage(Struct, frozen=True):
    """A host that fails: nobody sends to it before `until`, and then only who is let through as a probe."""

    host: str
    since: Millis
    until: Millis


class HostProbe(Struct, frozen=True):
    """What came of asking for one: whether to send, and if not when to ask again. None is known where `since` is 0."""

    go: bool
    until: Millis = 0
    since: Millis = 0


class HostOutages:
    """Each method may be repeated: that changes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys.fleet()

    async def failing(self) -> dict[str, Millis]:
        """Until when nobody sends to each."""
        found = await self._store.run_repeatable(
            lambda c: c.zrange(self._keys["hosts"], 0, MOST_HOSTS - 1, withscores=True),
        )
        # What nobody of ours wrote closes no host: it would never be probed.
        return {host.decode(errors="replace"): time_of(score) for host, score in found if score <= LATEST_MS}

    async def find(self, host: str) -> HostOutage | None:
        score = await self._store.run_repeatable(lambda c: c.zscore(self._keys["hosts"], host))
        raw = await self._store.run_repeatable(lambda c: c.hget(self._keys["outages"], host))
        if score is None or raw is None:
            return None
        return HostOutage(host, whole(raw.partition(b"|")[0]), time_of(score))

    async def trip(self, host: str, cooldown: Millis, probe: str = "") -> Millis:
        """It fails. When it may be probed."""
        return int(
            await self._store.run_fleet_script(script("host_trip"), self._now(), host, cooldown, probe, MOST_HOSTS)
        )

    async def probe(self, host: str, probe: str, half_open: Millis) -> HostProbe:
        """`probe` is the name of this one, so that asking again after a lost reply is not another."""
        code, *known = await self._store.run_fleet_script(script("host_probe"), self._now(), host, probe, half_open)
        return HostProbe(code != 0, int(known[0]), whole(known[1])) if known else HostProbe(code != 0)

    async def close(self, host: str, since: Millis) -> bool:
        """It answers again, as a probe of that outage has found. Whether it was still known to fail."""
        return bool(await self._store.run_fleet_script(script("host_close"), host, since))

    def _now(self) -> Millis | str:
        now = self._store.clock.override()
        return "" if now is None else now
