"""The facts about a run that its target sends along: id, due time, attempt, key, trace."""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache
from urllib.parse import quote

import msgspec

from tocsin.engine.work_item import WorkItem
from tocsin.model.durations import moment
from tocsin.model.ids import idempotency_key
from tocsin.model.job import PRIORITIES
from tocsin.model.record import decode_header

# Characters that go into a header unchanged. Ids may hold any character, also line breaks.
_PLAIN = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")


class Envelope:
    """A run as the receiver, broker or program sees it: the same for each attempt, except its number."""

    def __init__(self, unit: WorkItem, namespace: str) -> None:
        claim = unit.claim
        self._record = claim.record
        self.queue = claim.queue
        self.attempt = claim.attempt
        self.due_ms = claim.due
        self.job_id = claim.job_id
        self.run_id = claim.run_id
        self.key = idempotency_key(namespace, claim.queue, claim.member, claim.due)

    @property
    def due(self) -> str:
        """The due time in UTC, to the millisecond."""
        seconds, ms = divmod(self.due_ms, 1000)
        return f"{_second(seconds)}.{ms:03}Z"

    @property
    def traceparent(self) -> str:
        """W3C trace context: one trace per run, one span per attempt."""
        span = hashlib.blake2b(f"{self.key}:{self.attempt}".encode(), digest_size=8).hexdigest()
        return f"00-{self.key}-{span}-01"

    @cached_property
    def values(self) -> dict[str, str]:
        """The values that fill templates."""
        header = decode_header(self._record)
        return {
            "id": self.run_id,
            "job_id": self.job_id,
            "due": self.due,
            "due_ms": str(self.due_ms),
            "attempt": str(self.attempt),
            "key": self.key,
            "queue": self.queue,
            "tenant": header.tenant,
            "priority": PRIORITIES[min(header.band, len(PRIORITIES) - 1)],
        }


@lru_cache(256)
def _second(seconds: int) -> str:
    """Cached: many runs are due in the same second, and this takes longer than the rest of an envelope."""
    return moment(seconds * 1000).isoformat(timespec="seconds").removesuffix("+00:00")


def in_header(text: str) -> str:
    """Printable ASCII stays as it is; anything else is percent-encoded."""
    if text.isascii() and text.isprintable() and "%" not in text:
        return text
    return quote(text, safe=_PLAIN)


def in_url(text: str) -> str:
    return quote(text, safe="")


def in_json(text: str) -> str:
    """As it is written between the quotes of a JSON string."""
    return msgspec.json.encode(text).decode()[1:-1]
