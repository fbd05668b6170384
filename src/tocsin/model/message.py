"""A message as what a job does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import force_setattr

from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument, nearest
from tocsin.model.http import check_header, encode_json, without_login
from tocsin.model.secret import Secret
from tocsin.model.template import MARK, check_template

DEFAULT_TIMEOUT_S = 10.0
LONGEST_TIMEOUT_S = 86_400.0
# The address's scheme, and the broker that it means.
BROKERS = {
    "redis": "redis",
    "rediss": "redis",
    "kafka": "kafka",
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "nats": "nats",
}


class Message(Struct, frozen=True, array_like=True):
    """What a worker publishes, and where: `kafka://broker:9092/topic`, `nats://host/subject`, `amqp://host/queue`,
    `redis://host/stream`; `redis:///stream` is on Tocsin's own server."""

    url: str
    # JSON, unless it is bytes. Kept as bytes.
    value: Any = b""
    # Messages of one key stay in order, where the broker keeps one.
    key: str | None = None
    headers: dict[str, str] = {}
    # The type of the CloudEvent that it is sent as; None: as it is.
    cloudevent: str | None = None
    timeout: float = DEFAULT_TIMEOUT_S
    user: str | None = None
    password: Secret | None = None
    # Whether the value has fields to fill in, and whether it was given as JSON.
    fills: bool = False
    json: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            url: str,
            value: Any = b"",
            key: str | None = None,
            headers: Mapping[str, str] = {},
            cloudevent: str | None = None,
            timeout: Duration = DEFAULT_TIMEOUT_S,
            user: str | None = None,
            password: Secret | None = None,
            fills: bool = False,
            json: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_address(self.url)
        if not isinstance(self.value, bytes):
            body = encode_json(self.value)
            check_template(body.decode(), "the value")
            force_setattr(self, "value", body)
            force_setattr(self, "fills", MARK.encode() in body)
            force_setattr(self, "json", True)
        for what, text in (("the key", self.key), ("cloudevent", self.cloudevent), ("the user", self.user)):
            if text is not None and (not isinstance(text, str) or not text):
                raise InvalidArgument(f"{what} of a message must be text, not {text!r}")
        check_template(self.key or "", "the key")
        force_setattr(self, "headers", {name: _check_header(name, value) for name, value in self.headers.items()})
        if self.password is not None and not isinstance(self.password, Secret):
            raise InvalidArgument("password= takes Secret.env(…) or Secret.file(…): secrets are not stored with jobs")
        timeout = seconds(self.timeout, "a timeout")
        if not 0.001 <= timeout <= LONGEST_TIMEOUT_S:
            raise InvalidArgument(f"the timeout of a message must be between 1 ms and a day, not {self.timeout!r}")
        force_setattr(self, "timeout", timeout)

    @property
    def broker(self) -> str:
        return BROKERS[self.url.partition("://")[0]]

    def __str__(self) -> str:
        """For people, without the login."""
        return without_login(self.url)

    def __repr__(self) -> str:
        return f"<Message to {self}>"


def _check_address(url: object) -> None:
    if not isinstance(url, str):
        raise InvalidArgument(f"the address of a message is text, not {url!r}")
    scheme = url.partition("://")[0]
    if scheme not in BROKERS:
        raise InvalidArgument(f"messages cannot go to {without_login(url)!r:.200}; {nearest(scheme, BROKERS)}")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        # A list of brokers has several ports.
        if "," not in url:
            raise InvalidArgument(f"{without_login(url)!r:.200} is no address: {error}") from None
        parts = urlsplit(url)
    if not parts.path.strip("/"):
        raise InvalidArgument(
            f"{without_login(url)!r:.200} does not say where to: add the topic, subject, queue or stream after the host"
        )
    if not parts.netloc and scheme not in ("redis", "rediss"):
        raise InvalidArgument(f"{url!r:.200} has no host")


def _check_header(name: object, value: object) -> str:
    checked = check_header(name, value)
    if not isinstance(checked, str):
        raise InvalidArgument(f"the header {name} of a message must be text: messages are kept, and read by others")
    return checked
