"""The keeper: runs the embedded server of one data folder for as long as the folder has users.

Four lock files in the data folder carry the protocol. The kernel releases a lock when its holder dies, however it
dies, so a held lock proves that its holder is alive:

start.lock    exclusive, held by a user while it joins or leaves
users.lock    shared, held by every user. The keeper waits for the exclusive lock and holds it until the server has
              ended: a new user waits for that, so it never joins a server that is stopping
keeper.lock   exclusive, held by the keeper all its life
server.lock   exclusive, held by the server itself, which inherits it. So two servers never write the same data, and
              waiting for this lock means waiting for the server's end

This file runs as a program and imports only the standard library, so that it starts in milliseconds and works with
any sys.path of the user's program.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import pwd
import queue
import signal
import socket as sockets
import stat
import struct
import subprocess
import sys
import threading
import time

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX

# A stopping server is killed after this long. It loses no data, because the kernel has all of its writes.
_PATIENCE_S = 10.0
# Users take locks for a moment to check them. A lock that stays taken for this long has a real holder.
_GLANCE_S = 0.2
# A server that needs a third start within this time is broken, so the keeper gives up.
_THIRD_START_S = 5.0
_LONGEST_LOG = 1 << 20


# Everybody may make folders here, so each use checks the owner (check_runtime_folder, check_peer).
_ANYBODYS = "/tmp"  # noqa: S108
# Files of the server are private to its user, whatever the folder's mode and the user's umask.
_UMASK = 0o077


class OwnedByAnotherUser(Exception):
    """Another user owns a file, or could have made it. The message names both and what to do."""


def is_ours(uid: int) -> bool:
    """Whether a user id is ours or root's. Root can do anything anyway."""
    return uid in (os.geteuid(), 0)


def user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


class Lock:
    """An flock on a file, which is never deleted."""

    def __init__(self, path: str, folder: int | None = None) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.fd = os.open(path, flags, 0o600, dir_fd=folder)

    def take(self, how: int, timeout: float | None = 0.0) -> bool:
        """Take the lock and return whether that succeeded in time. A timeout of None waits for ever."""
        if timeout is None:
            fcntl.flock(self.fd, how)
            return True
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self.fd, how | fcntl.LOCK_NB)
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)

    def release(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the descriptor. This does not release a lock that a child has inherited."""
        os.close(self.fd)

    def is_held(self) -> bool:
        """Whether another process holds the lock exclusively."""
        if self.take(SHARED):
            self.release()
            return False
        return True


def runtime_folder(parent: str = _ANYBODYS) -> str:
    """The folder of this user's sockets. Short, because a socket's path has at most 107 bytes.

    Not in $XDG_RUNTIME_DIR or $TMPDIR: a login shell and a cron job of the same user must find the same socket.
    """
    return os.path.join(parent, f"tocsin-{os.getuid()}")


def make_runtime_folder(parent: str = _ANYBODYS) -> None:
    """Make the folder. Anybody may write to /tmp, so raise OwnedByAnotherUser if another user can have made it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(runtime_folder(parent), 0o700)
    check_runtime_folder(parent)


def check_runtime_folder(parent: str = _ANYBODYS) -> None:
    """Raises OwnedByAnotherUser. Users of a running server call it too: after a cleanup of /tmp anybody may make it."""
    folder = runtime_folder(parent)
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or not is_ours(found.st_uid) or found.st_mode & 0o077:
        raise OwnedByAnotherUser(
            f"{folder}, the place of the embedded server's socket, is not a private folder of this user: it belongs "
            f"to {user(found.st_uid)} and has mode {stat.filemode(found.st_mode)}. Remove it, or have it removed"
        )


def check_peer(connection: sockets.socket, path: str) -> None:
    """Raise OwnedByAnotherUser if another user runs the server. Asks the connection, because the path can change."""
    if hasattr(sockets, "SO_PEERCRED"):
        credentials = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("iII"))
        _, uid, _ = struct.unpack("iII", credentials)
    else:
        uid = os.lstat(path).st_uid
    if not is_ours(uid):
        raise OwnedByAnotherUser(
            f"the server at {path} belongs to {user(uid)}, not to this user, so nothing is sent to it: have that file "
            "removed; the server of this user then makes it anew"
        )


def stop_server(folder: str) -> None:
    """End a server that has no keeper to restart it, and return when it is gone."""
    lock = Lock(os.path.join(folder, "server.lock"))
    try:
        for how in (signal.SIGTERM, signal.SIGKILL):
            sent, deadline = False, time.monotonic() + _PATIENCE_S
            while time.monotonic() < deadline:
                if lock.take(SHARED, 0.01):
                    return
                sent = sent or signal_server(folder, how)
    finally:
        lock.close()


def signal_server(folder: str, how: signal.Signals) -> bool:
    """Send the signal. Returns False if the server has not written its pid yet, because it has just started.

    Call it only while server.lock is held: then the pid is the holder's, because each start removes the file first.
    """
    try:
        with open(os.path.join(folder, "server.pid")) as file:
            pid = int(file.read())
    except (FileNotFoundError, ValueError):
        return False
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        _end_group(pid)
    else:
        if how == signal.SIGKILL:
            _end_group(pid)
    return True


def _end_group(server: int) -> None:
    """Kill the children of a dead server: one that rewrites the AOF lives on and holds server.lock."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server, signal.SIGKILL)


class Keeper:
    """Runs and restarts the server. The data folder is its current folder, so the folder may be moved."""

    def __init__(self, socket: str, binary: str, allocator: str) -> None:
        self._socket = socket
        self._binary = binary
        self._allocator = allocator
        self._users = Lock("users.lock")
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        # None if we adopted the server of a killed keeper.
        self._server: subprocess.Popen[bytes] | None = None
        self._starts: list[float] = []

    def keep(self) -> None:
        """Return when the last user has left and the server has ended, or when the server keeps failing."""
        threading.Thread(target=self._await_last_user, daemon=True).start()
        self._run_server()
        while self._news.get() == "server ended":
            if self._gave_up() or self._fails_often():
                return
            self._run_server()
        self._stop()

    def _await_last_user(self) -> None:
        self._users.take(EXCLUSIVE, None)
        self._news.put("last user left")

    def _run_server(self) -> None:
        """Start a server, or adopt the one that holds the lock."""
        lock = Lock("server.lock")
        if lock.take(EXCLUSIVE, _GLANCE_S):
            self._server = self._spawn(lock)
            lock.close()
            watch = threading.Thread(target=self._await_end, args=[self._server], daemon=True)
        else:
            self._server = None
            watch = threading.Thread(target=self._await_adopted_end, args=[lock], daemon=True)
        watch.start()

    def _await_end(self, server: subprocess.Popen[bytes]) -> None:
        server.wait()
        _end_group(server.pid)
        self._news.put("server ended")

    def _await_adopted_end(self, lock: Lock) -> None:
        lock.take(SHARED, None)
        lock.close()
        self._news.put("server ended")

    def _stop(self) -> None:
        if self._server is None:
            stop_server(".")
            return
        self._server.terminate()
        try:
            self._server.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        _end_group(self._server.pid)

    def _spawn(self, lock: Lock) -> subprocess.Popen[bytes]:
        make_runtime_folder()
        for left_over in ["server.pid", *glob.glob("temp-rewriteaof-*")]:
            with contextlib.suppress(FileNotFoundError):
                os.remove(left_over)
        self._starts.append(time.monotonic())
        # Runs the binary of an installed package with our own settings.
        return subprocess.Popen(  # noqa: S603
            [self._binary, *self._settings()],
            stdin=subprocess.DEVNULL,
            pass_fds=[lock.fd],
            process_group=0,
            env={**os.environ, "LD_PRELOAD": self._allocator} if self._allocator else None,
        )

    def _settings(self) -> list[str]:
        """All paths are relative, because the path of the data folder may be long and contain any character."""
        settings = {
            "port": "0",
            "unixsocket": self._socket,
            "unixsocketperm": "700",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            # A busy scheduler writes hundreds of bytes per run. Rare rewrites of the log, without compression, leave
            # the second core to the workers. A restarting server reads 1 GB in nine seconds.
            "auto-aof-rewrite-min-size": "1gb",
            "rdbcompression": "no",
            # Compact encodings are searched linearly, which is slow for sets that fill and empty all the time.
            "zset-max-listpack-entries": "0",
            "hash-max-listpack-entries": "0",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "supervised": "no",
            "pidfile": "server.pid",
            "logfile": "server.log",
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    def _gave_up(self) -> bool:
        """Whether the server exited by itself, like one that cannot read its data. A killed one has a code below 0."""
        return self._server is not None and self._server.wait() > 0

    def _fails_often(self) -> bool:
        recent = self._starts[-2:]
        return len(recent) == 2 and time.monotonic() - recent[0] < _THIRD_START_S


def _detach() -> None:
    """Detach from the user's terminal and send output to the server's log."""
    # Ignore signals to a whole group of processes: its users get time to finish, and we end after them. Not with
    # SIG_IGN, which the server would inherit until it has installed handlers of its own.
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, lambda *_: None)
    with contextlib.suppress(FileNotFoundError):
        if os.path.getsize("server.log") > _LONGEST_LOG:
            os.replace("server.log", "server.log.old")
    log = os.open("server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)


def main(folder: str, socket: str, binary: str, allocator: str) -> None:
    """`folder` is the descriptor of the folder that our user has checked. Its path may lead elsewhere by now."""
    os.umask(_UMASK)
    os.fchdir(int(folder))
    os.close(int(folder))
    lock = Lock("keeper.lock")
    if not lock.take(EXCLUSIVE, _PATIENCE_S):
        sys.exit("another keeper is there")
    # The end of this parent signals the user that the keeper has its lock. It also makes the keeper an orphan, so that
    # the user's program gets no unknown child.
    if child := os.fork():
        os.ftruncate(lock.fd, 0)
        os.write(lock.fd, b"%d\n" % child)
        os._exit(0)
    _detach()
    Keeper(socket, binary, allocator).keep()
    # A killed server leaves its socket behind.
    with contextlib.suppress(FileNotFoundError):
        os.remove(socket)
    # Release it before users.lock, which our end releases: a user that gets users.lock must find no keeper.
    lock.close()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
