"""Where the answer to a request is remembered, so that only the same caller finds it again.

An idempotency key is a name, not a secret: Tocsin makes it of namespace, queue, job and due time, and whoever knows
those can make it too. So nothing is remembered under the key itself:

- A signed request is remembered under its key and the secret that signed it. Another sender, with a secret of its own,
  neither gets the answer nor takes the key. The login is part of what the key stands for: whoever recorded a request
  and sends it again with another login gets no second effect either.
- Any other is remembered under its key and the login that came with it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

import msgspec

from tocsin.receive.responses import Scope

# By these an app knows its callers.
LOGINS = ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token")

# Neither can be the begin of what is signed in a request: that begins with an id, which holds no NUL.
_PLACE, _REQUEST = b"place\0", b"request\0"


class MemoryKey(msgspec.Struct, frozen=True, order=True):
    name: str
    # Of what the key stands for.
    digest: bytes


def places(signers: Sequence[bytes], login: bytes, key: str, scope: Scope, body: bytes) -> set[MemoryKey]:
    """One for each secret that signed, by its bytes; without any, that of the login."""
    asked = msgspec.msgpack.encode((scope["method"], scope["path"], scope.get("query_string", b""), body, login))
    return {
        MemoryKey(_hash(owner, _PLACE + key.encode()).hex(), _hash(owner, _REQUEST + asked))
        for owner in signers or [login]
    }


def login_of(scope: Scope, names: Iterable[str]) -> bytes:
    """All that the request says about who asks; b"" if that is nothing."""
    wanted = {name.lower().encode() for name in names}
    # A proxy may split cookies into several headers, and headers may come in any order.
    given: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        if name.lower() in wanted:
            given.setdefault(name.lower(), []).append(value)
    said = sorted((name, b"; ".join(values)) for name, values in given.items())
    return msgspec.msgpack.encode(said) if said else b""


def _hash(owner: bytes, text: bytes) -> bytes:
    return hmac.digest(owner, text, "sha256")
