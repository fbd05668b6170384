"""CloudEvents 1.0, structured mode in JSON: a message that says itself what it is, from where and of when.

Written by hand: it is nine fields, and the value is JSON already, which is put in as it is.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from tocsin.targets.envelope import Envelope, in_url

CONTENT_TYPE = "application/cloudevents+json; charset=UTF-8"


def source_of(namespace: str, queue: str, job_id: str) -> str:
    """The same for all runs of a job, for ever. Together with the id, which is the run's key, it names one event."""
    parts = [part for part in (namespace.removesuffix(":"), queue, job_id) if part]
    return "/".join(["/tocsin", *map(in_url, parts)])


def written(
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
