"""The leash: starts one program, keeps the two ends of its output, and ends what the program left behind.

A worker starts one leash per program, and talks to it over stdin and stdout:

stdin    an order (pack_order); then any byte asks the program to end, and the end of the file kills it. The kernel
         closes the pipe of a worker that dies, however it dies: so no program outlives its worker
stdout   a report (pack_report), when nothing of the program is left

The program has a session of its own, so signals for its group are for it and its children. On Linux the leash also
adopts those of its descendants that leave the group, and a leash that is killed takes its program along.

This file runs as a program and uses the standard library alone, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

# typing costs more time than all else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# How often it looks whether its parent is still the worker: a process that the worker forked may hold the pipe open.
_LOOK_S = 1.0
_CHUNK = 64 * 1024
# Of what is left in the pipe when the program is gone, at most: somebody whom nobody could end may be writing into it.
_MOST_LEFT = 2 * 1024 * 1024
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_CHILDREN = "/proc/thread-self/children"
# They would end the leash before its program.
_HELD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# What Python ignores, and programs expect to end by.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


class StartOrder:
    """What to start: `file` is executed, whatever the first argument says."""

    def __init__(
        self,
        worker: int,
        head: int,
        tail: int,
        cwd: bytes,
        file: bytes,
        argv: list[bytes],
        env: list[bytes],
    ) -> None:
        self.worker = worker
        # Of its output so many bytes are kept, of the beginning and of the end.
        self.head, self.tail = head, tail
        # Empty: where the worker is.
        self.cwd = cwd
        self.file, self.argv, self.env = file, argv, env


class ExitReport:
    """How it ended. `code` is negative for a signal; `where` and `errno` say why it could not be started."""

    def __init__(self, code: int, where: str, errno: int, written: int, head: bytes, tail: bytes) -> None:
        self.code = code
        self.where, self.errno = where, errno
        # How many bytes it wrote in all; the first ones of them, and the last ones.
        self.written, self.head, self.tail = written, head, tail


def pack_order(order: StartOrder) -> bytes:
    numbers = b"%d %d %d %d" % (order.worker, order.head, order.tail, len(order.argv))
    body = b"\0".join([numbers, order.cwd, order.file, *order.argv, *order.env])
    return len(body).to_bytes(4, "big") + body


def unpack_order(body: bytes) -> StartOrder:
    numbers, cwd, file, *rest = body.split(b"\0")
    worker, head, tail, count = map(int, numbers.split())
    return StartOrder(worker, head, tail, cwd, file, rest[:count], rest[count:])


def pack_report(report: ExitReport) -> bytes:
    line = f"{report.code} {report.where or '-'} {report.errno} {report.written} {len(report.head)}\n"
    return line.encode() + report.head + report.tail


def unpack_report(said: bytes) -> ExitReport | None:
    """None if it is no report: the leash was killed, or could not even begin."""
    line, _, rest = said.partition(b"\n")
    try:
        code, where, errno, written, length = line.decode().split(" ")
        head = int(length)
        return ExitReport(int(code), where.strip("-"), int(errno), int(written), rest[:head], rest[head:])
    except ValueError:
        return None


class OutputEnds:
    """The first and the last bytes of an output of any length."""

    def __init__(self, head: int, tail: int) -> None:
        self.written = 0
        self.head = self.tail = b""
        self._head, self._tail = head, tail

    def add(self, chunk: bytes) -> None:
        self.written += len(chunk)
        room = self._head - len(self.head)
        self.head += chunk[:room]
        if self._tail:
            self.tail = (self.tail + chunk[room:])[-self._tail :]


class ProgramSupervisor:
    def __init__(self, order: StartOrder) -> None:
        self._order = order
        self._ends = OutputEnds(order.head, order.tail)
        self._prctl = _find_prctl()
        if self._prctl is not None and os.path.exists(_CHILDREN):
            self._prctl(_SET_CHILD_SUBREAPER, 1)
        self._woken = _wake_on_child()
        # Closed by itself when the program begins; until then the way to say why it does not.
        self._trouble, trouble = os.pipe()
        self._output, output = os.pipe()
        own = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            self._become_the_program(own, output, trouble)
        os.close(trouble)
        os.close(output)
        os.set_blocking(self._output, False)

    def run(self) -> ExitReport:
        """Until nothing of the program is left."""
        watched = [0, self._output, self._woken]
        while True:
            ready, _, _ = select.select(watched, [], [], _LOOK_S)
            if self._output in ready and not self._read():
                watched.remove(self._output)
            if 0 in ready and not self._obey():
                watched.remove(0)
            if 0 in watched and os.getppid() != self._order.worker:
                self._signal(signal.SIGKILL)
                watched.remove(0)
            if self._woken in ready:
                os.read(self._woken, 64)
                code = self._reap()
                if code is not None:
                    return self._report(code)

    def _reap(self) -> int | None:
        """Bury the adopted. The exit code of the program, if it has ended as well."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self._pid:
                    return os.waitstatus_to_exitcode(status)
                if not pid:
                    break
        return None

    def _obey(self) -> bool:
        """Whether the worker may say more."""
        if os.read(0, 64):
            self._signal(signal.SIGTERM)
            return True
        self._signal(signal.SIGKILL)
        return False

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except ProcessLookupError:
            # It has no group of its own yet. It is not reaped, so it is there.
            with contextlib.suppress(OSError):
                os.kill(self._pid, number)
        except PermissionError:
            # It has become another user, and ends when it likes.
            pass

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            chunk = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return True
        self._ends.add(chunk)
        return bool(chunk)

    def _report(self, code: int) -> ExitReport:
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        _end_adopted()
        self._read_the_rest()
        where, _, errno = os.read(self._trouble, 64).decode().partition(" ")
        return ExitReport(code, where, int(errno or 0), self._ends.written, self._ends.head, self._ends.tail)

    def _read_the_rest(self) -> None:
        most = self._ends.written + _MOST_LEFT
        with contextlib.suppress(BlockingIOError):
            while self._ends.written < most and (chunk := os.read(self._output, _CHUNK)):
                self._ends.add(chunk)

    def _become_the_program(self, leash: int, output: int, trouble: int) -> None:
        """In the child. All other descriptors close themselves."""
        where = "start"
        try:
            os.setsid()
            if self._prctl is not None:
                self._prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != leash:
                return
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.set_wakeup_fd(-1)
            for number in (*_HELD, *_IGNORED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            if self._order.cwd:
                where = "cwd"
                os.chdir(self._order.cwd)
            where = "exec"
            env = dict(pair.split(b"=", 1) for pair in self._order.env)
            # A shell would read meaning into the arguments.
            os.execve(self._order.file, self._order.argv, env)  # noqa: S606
        except OSError as error:
            os.write(trouble, f"{where} {error.errno or 0}".encode())
        finally:
            os._exit(127)


def _find_prctl() -> Callable[[int, int], int] | None:
    """Only Linux has it."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None


def _wake_on_child() -> int:
    """A descriptor that can be read when a child has ended."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return woken


def _end_adopted() -> None:
    """Those that left the group, once their parents are gone; all of them, but for those that became another user."""
    while True:
        adopted = _children()
        killed = [pid for pid in adopted if _kill(pid)]
        try:
            os.waitpid(-1, 0 if killed else os.WNOHANG)
        except ChildProcessError:
            return
        if adopted and not killed:
            return


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _children() -> list[int]:
    try:
        with open(_CHILDREN, "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _read_exactly(length: int) -> bytes:
    """From stdin; less only at its end."""
    found = b""
    while len(found) < length and (chunk := os.read(0, length - len(found))):
        found += chunk
    return found


def main() -> None:
    # Held back, not ignored: what is sent to a program before it has begun reaches it when it begins.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    length = int.from_bytes(_read_exactly(4), "big")
    body = _read_exactly(length)
    if not length or len(body) < length:
        # The worker has thought better of it, or is gone.
        return
    said = pack_report(ProgramSupervisor(unpack_order(body)).run())
    with contextlib.suppress(BrokenPipeError):
        while said:
            said = said[os.write(1, said) :]


if __name__ == "__main__":
    main()
