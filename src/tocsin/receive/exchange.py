"""One request and its response in ASGI: reads the body, and holds the response back until it is remembered."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from tocsin.model.errors import TurnLost
from tocsin.receive.joint_turn import JointTurn
from tocsin.receive.responses import Message, Receive, Response, Send, pack, pack_without_body, problem

log = logging.getLogger("tocsin.receive")


class BodyTooLarge(Exception):
    pass


class ClientGone(Exception):
    pass


async def read_body(receive: Receive, largest: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > largest:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return b"".join(parts)


class Exchange:
    """The `receive` and `send` that the app gets.

    The app does not see that the client has gone, because its response is remembered for the next attempt. A response
    that grows beyond `largest` is not held back any longer but streamed to the client. Then its body is not remembered,
    and the app does see that the client has gone, because such a response may never end.
    """

    def __init__(self, turn: JointTurn, body: bytes, receive: Receive, send: Send, largest: int) -> None:
        self._turn = turn
        self._body: bytes | None = body
        self._receive = receive
        self._send = send
        self._largest = largest
        self._start: Message = {}
        self._buffered = bytearray()
        self._streams = False
        self._complete = False
        self._may_disconnect = asyncio.Event()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._may_disconnect.wait()
        return {"type": "http.disconnect"} if self._complete else await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif self._streams:
            await self._forward(message)
        else:
            await self._buffer(message)

    async def _buffer(self, message: Message) -> None:
        self._buffered += message.get("body", b"")
        if len(self._buffered) > self._largest:
            self._streams = True
            self._may_disconnect.set()
            await self._send(self._start)
            await self._forward({**message, "body": bytes(self._buffered)})
            self._buffered.clear()
        elif not message.get("more_body", False):
            response = self._response(bytes(self._buffered))
            self._complete = True
            self._may_disconnect.set()
            await (await self._remember(response, pack(response))).send(self._send)

    async def _forward(self, message: Message) -> None:
        if not message.get("more_body", False):
            self._complete = True
            response = self._response(b"")
            await self._remember(response, pack_without_body(response.status, response.headers))
        await self._send(message)

    async def _remember(self, response: Response, packed: bytes) -> Response:
        """The response for the client, once it is remembered or, after a failure, the key is free again."""
        if not response.is_success:
            await self._turn.free()
            return response
        try:
            await self._turn.answer(packed)
        except TurnLost as error:
            log.warning("%s", error)
            return problem(409, "Lost", str(error), retry_after_s=1)
        return response

    def _response(self, body: bytes) -> Response:
        headers: Any = self._start.get("headers", [])
        return Response(self._start["status"], [(bytes(name), bytes(value)) for name, value in headers], body)
