"""Builds the request of a run from its target, the facts of its envelope and the values of its secrets."""

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
from tocsin.targets.secret_masking import NO_SECRETS, SecretMask, mask_of
from tocsin.targets.secrets import Secrets

# So many templates are kept. Runs of one job share one, because their records hold the same target.
MOST_TEMPLATES = 1024
# A larger record's template is not kept, which bounds the memory.
LARGEST_KEPT = 4096
# The headers that make up a signature.
SIGNED = frozenset([ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER])
_ONE_LINE = re.compile(r"[\t\x20-\x7e\xa0-\xff]+")


class Request(Struct, frozen=True):
    """A request, ready to be sent."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    # Headers, in lower case, for the receiver alone: a redirect takes them to no other origin.
    private: frozenset[str] = frozenset()
    # Masks the secrets of this request in errors and answers.
    mask: SecretMask = NO_SECRETS


class RequestTemplate(Struct, frozen=True):
    """A target split into the parts that each request shares and those that differ per run."""

    target: Http
    fixed: dict[str, str]
    filled: tuple[tuple[str, str], ...]
    secret: tuple[tuple[str, Secret], ...]
    private: frozenset[str]
    fills_url: bool
    # The password in the URL, to be masked.
    login: tuple[str, ...]


class RequestTemplates:
    """The templates of the jobs delivered lately, by the bodies of their records."""

    def __init__(self) -> None:
        self._kept: dict[bytes, RequestTemplate] = {}

    def of(self, unit: WorkItem) -> RequestTemplate:
        body = body_of(unit.claim.record)
        template = self._kept.get(body)
        if template is None:
            template = _template_of(unit.spec)
            if len(body) <= LARGEST_KEPT:
                if len(self._kept) >= MOST_TEMPLATES:
                    del self._kept[next(iter(self._kept))]
                self._kept[body] = template
        return template


def build(template: RequestTemplate, envelope: Envelope, secrets: Secrets, now_s: float) -> Request:
    target = template.target
    url = fill(target.url, envelope.values, in_url) if template.fills_url else target.url
    body = fill(target.body.decode(), envelope.values, in_json).encode() if target.fills else target.body
    headers = {
        **template.fixed,
        "Idempotency-Key": envelope.key,
        "Tocsin-Run": in_header(envelope.run_id),
        "Tocsin-Due": envelope.due,
        "Tocsin-Attempt": str(envelope.attempt),
    }
    _trace(headers, envelope)
    for name, text in template.filled:
        headers[name] = fill(text, envelope.values, in_header)
    hidden, private = list(template.login), template.private
    hosts = _hosts(url) if template.secret or target.sign is not None else ()
    for name, secret in template.secret:
        headers[name] = value = _on_one_line(secret, secrets.read(secret, hosts))
        hidden.append(value.removeprefix(secret.before))
    if target.sign is not None:
        text = secrets.read(target.sign, hosts)
        _sign(headers, target.sign, text, envelope.key, int(now_s), body)
        hidden += text.split()
        private |= SIGNED if secrets.is_bound(target.sign) else frozenset()
    return Request(target.method, url, headers, body, private, mask_of(tuple(hidden)) if hidden else NO_SECRETS)


def _hosts(url: str) -> tuple[str]:
    """The host as aiohttp reads it, because aiohttp connects there. Another parser may find another host."""
    from yarl import URL

    return (URL(url).raw_host or "",)


def _template_of(spec: Spec) -> RequestTemplate:
    target = target_of(spec)
    assert isinstance(target, Http)
    texts = {name: value for name, value in target.headers.items() if isinstance(value, str)}
    secret = tuple((name, value) for name, value in target.headers.items() if isinstance(value, Secret))
    return RequestTemplate(
        target,
        fixed={name: text for name, text in texts.items() if MARK not in text},
        filled=tuple((name, text) for name, text in texts.items() if MARK in text),
        secret=secret,
        private=frozenset([*(name.lower() for name, _ in secret), "authorization", "cookie"]),
        fills_url=MARK in target.url,
        login=_passwords(target.url),
    )


def _passwords(url: str) -> tuple[str, ...]:
    """The password as written in the URL, and decoded, as it is sent."""
    login, _, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    user, _, password = login.partition(":")
    return tuple({each for text in (password or user,) for each in (text, unquote(text)) if each})


def _on_one_line(secret: Secret, value: str) -> str:
    if _ONE_LINE.fullmatch(value):
        return value
    raise DeliveryFailed(f"the secret {secret} cannot be sent in a header: it is not printable text on one line")


def _sign(headers: dict[str, str], secret: Secret, text: str, key: str, at: int, body: bytes) -> None:
    """Sign with each secret in the text, one per line, so that both sides can change theirs one after the other."""
    try:
        signature = sign(text.split(), key, at, body)
    except InvalidArgument as error:
        raise DeliveryFailed(f"the secret {secret} cannot sign requests: {error}") from None
    headers |= {ID_HEADER: key, TIMESTAMP_HEADER: str(at), SIGNATURE_HEADER: signature}


def _trace(headers: dict[str, str], envelope: Envelope) -> None:
    """W3C trace context: of the current span; without one, a trace per run and a span per attempt."""
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(headers)
    if "traceparent" not in headers:
        headers["traceparent"] = envelope.traceparent


def without(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    """The headers except `names`, which are in lower case."""
    return {name: value for name, value in headers.items() if name.lower() not in names}
