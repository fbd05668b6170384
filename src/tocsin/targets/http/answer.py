"""What a receiver answered, and what that means for the run."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct

from tocsin.model.delivery import Delivered, DeliveryFailed, head_of
from tocsin.model.http import Http, without_login
from tocsin.targets.secret_masking import NOTHING, SecretMask

# 409: another attempt of the run is still at work there, as `tocsin.receive` says it; without a time to come back it is
# a refusal like any other.
RETRY_AFTER = (409, 429, 503)
PASSING = (408, 425, 429)
# As much of a body as is looked at, however small the pieces in which it comes.
LARGEST_HEAD = 4096
# Of an address in a message: what is said about it must have room too.
LONGEST_SHOWN = 200


class HttpAnswer(Struct, frozen=True):
    """A response, as far as it is looked at."""

    status: int
    # The beginning of its body.
    head: bytes
    retry_after: str | None = None
    location: str | None = None


def told_of(answer: HttpAnswer, ms: int, veil: SecretMask) -> dict[str, Any]:
    """For the run's event. A receiver may repeat what it was sent: secrets are not written down."""
    # A shorter one is all of the body.
    head = veil.data(answer.head) if len(answer.head) < LARGEST_HEAD else veil.beginning(answer.head)
    return {"status": answer.status, "ms": ms, "head": head_of(head)}


def judge(
    target: Http, answer: HttpAnswer, told: dict[str, Any], now_s: float, longest_wait_s: float, veil: SecretMask
) -> Delivered:
    """Done, or how it failed."""
    status = answer.status
    if is_success(target, status):
        return Delivered(told)
    wait = retry_after(answer.retry_after, now_s, longest_wait_s) if status in RETRY_AFTER else None
    final = not (status in PASSING or status >= 500 or wait is not None)
    what = f"{briefly(target)} answered {status}{_advice(answer, veil)}"
    raise DeliveryFailed(what, told, status=status, final=final, retry_after=wait)


def is_success(target: Http, status: int) -> bool:
    return status in target.expect if target.expect else 200 <= status <= 299


def _advice(answer: HttpAnswer, veil: SecretMask) -> str:
    if not 300 <= answer.status <= 399 or answer.location is None:
        return ""
    return (
        f": it points to {shown(answer.location, veil)}, and redirects are not followed; send it there, or give it "
        "redirects=1 or more"
    )


def briefly(target: Http) -> str:
    """For the beginning of a message."""
    return f"{target.method} {shown(target.url)}"


def shown(url: str, veil: SecretMask = NOTHING) -> str:
    """For people: without a login and what is secret, and not longer than fits into a message."""
    text = veil.text(without_login(url))
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def retry_after(said: str | None, now_s: float, longest_s: float) -> float | None:
    """Seconds from now, whether the header gives seconds or a date; None if it says nothing that can be understood."""
    if said is None:
        return None
    said = said.strip()
    try:
        wait = float(said) if said.isascii() and said.isdigit() else _at(said) - now_s
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(wait, 0.0), longest_s)


def _at(date: str) -> float:
    found: datetime = parsedate_to_datetime(date)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
