"""The message target: publishes one message per attempt. The run is done when the broker acknowledges it."""

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
from tocsin.targets.file_descriptors import are_descriptors_used_up, descriptors_used_up, is_descriptor_shortage
from tocsin.targets.host_gates import HostGates
from tocsin.targets.messages import cloudevents
from tocsin.targets.messages.broker import BrokerMessage, cause_of
from tocsin.targets.messages.clients import IDLE_S, Clients
from tocsin.targets.messages.dialer import Dialer
from tocsin.targets.secret_masking import NO_SECRETS, SecretMask, mask_of
from tocsin.targets.secrets import Secrets


class MessageTarget:
    """Sends the messages of all jobs of a worker, to any broker whose client is installed."""

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
        delivery = self._gates.delivery_to(host_of(target.url), unit.deadline)
        message = message_for(target, Envelope(unit, self._namespace), self._namespace)
        destination = self._with_login(target)
        mask = _mask(destination)
        with mask.mask_errors():
            async with delivery:
                started = self._clock.monotonic()
                reply = mask.value(await self._send(target, destination, message))
        return Delivered({**reply, "ms": round((self._clock.monotonic() - started) * 1000)})

    async def _send(self, target: Message, destination: BrokerDestination, message: BrokerMessage) -> dict[str, Any]:
        """Ends within the target's timeout, whatever the broker does."""
        timeout = min(target.timeout, self._max_timeout_s)
        try:
            return await self._clients.send(destination, message, timeout)
        except TimeoutError:
            raise DeliveryFailed(f"{target}: not acknowledged within {timeout:g} s", status=408) from None
        except DeliveryFailed as error:
            shortage = cause_of(error, OSError, is_descriptor_shortage)
            if shortage is not None or are_descriptors_used_up():
                raise descriptors_used_up(str(shortage or error)) from error
            raise

    def _with_login(self, target: Message) -> BrokerDestination:
        """The destination with its password, which is read anew for each message. A changed password is another login,
        and gets another client."""
        destination = target.place
        if target.password is None:
            return destination
        hosts = [host for host, _ in destination.server.nodes]
        login = replace(destination.server, user=target.user, password=self._secrets.read(target.password, hosts))
        return replace(destination, server=login)

    async def close(self) -> None:
        await self._clients.close()


def _mask(destination: BrokerDestination) -> SecretMask:
    """For NATS a user without a password is a token, so it is a secret."""
    secret = destination.server.password or destination.server.user
    return mask_of((secret,)) if secret else NO_SECRETS


def message_for(target: Message, envelope: Envelope, namespace: str) -> BrokerMessage:
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
        value = cloudevents.encode_event(
            target.cloudevent, namespace, envelope, key, value, json=target.json, content_type=content_type
        )
        content_type = cloudevents.CONTENT_TYPE
    return BrokerMessage(value, key, headers, content_type, envelope.key)
