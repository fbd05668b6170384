"""The answer of a receiver, and what it means for the run: done, failed, or to be sent again later."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct

from tocsin.model.delivery import Delivered, DeliveryFailed, head_of
from tocsin.model.http import Http, without_login
from tocsin.targets.secret_masking import NO_SECRETS, SecretMask

# With 409 `tocsin.receive` says that another attempt of the run is still at work there. A 409 without Retry-After is a
# refusal like any other.
RETRY_AFTER = (409, 429, 503)
TRANSIENT = (408, 425, 429)
# So many bytes of a body are looked at, even if the body comes in small pieces.
LARGEST_HEAD = 4096
# Longer URLs are cut in error messages, so that the rest of the message has room.
LONGEST_SHOWN = 200


class HttpAnswer(Struct, frozen=True):
    """The parts of a response that matter here."""

    status: int
    # The beginning of the body.
    head: bytes
    retry_after: str | None = None
    location: str | None = None


def event_note(answer: HttpAnswer, ms: int, mask: SecretMask) -> dict[str, Any]:
    """The note in the run's event. A receiver may repeat what it was sent, so secrets are masked."""
    # A head shorter than this is the whole body.
    head = mask.data(answer.head) if len(answer.head) < LARGEST_HEAD else mask.beginning(answer.head)
    return {"status": answer.status, "ms": ms, "head": head_of(head)}


def judge(
    target: Http, answer: HttpAnswer, note: dict[str, Any], now_s: float, longest_wait_s: float, mask: SecretMask
) -> Delivered:
    """The success, or raise DeliveryFailed."""
    status = answer.status
    if is_success(target, status):
        return Delivered(note)
    wait = retry_after(answer.retry_after, now_s, longest_wait_s) if status in RETRY_AFTER else None
    final = not (status in TRANSIENT or status >= 500 or wait is not None)
    what = f"{briefly(target)} answered {status}{_advice(answer, mask)}"
    raise DeliveryFailed(what, note, status=status, final=final, retry_after=wait)


def is_success(target: Http, status: int) -> bool:
    return status in target.expect if target.expect else 200 <= status <= 299


def _advice(answer: HttpAnswer, mask: SecretMask) -> str:
    if not 300 <= answer.status <= 399 or answer.location is None:
        return ""
    return (
        f": it points to {shown(answer.location, mask)}, and redirects are not followed; send it there, or give it "
        "redirects=1 or more"
    )


def briefly(target: Http) -> str:
    """Method and URL, for the beginning of an error message."""
    return f"{target.method} {shown(target.url)}"


def shown(url: str, mask: SecretMask = NO_SECRETS) -> str:
    """A URL for people: without login and secrets, and short enough for a message."""
    text = mask.text(without_login(url))
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def retry_after(header: str | None, now_s: float, longest_s: float) -> float | None:
    """Seconds from now. The header holds seconds or a date; None if it is missing or unreadable."""
    if header is None:
        return None
    header = header.strip()
    try:
        wait = float(header) if header.isascii() and header.isdigit() else _at(header) - now_s
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(wait, 0.0), longest_s)


def _at(date: str) -> float:
    found: datetime = parsedate_to_datetime(date)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
