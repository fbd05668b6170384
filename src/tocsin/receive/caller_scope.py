"""Makes the names under which answers are remembered, so that only the same caller finds an answer again.

An idempotency key is a name, not a secret: Tocsin makes it from namespace, queue, job and due time, and anybody with
these facts can make it too. So no answer is remembered under the key itself:

- The answer to a signed request is remembered under its key and the secret that signed it. Another sender, with a
  secret of its own, neither gets the answer nor takes the key. The digest of the request includes its login: an
  attacker who recorded a request and sends it again with another login causes no second effect either.
- The answer to any other request is remembered under its key and its login.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

import msgspec

from tocsin.receive.responses import Scope

# Headers by which an app knows its callers.
LOGINS = ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token")

# Signed content begins with an id, which has no NUL, so it never begins like these two.
_NAME, _REQUEST = b"place\0", b"request\0"


class MemoryKey(msgspec.Struct, frozen=True, order=True):
    name: str
    # Identifies the request: the same key with another digest is an error.
    digest: bytes


def memory_keys(signers: Sequence[bytes], login: bytes, key: str, scope: Scope, body: bytes) -> set[MemoryKey]:
    """One key for each secret that signed the request; without a signature, one for the login."""
    asked = msgspec.msgpack.encode((scope["method"], scope["path"], scope.get("query_string", b""), body, login))
    return {
        MemoryKey(_hash(owner, _NAME + key.encode()).hex(), _hash(owner, _REQUEST + asked))
        for owner in signers or [login]
    }


def login_of(scope: Scope, names: Iterable[str]) -> bytes:
    """All headers of the request that identify its caller, encoded; b"" if it has none."""
    wanted = {name.lower().encode() for name in names}
    # A proxy may split cookies into several headers, and headers may come in any order.
    given: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        if name.lower() in wanted:
            given.setdefault(name.lower(), []).append(value)
    logins = sorted((name, b"; ".join(values)) for name, values in given.items())
    return msgspec.msgpack.encode(logins) if logins else b""


def _hash(owner: bytes, text: bytes) -> bytes:
    return hmac.digest(owner, text, "sha256")
