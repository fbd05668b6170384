"""Signs and verifies webhook requests as in Standard Webhooks (HMAC-SHA256, version v1).

A signature covers `id.timestamp.body`, so none of the three can be replaced with that of another request. Several
secrets can be valid at once, so that both sides can change theirs one after the other. A secret is base64 text of at
least 16 bytes, with or without `whsec_` before it. The body is any bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

from tocsin.model.errors import InvalidArgument, InvalidSignature

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"

# Allows for different clocks and slow requests. An older request may be a recorded one that is sent again.
TOLERANCE_S = 300.0

# Shorter secrets can be guessed from one recorded request. Standard Webhooks asks for 24 bytes.
SHORTEST_SECRET = 16

_PREFIX = "whsec_"
_HOW = "make one with `openssl rand -base64 32`"
_VERSION = "v1"
# Epoch seconds have ten digits for the next 250 years.
_MOST_DIGITS = 12


def sign(secrets: Sequence[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each secret, with spaces between."""
    if not _can_be_signed(message_id):
        raise InvalidArgument(f"the id of a signed request is printable ASCII without a dot, not {message_id!r}")
    return " ".join(f"{_VERSION},{mac}" for mac in _macs(secrets, message_id, str(int(timestamp_s)), body))


def verify(
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    now_s: float,
    tolerance_s: float = TOLERANCE_S,
) -> str:
    """Verify a request and return its id. Raises InvalidSignature without a recent signature by one of the secrets."""
    return signed_by(secrets, headers, body, now_s, tolerance_s)[0]


def signed_by(
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    now_s: float,
    tolerance_s: float = TOLERANCE_S,
) -> tuple[str, list[bytes]]:
    """Verify a request and return its id and the keys that signed it: two while a sender changes its secret."""
    given = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp, signatures = (
        _header(given, name) for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER)
    )
    if not _can_be_signed(message_id):
        raise InvalidSignature(f"{ID_HEADER} is not printable ASCII without a dot")
    _check_age(timestamp, now_s, tolerance_s)
    expected = _macs(secrets, message_id, timestamp, body)
    offered = _offered(signatures)
    signed = [
        key_of(secret)
        for secret, right in zip(secrets, expected, strict=True)
        if any(hmac.compare_digest(right.encode(), mac) for mac in offered)
    ]
    if not signed:
        raise InvalidSignature("no signature is by a known secret over this id, time and body")
    return message_id, signed


def key_of(secret: str) -> bytes:
    """The bytes of a secret. Raises InvalidArgument without quoting the text."""
    text = secret.strip().removeprefix(_PREFIX)
    try:
        key = base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise InvalidArgument(
            f"a secret is base64 text, with {_PREFIX} before it or not; this one is empty or not base64: {_HOW}"
        )
    if len(key) < SHORTEST_SECRET:
        raise InvalidArgument(f"a secret has at least {SHORTEST_SECRET} bytes, this one has {len(key)}: {_HOW}")
    return key


def _macs(secrets: Sequence[str], message_id: str, timestamp: str, body: bytes) -> list[str]:
    if isinstance(secrets, str) or not secrets:
        raise InvalidArgument("secrets are a list of at least one text")
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return [base64.b64encode(hmac.digest(key_of(secret), signed, hashlib.sha256)).decode() for secret in secrets]


def _offered(signatures: str) -> list[bytes]:
    # Compared as text and not decoded, so that each signature has only one spelling.
    parted = [text.partition(",") for text in signatures.split()]
    return [mac.encode(errors="replace") for version, _, mac in parted if version == _VERSION]


def _can_be_signed(message_id: str) -> bool:
    # With a dot, part of the id could be read as the timestamp, and the timestamp as part of the body.
    return message_id != "" and message_id.isascii() and message_id.isprintable() and "." not in message_id


def _header(given: Mapping[str, str], name: str) -> str:
    if value := given.get(name, ""):
        return value
    raise InvalidSignature(f"the request is not signed: it has no {name}")


def _check_age(timestamp: str, now_s: float, tolerance_s: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= _MOST_DIGITS):
        raise InvalidSignature(f"{TIMESTAMP_HEADER} is not a number of seconds")
    age = now_s - int(timestamp)
    if abs(age) > tolerance_s:
        which = "old" if age > 0 else "far in the future"
        raise InvalidSignature(f"the request was signed {abs(age):.0f} s away from now, which is too {which}")
