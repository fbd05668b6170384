"""Targets: where runs go that no function of the program takes, and the names under which workers know them.

In a record a target is the arguments of the handler of that name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.model.broker_address import BROKERS
from tocsin.model.errors import RecordUnreadable
from tocsin.model.http import Http
from tocsin.model.job import Spec
from tocsin.model.message import Message
from tocsin.model.subprocess import Subprocess

Target = Http | Message | Subprocess

HTTP = "tocsin.http"
SUBPROCESS = "tocsin.subprocess"
# By broker: a worker that lacks the client of one does not know that name, and leaves its jobs to others.
MESSAGE = {broker: f"tocsin.message.{broker}" for broker in BROKERS}
NAMES = (HTTP, SUBPROCESS, *MESSAGE.values())

_KINDS: dict[str, type[Any]] = {HTTP: Http, SUBPROCESS: Subprocess, **dict.fromkeys(MESSAGE.values(), Message)}


def name_of(target: Target) -> str:
    if isinstance(target, Http):
        return HTTP
    return SUBPROCESS if isinstance(target, Subprocess) else MESSAGE[target.broker]


def fields_of(target: Target) -> tuple[Any, ...]:
    return tuple(getattr(target, name) for name in target.__struct_fields__)


def target_of(spec: Spec) -> Target | None:
    """What a record's arguments stand for; None if its handler is a function."""
    kind = _KINDS.get(spec.name)
    if kind is None:
        return None
    try:
        return msgspec.convert(spec.args, kind)  # type: ignore[no-any-return]
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise RecordUnreadable(f"the arguments of {spec.name} cannot be read: {error}") from None
