"""Masks secrets in errors, results and events: receivers, brokers and programs may repeat what they were given, and
their words are kept in Redis and shown.

A mask finds a secret as it is, in upper and lower case, and as it is encoded on the way: in a URL, in JSON or HTML, and
in base64, also inside a longer text.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from tocsin.engine.handlers import NotStarted
from tocsin.model.delivery import DeliveryFailed

HIDDEN = "***"
# Shorter secrets are not looked for in encoded form: a few characters of base64 occur by chance.
SHORTEST_ENCODED = 6
# Each line of a longer secret, like a key in PEM, is masked by itself too.
SHORTEST_LINE = 16
# Jobs of one definition use the same secrets, so masks are kept.
MOST_KEPT = 256


class SecretMask:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = sorted({form for secret in secrets if secret for form in _forms(secret)}, key=len, reverse=True)
        self._forms = [_as_bytes(form) for form in forms]
        self._pattern = re.compile("|".join(map(re.escape, forms)), re.IGNORECASE) if forms else None

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)

    def data(self, data: bytes) -> bytes:
        return data if self._pattern is None else _as_bytes(self.text(data.decode(errors="surrogateescape")))

    def value(self, result: Any) -> Any:
        """Mask all texts in a result."""
        if isinstance(result, str):
            return self.text(result)
        if isinstance(result, dict):
            return {self.value(name): self.value(value) for name, value in result.items()}
        return [self.value(each) for each in result] if isinstance(result, list) else result

    def beginning(self, data: bytes) -> bytes:
        """Mask the beginning of an output that was cut off: its end may be the beginning of a secret."""
        data = self.data(data)
        cut = max((_overlap(data, form) for form in self._forms), default=0)
        return data[: len(data) - cut] + HIDDEN.encode() if cut else data

    def end(self, data: bytes) -> bytes:
        """Mask the end of an output that was cut off: its beginning may be the end of a secret."""
        data = self.data(data)
        cut = max((_overlap(data[::-1], form[::-1]) for form in self._forms), default=0)
        return HIDDEN.encode() + data[cut:] if cut else data

    @contextmanager
    def mask_errors(self) -> Iterator[None]:
        """Put this around a delivery: it masks the errors that leave it."""
        try:
            yield
        except DeliveryFailed as error:
            self._mask_failure(error)
            raise
        except NotStarted:
            raise
        except Exception as error:
            # An error that the library does not document.
            if self._contains_secret(error):
                raise DeliveryFailed(self.text(f"{type(error).__name__}: {error}")) from None
            raise

    def _mask_failure(self, error: DeliveryFailed) -> None:
        if self._pattern is None:
            return
        error.args = (self.text(str(error)),)
        error.told = self.value(error.told)
        if any(map(self._contains_secret, (error.__cause__, error.__context__))):
            # Error reporters show linked errors too.
            error.__cause__ = error.__context__ = None

    def _contains_secret(self, error: BaseException | None) -> bool:
        """Whether the error, or one linked to it, contains a secret. Some libraries link errors in circles."""
        if self._pattern is None:
            return False
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            shown = f"{error} {error!r}"
            if self.text(shown) != shown:
                return True
            seen.add(id(error))
            error = error.__cause__ or error.__context__
        return False


NO_SECRETS = SecretMask()


@lru_cache(MOST_KEPT)
def mask_of(secrets: tuple[str, ...]) -> SecretMask:
    return SecretMask(secrets)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield from (line for line in secret.splitlines() if len(line) >= SHORTEST_LINE)
    if len(secret) < SHORTEST_ENCODED:
        return
    yield quote(secret, safe="", errors="surrogateescape")
    yield quote(secret, errors="surrogateescape")
    yield quote_plus(secret, errors="surrogateescape")
    for escaped in (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        yield escaped
        yield escaped.replace("/", "\\/")
    yield html.escape(secret)
    yield repr(secret)[1:-1]
    for skipped in range(3):
        yield from _in_base64(_as_bytes(secret), skipped)


def _as_bytes(text: str) -> bytes:
    """Text with bytes that are not UTF-8 comes back unchanged."""
    return text.encode(errors="surrogateescape")


def _in_base64(secret: bytes, skipped: int) -> Iterator[str]:
    """The secret inside a longer text in base64, without the characters at both ends, which depend on that text."""
    encoded = b64encode(b"\0" * skipped + secret).decode().rstrip("=")
    first = -(-skipped * 8 // 6)
    whole = encoded[first : (skipped + len(secret)) * 8 // 6]
    if len(whole) >= SHORTEST_ENCODED:
        yield whole
        yield whole.replace("+", "-").replace("/", "_")


def _overlap(data: bytes, form: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of `form`, but not all of `form`."""
    for length in range(min(len(data), len(form) - 1), 0, -1):
        if data.endswith(form[:length]):
            return length
    return 0
