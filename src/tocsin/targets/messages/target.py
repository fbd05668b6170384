"""Messages: published once per attempt, and done when the broker says that it has them."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from tocsin.engine.work_item import WorkItem
from tocsin.model.allowed_hosts import allowed_hosts
from tocsin.model.broker_address import BrokerDestination
from tocsin.model.delivery import Delivered, DeliveryFailed
from tocsin.model.host import host_of
from tocsin.model.message import Message
from tocsin.model.target import target_of
from tocsin.model.template import fill
from tocsin.store.store import Store
from tocsin.targets.address_guard import Guard
from tocsin.targets.envelope import Envelope, in_header, in_json
from tocsin.targets.file_descriptors import are_used_up, handed_back, is_lack
from tocsin.targets.host_gates import HostGates
from tocsin.targets.messages import cloudevents
from tocsin.targets.messages.broker import BrokerMessage, cause_of
from tocsin.targets.messages.clients import IDLE_S, Clients
from tocsin.targets.messages.dialer import Dialer
from tocsin.targets.secret_masking import NOTHING, SecretMask, veil_of
from tocsin.targets.secrets import Secrets


class MessageTarget:
    """Messages of all jobs of a worker, to any broker that it has the client of."""

    stoppable = True

    def __init__(
        self,
        store: Store,
        gates: HostGates,
        secrets: Secrets,
        allow: tuple[str, ...] = (),
        max_timeout_s: float = math.inf,
        idle_s: float = IDLE_S,
    ) -> None:
        self._namespace = store.keys.prefix
        self._clock = store.clock
        self._gates = gates
        self._secrets = secrets
        self._max_timeout_s = max_timeout_s
        self._clients = Clients(store, Dialer(Guard(allowed_hosts(allow), "message.allow")), idle_s)

    async def deliver(self, unit: WorkItem) -> Delivered:
        target = target_of(unit.spec)
        assert isinstance(target, Message)
        passage = self._gates.to(host_of(target.url), unit.deadline)
        letter = letter_of(target, Envelope(unit, self._namespace), self._namespace)
        place = self._with_login(target)
        veil = _veil(place)
        with veil.over_errors():
            async with passage:
                started = self._clock.monotonic()
                told = veil.value(await self._send(target, place, letter))
        return Delivered({**told, "ms": round((self._clock.monotonic() - started) * 1000)})

    async def _send(self, target: Message, place: BrokerDestination, letter: BrokerMessage) -> dict[str, Any]:
        """Where messages leave. No longer than the target's timeout, whatever the broker does."""
        timeout = min(target.timeout, self._max_timeout_s)
        try:
            return await self._clients.send(place, letter, timeout)
        except TimeoutError:
            raise DeliveryFailed(f"{target}: not acknowledged within {timeout:g} s", status=408) from None
        except DeliveryFailed as error:
            lack = cause_of(error, OSError, is_lack)
            if lack is not None or are_used_up():
                raise handed_back(str(lack or error)) from error
            raise

    def _with_login(self, target: Message) -> BrokerDestination:
        """A secret is read anew for each message: one that was changed is another login, and gets another client."""
        place = target.place
        if target.password is None:
            return place
        hosts = [host for host, _ in place.server.nodes]
        login = replace(place.server, user=target.user, password=self._secrets.read(target.password, hosts))
        return replace(place, server=login)

    async def close(self) -> None:
        await self._clients.close()


def _veil(place: BrokerDestination) -> SecretMask:
    """A user without a password is a token, for NATS."""
    secret = place.server.password or place.server.user
    return veil_of((secret,)) if secret else NOTHING


def letter_of(target: Message, envelope: Envelope, namespace: str) -> BrokerMessage:
    value = target.value
    if target.fills:
        value = fill(value.decode(), envelope.values, in_json).encode()
    key = None if target.key is None else fill(target.key, envelope.values)
    headers = {
        "idempotency-key": envelope.key,
        "tocsin-run": in_header(envelope.run_id),
        "tocsin-due": envelope.due,
        "tocsin-attempt": str(envelope.attempt),
        "traceparent": envelope.traceparent,
    }
    content_type = "application/json" if target.json else "application/octet-stream"
    for name, text in target.headers.items():
        filled = fill(text, envelope.values, in_header)
        if name.lower() == "content-type":
            content_type = filled
        else:
            headers[name] = filled
    if target.cloudevent is not None:
        value = cloudevents.written(
            target.cloudevent, namespace, envelope, key, value, json=target.json, content_type=content_type
        )
        content_type = cloudevents.CONTENT_TYPE
    return BrokerMessage(value, key, headers, content_type, envelope.key)
