"""Targets: deliveries that Tocsin executes itself instead of a function of the program.

A record stores a target as the arguments of a handler with a reserved name.
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
# One name per broker: a worker without the client of a broker has no such handler and leaves its jobs to others.
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
    """The target that a record's arguments encode; None if its handler is a function."""
    kind = _KINDS.get(spec.name)
    if kind is None:
        return None
    try:
        return msgspec.convert(spec.args, kind)  # type: ignore[no-any-return]
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise RecordUnreadable(f"the arguments of {spec.name} cannot be read: {error}") from None
