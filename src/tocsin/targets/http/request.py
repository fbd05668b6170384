"""What is sent: a target, with what a run tells about itself, and with the values of its secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from msgspec import Struct
from opentelemetry import propagate, trace

from tocsin.engine.work_item import WorkItem
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.errors import InvalidArgument
from tocsin.model.http import Http
from tocsin.model.job import Spec
from tocsin.model.record import body_of
from tocsin.model.secret import Secret
from tocsin.model.target import target_of
from tocsin.model.template import MARK, fill
from tocsin.model.webhook_signature import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from tocsin.targets.envelope import Envelope, in_header, in_json, in_url
from tocsin.targets.secret_masking import NOTHING, SecretMask, veil_of
from tocsin.targets.secrets import Secrets

# Jobs of one definition share what was made of it; so many definitions are kept.
MOST_DRAFTS = 1024
# Larger ones are made anew each time, so that what is kept is bounded.
LARGEST_KEPT = 4096
# What a signature consists of.
SIGNED = frozenset([ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER])
_ONE_LINE = re.compile(r"[\t\x20-\x7e\xa0-\xff]+")


class Request(Struct, frozen=True):
    """One request, ready to be sent."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    # Headers, in lower case, that are for the receiver alone: no other origin gets them.
    private: frozenset[str] = frozenset()
    # For what may not be written down, whoever repeats it.
    veil: SecretMask = NOTHING


class Draft(Struct, frozen=True):
    """A target taken apart: what is the same in each request, and what is not."""

    target: Http
    fixed: dict[str, str]
    filled: tuple[tuple[str, str], ...]
    secret: tuple[tuple[str, Secret], ...]
    private: frozenset[str]
    fills_url: bool
    # The password in the URL.
    login: tuple[str, ...]


class RequestTemplates:
    """Those of the jobs that were delivered lately, by what stands in their records."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Draft] = {}

    def of(self, unit: WorkItem) -> Draft:
        body = body_of(unit.claim.record)
        draft = self._kept.get(body)
        if draft is None:
            draft = _draft(unit.spec)
            if len(body) <= LARGEST_KEPT:
                if len(self._kept) >= MOST_DRAFTS:
                    del self._kept[next(iter(self._kept))]
                self._kept[body] = draft
        return draft


def build(draft: Draft, envelope: Envelope, secrets: Secrets, now_s: float) -> Request:
    target = draft.target
    url = fill(target.url, envelope.values, in_url) if draft.fills_url else target.url
    body = fill(target.body.decode(), envelope.values, in_json).encode() if target.fills else target.body
    headers = {
        **draft.fixed,
        "Idempotency-Key": envelope.key,
        "Tocsin-Run": in_header(envelope.run_id),
        "Tocsin-Due": envelope.due,
        "Tocsin-Attempt": str(envelope.attempt),
    }
    _trace(headers, envelope)
    for name, text in draft.filled:
        headers[name] = fill(text, envelope.values, in_header)
    hidden, private = list(draft.login), draft.private
    hosts = _hosts(url) if draft.secret or target.sign is not None else ()
    for name, secret in draft.secret:
        headers[name] = value = _on_one_line(secret, secrets.read(secret, hosts))
        hidden.append(value.removeprefix(secret.before))
    if target.sign is not None:
        text = secrets.read(target.sign, hosts)
        _sign(headers, target.sign, text, envelope.key, int(now_s), body)
        hidden += text.split()
        private |= SIGNED if secrets.is_bound(target.sign) else frozenset()
    return Request(target.method, url, headers, body, private, veil_of(tuple(hidden)) if hidden else NOTHING)


def _hosts(url: str) -> tuple[str]:
    """As aiohttp understands it, which connects there: others may find another host in the same text."""
    from yarl import URL

    return (URL(url).raw_host or "",)


def _draft(spec: Spec) -> Draft:
    target = target_of(spec)
    assert isinstance(target, Http)
    texts = {name: value for name, value in target.headers.items() if isinstance(value, str)}
    secret = tuple((name, value) for name, value in target.headers.items() if isinstance(value, Secret))
    return Draft(
        target,
        fixed={name: text for name, text in texts.items() if MARK not in text},
        filled=tuple((name, text) for name, text in texts.items() if MARK in text),
        secret=secret,
        private=frozenset([*(name.lower() for name, _ in secret), "authorization", "cookie"]),
        fills_url=MARK in target.url,
        login=_passwords(target.url),
    )


def _passwords(url: str) -> tuple[str, ...]:
    """As it stands there, and as it is sent."""
    login, _, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    user, _, password = login.partition(":")
    return tuple({each for text in (password or user,) for each in (text, unquote(text)) if each})


def _on_one_line(secret: Secret, value: str) -> str:
    if _ONE_LINE.fullmatch(value):
        return value
    raise DeliveryFailed(f"the secret {secret} cannot be sent in a header: it is not printable text on one line")


def _sign(headers: dict[str, str], secret: Secret, text: str, key: str, at: int, body: bytes) -> None:
    """By each secret in the text, one per line: so that both sides can change theirs one after the other."""
    try:
        signature = sign(text.split(), key, at, body)
    except InvalidArgument as error:
        raise DeliveryFailed(f"the secret {secret} cannot sign requests: {error}") from None
    headers |= {ID_HEADER: key, TIMESTAMP_HEADER: str(at), SIGNATURE_HEADER: signature}


def _trace(headers: dict[str, str], envelope: Envelope) -> None:
    """W3C trace context: of the span that this worker is in; without one, a trace per run and a span per attempt."""
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(headers)
    if "traceparent" not in headers:
        headers["traceparent"] = envelope.traceparent


def without(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    """The headers but those, which are in lower case."""
    return {name: value for name, value in headers.items() if name.lower() not in names}
