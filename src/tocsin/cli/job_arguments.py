"""What a job was given, as it is shown: no logins, and secrets by where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.cli.printing import plain
from tocsin.model.errors import RecordUnreadable
from tocsin.model.http import Http, without_login
from tocsin.model.job import Job
from tocsin.model.message import Message
from tocsin.model.secret import Secret
from tocsin.model.target import Target, target_of

# Of a body.
LONGEST = 1000
# Headers that are nobody's business, also where they were given as plain text.
_PRIVATE = ("authorization", "proxy-authorization", "cookie")


def given(job: Job) -> dict[str, Any]:
    """The target of a job, and what goes there; or the arguments of its function."""
    try:
        target = target_of(job.spec)
    except RecordUnreadable:
        target = None
    if target is not None:
        return {"target": str(target), **_sent(target), "args": [], "kwargs": {}}
    args = [without_login(arg) if isinstance(arg, str) else arg for arg in job.args]
    return {"target": None, "args": plain(args), "kwargs": plain(job.kwargs)}


def _sent(target: Target) -> dict[str, Any]:
    if isinstance(target, Http):
        return {
            "headers": _shown(target.headers),
            "body": _text(target.body),
            "sign": None if target.sign is None else str(target.sign),
        }
    if isinstance(target, Message):
        return {"headers": _shown(target.headers), "body": _text(target.value)}
    return {"env": _shown(target.env)}


def _shown(values: Mapping[str, str | Secret]) -> dict[str, str]:
    return {
        name: "***" if name.lower() in _PRIVATE and isinstance(value, str) else str(value)
        for name, value in values.items()
    }


def _text(body: bytes) -> str:
    return body[:LONGEST].decode("utf-8", "replace")
