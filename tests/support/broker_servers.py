"""NATS and RabbitMQ as processes on loopback, started again on the same port and data."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from tests.support.servers import certificate, free_port, freeze, launch
from tests.support.waiting import until

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Process:
    """A server that is there when its port is."""

    name = ""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-", dir="/tmp"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str] | None:
        return None

    def start(self) -> Self:
        self.process = launch(self.command(), self.folder / "log", self.environment())
        until(self._is_up, f"{self.name} listens", within=60)
        return self

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended at once:\n{(self.folder / 'log').read_text()}")
        return _listens(self.port)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        freeze(self.process)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


class NatsServer(Process):
    """With JetStream. `options` are the server's own."""

    name = "nats-server"

    def __init__(self, *options: str, conf: str = "") -> None:
        super().__init__()
        self._options = list(options)
        if conf:
            path = self.folder / "conf"
            path.write_text(conf)
            self._options += ["-c", str(path)]

    def command(self) -> list[str]:
        binary = str(Path(sys.executable).with_name("nats-server"))
        return [binary, "-js", "-a", "127.0.0.1", "-p", str(self.port), "-sd", str(self.folder), *self._options]


class _Names(Process):
    """Erlang's port mapper. Started by RabbitMQ itself it would stay for ever."""

    name = "epmd"

    def command(self) -> list[str]:
        return [shutil.which("epmd") or "epmd", "-port", str(self.port), "-address", "127.0.0.1"]


class RabbitServer(Process):
    """Takes messages of up to 100 000 bytes, so that there is something that is too large."""

    name = "rabbitmq-server"

    def __init__(self) -> None:
        super().__init__()
        self._names = _Names()
        self._distribution = free_port()
        self.tls_port = free_port()
        self.ca = self.folder / "tls.crt"
        certificate(self.folder)
        settings = {
            "max_message_size": 100_000,
            "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
            "ssl_options.certfile": self.ca,
            "ssl_options.keyfile": self.folder / "tls.key",
        }
        conf = "".join(f"{name} = {value}\n" for name, value in settings.items())
        (self.folder / "rabbitmq.conf").write_text(conf)
        (self.folder / "plugins").write_text("[].\n")

    @staticmethod
    def is_installed() -> bool:
        return RABBITMQ.exists()

    def command(self) -> list[str]:
        return [str(RABBITMQ)]

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            # No shell stands between us and the process that is killed.
            "RUNNING_UNDER_SYSTEMD": "1",
            "ERL_EPMD_PORT": str(self._names.port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"tocsin{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "generated"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def start(self) -> Self:
        if self._names.process is None:
            self._names.start()
        return super().start()

    def stop(self) -> None:
        super().stop()
        self._names.stop()
