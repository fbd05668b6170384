"""A Kafka broker's door: it asks for a login, notes it, and lets nobody in. librdkafka's cluster asks for none."""

from __future__ import annotations

import asyncio
import ssl
import struct

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
SASL_AUTHENTICATION_FAILED = 58


class KafkaGate:
    def __init__(self, says: bytes = b"go on") -> None:
        self._says = says
        self.tokens: list[bytes] = []
        self.port = 0

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while size := await reader.read(4):
                request = await reader.readexactly(struct.unpack(">i", size)[0])
                api, _, correlation, name = struct.unpack(">hhih", request[:10])
                answer = struct.pack(">i", correlation) + self._answer(api, request[10 + name :])
                writer.write(struct.pack(">i", len(answer)) + answer)
        finally:
            writer.close()

    def _answer(self, api: int, body: bytes) -> bytes:
        if api == API_VERSIONS:
            versions = ((API_VERSIONS, 0), (SASL_HANDSHAKE, 1), (SASL_AUTHENTICATE, 0))
            return struct.pack(">hi", 0, len(versions)) + b"".join(
                struct.pack(">hhh", key, newest, newest) for key, newest in versions
            )
        if api == SASL_HANDSHAKE:
            return struct.pack(">hih", 0, 1, 5) + b"PLAIN"
        self.tokens.append(body[4:])
        return struct.pack(">hh", SASL_AUTHENTICATION_FAILED, len(self._says)) + self._says + struct.pack(">i", 0)
