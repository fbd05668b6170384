"""The arguments or the target of a job, as they may be shown: without logins and without secrets' values."""

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

# Show at most this many bytes of a body.
LONGEST = 1000
# Never show the values of these headers, even if a job gives them as plain text.
_PRIVATE = ("authorization", "proxy-authorization", "cookie")


def shown_arguments(job: Job) -> dict[str, Any]:
    """The target of a job and what is sent there; or the arguments of its function."""
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
            "headers": _without_secrets(target.headers),
            "body": _text(target.body),
            "sign": None if target.sign is None else str(target.sign),
        }
    if isinstance(target, Message):
        return {"headers": _without_secrets(target.headers), "body": _text(target.value)}
    return {"env": _without_secrets(target.env)}


def _without_secrets(values: Mapping[str, str | Secret]) -> dict[str, str]:
    """The text of a Secret is the place where its value is found, like <file /run/secrets/hook>."""
    return {
        name: "***" if name.lower() in _PRIVATE and isinstance(value, str) else str(value)
        for name, value in values.items()
    }


def _text(body: bytes) -> str:
    return body[:LONGEST].decode("utf-8", "replace")
