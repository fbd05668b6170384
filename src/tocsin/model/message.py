"""Message: a target that publishes a message to a broker."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import force_setattr

from tocsin.model import broker_address
from tocsin.model.broker_address import SCHEMES, BrokerDestination
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument
from tocsin.model.http import check_header, check_headers, encode_json, without_login
from tocsin.model.secret import Secret
from tocsin.model.template import MARK, check_template

DEFAULT_TIMEOUT_S = 10.0
LONGEST_TIMEOUT_S = 86_400.0

# Headers that Tocsin sets, by broker: fields of a stream entry, and NATS's id for dropping duplicates.
_TAKEN = {"redis": ("key", "value"), "nats": ("nats-msg-id",)}
# An address is parsed when a message is made, and again each time it is sent.
_parsed = lru_cache(maxsize=1024)(broker_address.parse)


class Message(Struct, frozen=True, array_like=True):
    """A message that a worker publishes to `url`: `kafka://broker:9092/topic`, `nats://host/subject`,
    `amqp://host/queue`, `redis://host/stream`, or `redis:///stream` on Tocsin's own server. The value, the key and the
    headers may contain fields of the run, like {run.due}."""

    url: str
    # Stored as bytes: bytes unchanged, anything else as JSON.
    value: Any = b""
    # Messages with the same key stay in order, if the broker orders by key.
    key: str | None = None
    headers: dict[str, str] = {}
    # The type of the CloudEvent to wrap the value in; None: no CloudEvent.
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
        if not isinstance(self.url, str):
            raise InvalidArgument(f"the address of a message is text, not {self.url!r:.200}")
        place = self.place
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
        given = check_headers(self.headers)
        force_setattr(self, "headers", {name: self._check_header(name, text) for name, text in given.items()})
        self._check_login(place)
        timeout = seconds(self.timeout, "a timeout")
        if not 0.001 <= timeout <= LONGEST_TIMEOUT_S:
            raise InvalidArgument(f"the timeout of a message must be between 1 ms and a day, not {self.timeout!r}")
        force_setattr(self, "timeout", timeout)

    def _check_header(self, name: object, value: object) -> str:
        checked = check_header(name, value)
        if not isinstance(checked, str):
            raise InvalidArgument(f"the header {name} of a message must be text: messages are kept, and read by others")
        lower = str(name).lower()
        if lower in _TAKEN.get(self.broker, ()):
            raise InvalidArgument(
                f"the header {name} is set when the message is sent: leave it out, or name it otherwise"
            )
        if lower == "content-type" and self.cloudevent is not None:
            raise InvalidArgument("a CloudEvent has a content type of its own: leave the header out")
        return checked

    def _check_login(self, place: BrokerDestination) -> None:
        if self.password is not None and not isinstance(self.password, Secret):
            raise InvalidArgument("password= takes Secret.env(…) or Secret.file(…): secrets are not stored with jobs")
        if self.user is None and self.password is None:
            return
        if not place.server.nodes:
            raise InvalidArgument(f"{self} is Tocsin's own server: user= and password= are for others")
        if place.server.user or place.server.password:
            raise InvalidArgument(f"{self} has a login already: give it in the address, or as user= and password=")
        if self.password is None:
            raise InvalidArgument("user= needs password=: the name of a Secret")
        if self.user is None and self.broker in ("kafka", "rabbitmq"):
            raise InvalidArgument(f"{self} needs user= beside password=")

    @property
    def place(self) -> BrokerDestination:
        return _parsed(self.url)

    @property
    def broker(self) -> str:
        return SCHEMES[self.url.partition("://")[0]].broker

    def __str__(self) -> str:
        """For output to people, without the login."""
        return without_login(self.url)

    def __repr__(self) -> str:
        return f"<Message to {self}>"
