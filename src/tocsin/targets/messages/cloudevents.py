"""Wraps a message as a CloudEvent 1.0, in structured mode and JSON: it carries its type, source and time itself.

Written by hand: an event is nine fields, and a value that is JSON already goes in unchanged.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from tocsin.targets.envelope import Envelope, in_url

CONTENT_TYPE = "application/cloudevents+json; charset=UTF-8"


def source_of(namespace: str, queue: str, job_id: str) -> str:
    """The same for all runs of a job, for ever. Together with the id (the run's key) it identifies an event."""
    parts = [part for part in (namespace.removesuffix(":"), queue, job_id) if part]
    return "/".join(["/tocsin", *map(in_url, parts)])


def encode_event(
    kind: str, namespace: str, envelope: Envelope, key: str | None, value: bytes, *, json: bool, content_type: str
) -> bytes:
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": envelope.key,
        "source": source_of(namespace, envelope.queue, envelope.job_id),
        "type": kind,
        "subject": envelope.run_id,
        "time": envelope.due,
        "datacontenttype": content_type,
        "traceparent": envelope.traceparent,
    }
    if key is not None:
        event["partitionkey"] = key
    if json:
        event["data"] = msgspec.Raw(value)
    else:
        event["data_base64"] = base64.b64encode(value).decode()
    return msgspec.json.encode(event)
