"""Secrets taken out of what the other side says: receivers, brokers and programs may repeat what they were given.

In errors, results and events, which are kept in Redis and shown. A secret is found as it is, in any case, and in the
forms that it takes on the way: in a URL, in JSON or HTML, and in base64, also as a part of something longer.
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
# Shorter ones have no other forms: as a part of base64 they could be anything.
SHORTEST_ENCODED = 6
# A line of a longer secret, like a key in PEM, is one itself.
SHORTEST_LINE = 16
# Those that were used lately: jobs of one definition use the same.
MOST_KEPT = 256


class SecretMask:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = sorted({form for secret in secrets if secret for form in _forms(secret)}, key=len, reverse=True)
        self._forms = [_as_bytes(form) for form in forms]
        self._pattern = re.compile("|".join(map(re.escape, forms)), re.IGNORECASE) if forms else None

    def text(self, said: str) -> str:
        return said if self._pattern is None else self._pattern.sub(HIDDEN, said)

    def data(self, said: bytes) -> bytes:
        return said if self._pattern is None else _as_bytes(self.text(said.decode(errors="surrogateescape")))

    def value(self, told: Any) -> Any:
        """Text wherever it stands in a result."""
        if isinstance(told, str):
            return self.text(told)
        if isinstance(told, dict):
            return {self.value(name): self.value(value) for name, value in told.items()}
        return [self.value(each) for each in told] if isinstance(told, list) else told

    def beginning(self, said: bytes) -> bytes:
        """Of something that was cut off: also without the beginning of a secret at its end."""
        said = self.data(said)
        cut = max((_overlap(said, form) for form in self._forms), default=0)
        return said[: len(said) - cut] + HIDDEN.encode() if cut else said

    def end(self, said: bytes) -> bytes:
        """Also without the end of a secret at its beginning."""
        said = self.data(said)
        cut = max((_overlap(said[::-1], form[::-1]) for form in self._forms), default=0)
        return HIDDEN.encode() + said[cut:] if cut else said

    @contextmanager
    def over_errors(self) -> Iterator[None]:
        """Around a delivery."""
        try:
            yield
        except DeliveryFailed as error:
            self._cover(error)
            raise
        except NotStarted:
            raise
        except Exception as error:
            # Something that a library was not meant to do.
            if self._hides(error):
                raise DeliveryFailed(self.text(f"{type(error).__name__}: {error}")) from None
            raise

    def _cover(self, error: DeliveryFailed) -> None:
        if self._pattern is None:
            return
        error.args = (self.text(str(error)),)
        error.told = self.value(error.told)
        if any(map(self._hides, (error.__cause__, error.__context__))):
            # Whoever reports errors reports these too.
            error.__cause__ = error.__context__ = None

    def _hides(self, error: BaseException | None) -> bool:
        """Whether it, or what led to it, says a secret. Libraries link errors in circles, too."""
        if self._pattern is None:
            return False
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            said = f"{error} {error!r}"
            if self.text(said) != said:
                return True
            seen.add(id(error))
            error = error.__cause__ or error.__context__
        return False


NOTHING = SecretMask()


@lru_cache(MOST_KEPT)
def veil_of(secrets: tuple[str, ...]) -> SecretMask:
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
    """Halves of characters come and go as they are."""
    return text.encode(errors="surrogateescape")


def _in_base64(secret: bytes, skipped: int) -> Iterator[str]:
    """Without the characters at both ends, which depend on what stands before and after."""
    encoded = b64encode(b"\0" * skipped + secret).decode().rstrip("=")
    first = -(-skipped * 8 // 6)
    whole = encoded[first : (skipped + len(secret)) * 8 // 6]
    if len(whole) >= SHORTEST_ENCODED:
        yield whole
        yield whole.replace("+", "-").replace("/", "_")


def _overlap(said: bytes, form: bytes) -> int:
    """How many bytes at the end of one are the beginning of the other, but not all of it."""
    for length in range(min(len(said), len(form) - 1), 0, -1):
        if said.endswith(form[:length]):
            return length
    return 0
