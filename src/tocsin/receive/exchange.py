"""One request and its response as ASGI tells them: a body that is read, a response held back until it is remembered."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from tocsin.model.errors import TurnLost
from tocsin.receive.joint_turn import JointTurn
from tocsin.receive.responses import Message, Receive, Response, Send, problem, remembered, remembered_without_body

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
    """`receive` and `send` of the app.

    The app is not told that the client has gone: what it does is remembered for the next attempt. A response that grows
    beyond `largest` is not held back any longer but flows to the client as it comes; then its body is not remembered,
    and the app is told when the client goes, because it may never end.
    """

    def __init__(self, turn: JointTurn, body: bytes, receive: Receive, send: Send, largest: int) -> None:
        self._turn = turn
        self._body: bytes | None = body
        self._receive = receive
        self._send = send
        self._largest = largest
        self._start: Message = {}
        self._held = bytearray()
        self._flows = False
        self._complete = False
        self._turned = asyncio.Event()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._turned.wait()
        return {"type": "http.disconnect"} if self._complete else await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif self._flows:
            await self._pass_on(message)
        else:
            await self._hold(message)

    async def _hold(self, message: Message) -> None:
        self._held += message.get("body", b"")
        if len(self._held) > self._largest:
            self._flows = True
            self._turned.set()
            await self._send(self._start)
            await self._pass_on({**message, "body": bytes(self._held)})
            self._held.clear()
        elif not message.get("more_body", False):
            response = self._response(bytes(self._held))
            self._complete = True
            self._turned.set()
            await (await self._remember(response, remembered(response))).send(self._send)

    async def _pass_on(self, message: Message) -> None:
        if not message.get("more_body", False):
            self._complete = True
            response = self._response(b"")
            await self._remember(response, remembered_without_body(response.status, response.headers))
        await self._send(message)

    async def _remember(self, response: Response, packed: bytes) -> Response:
        """What the client is told: nothing before it is remembered, or the key is free again."""
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
