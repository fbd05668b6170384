"""A web server on loopback that answers as its path says, so that errors are the libraries' own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class _Answers(BaseHTTPRequestHandler):
    """/403 answers with 403, /403/Code with that and an AWS error, /hang when the server ends, /drop never."""

    def do_GET(self) -> None:
        _, what, *code = self.path.split("/")
        if what == "hang":
            self.server.over.wait()
        if what.isdigit():
            body = f"<ErrorResponse><Error><Code>{code[0] if code else ''}</Code></Error></ErrorResponse>".encode()
            self.send_response(int(what))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        self.close_connection = True

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.over = threading.Event()

    def handle_error(self, *_) -> None:
        """The client has gone: that is what was asked for."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
