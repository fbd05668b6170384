"""The supervisor process: starts one program, keeps the beginning and the end of its output, and kills all processes
that the program leaves behind.

A worker starts one supervisor per program, and talks to it over stdin and stdout:

stdin    an order (pack_order); then any byte asks the program to end, and the end of the file kills it. The kernel
         closes the pipe of a worker that dies, however it dies, so no program outlives its worker
stdout   a report (pack_report), when no process of the program is left

The program has a session of its own, so signals to its group reach it and its children. On Linux the supervisor also
adopts descendants that leave the group, and the kernel kills the program if the supervisor is killed.

This file runs as a program and uses the standard library alone, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

# Importing typing would take longer than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# How often it checks that its parent is still the worker: a process that the worker forked may hold the pipe open.
_CHECK_PARENT_S = 1.0
_CHUNK = 64 * 1024
# When the program is gone, at most this much is read from the pipe: a process that could not be killed may still write.
_MOST_LEFT = 2 * 1024 * 1024
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_CHILDREN = "/proc/thread-self/children"
# Signals that would end the supervisor before its program.
_BLOCKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Signals that Python ignores, though programs expect them to end the process.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


class StartOrder:
    """The program to start: `file` is executed, even if the first of `argv` names another."""

    def __init__(
        self,
        *,
        worker: int,
        head: int,
        tail: int,
        cwd: bytes,
        file: bytes,
        argv: list[bytes],
        env: list[bytes],
    ) -> None:
        self.worker = worker
        # How many bytes are kept of the beginning and of the end of the output.
        self.head, self.tail = head, tail
        # Empty: the worker's own folder.
        self.cwd = cwd
        self.file, self.argv, self.env = file, argv, env


class ExitReport:
    """How a program ended. `code` is negative for a signal. If it could not start, `where` and `errno` say why."""

    def __init__(self, code: int, where: str, errno: int, written: int, head: bytes, tail: bytes) -> None:
        self.code = code
        self.where, self.errno = where, errno
        # How many bytes it wrote in all; the first of them, and the last.
        self.written, self.head, self.tail = written, head, tail


def pack_order(order: StartOrder) -> bytes:
    numbers = b"%d %d %d %d" % (order.worker, order.head, order.tail, len(order.argv))
    body = b"\0".join([numbers, order.cwd, order.file, *order.argv, *order.env])
    return len(body).to_bytes(4, "big") + body


def unpack_order(body: bytes) -> StartOrder:
    numbers, cwd, file, *rest = body.split(b"\0")
    worker, head, tail, count = map(int, numbers.split())
    return StartOrder(worker=worker, head=head, tail=tail, cwd=cwd, file=file, argv=rest[:count], env=rest[count:])


def pack_report(report: ExitReport) -> bytes:
    line = f"{report.code} {report.where or '-'} {report.errno} {report.written} {len(report.head)}\n"
    return line.encode() + report.head + report.tail


def unpack_report(report: bytes) -> ExitReport | None:
    """None if it is no report: the supervisor was killed, or did not start."""
    line, _, rest = report.partition(b"\n")
    try:
        code, where, errno, written, length = line.decode().split(" ")
        head = int(length)
        return ExitReport(int(code), where.strip("-"), int(errno), int(written), rest[:head], rest[head:])
    except ValueError:
        return None


class OutputEnds:
    """Keeps the first and the last bytes of an output of any length."""

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
        self._kept = OutputEnds(order.head, order.tail)
        self._prctl = _find_prctl()
        if self._prctl is not None and os.path.exists(_CHILDREN):
            self._prctl(_SET_CHILD_SUBREAPER, 1)
        self._child_ended = _wake_on_child()
        # The child reports here why it cannot start the program; a successful start closes it.
        self._start_error, start_error = os.pipe()
        self._output, output = os.pipe()
        own = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            self._become_the_program(own, output, start_error)
        os.close(start_error)
        os.close(output)
        os.set_blocking(self._output, False)

    def run(self) -> ExitReport:
        """Return when no process of the program is left."""
        watched = [0, self._output, self._child_ended]
        while True:
            ready, _, _ = select.select(watched, [], [], _CHECK_PARENT_S)
            if self._output in ready and not self._read():
                watched.remove(self._output)
            if 0 in ready and not self._follow_worker():
                watched.remove(0)
            if 0 in watched and os.getppid() != self._order.worker:
                self._signal(signal.SIGKILL)
                watched.remove(0)
            if self._child_ended in ready:
                os.read(self._child_ended, 64)
                code = self._reap()
                if code is not None:
                    return self._report(code)

    def _reap(self) -> int | None:
        """Reap children that ended. The exit code of the program if it is one of them, else None."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self._pid:
                    return os.waitstatus_to_exitcode(status)
                if not pid:
                    break
        return None

    def _follow_worker(self) -> bool:
        """False if the worker closed the pipe."""
        if os.read(0, 64):
            self._signal(signal.SIGTERM)
            return True
        self._signal(signal.SIGKILL)
        return False

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except ProcessLookupError:
            # It has no group of its own yet. It is not reaped yet, so its pid is still its own.
            with contextlib.suppress(OSError):
                os.kill(self._pid, number)
        except PermissionError:
            # It runs as another user now, so it cannot be signalled.
            pass

    def _read(self) -> bool:
        """False at the end of the output."""
        try:
            chunk = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return True
        self._kept.add(chunk)
        return bool(chunk)

    def _report(self, code: int) -> ExitReport:
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        _end_adopted()
        self._read_the_rest()
        where, _, errno = os.read(self._start_error, 64).decode().partition(" ")
        return ExitReport(code, where, int(errno or 0), self._kept.written, self._kept.head, self._kept.tail)

    def _read_the_rest(self) -> None:
        most = self._kept.written + _MOST_LEFT
        with contextlib.suppress(BlockingIOError):
            while self._kept.written < most and (chunk := os.read(self._output, _CHUNK)):
                self._kept.add(chunk)

    def _become_the_program(self, supervisor: int, output: int, start_error: int) -> None:
        """In the child. Python's descriptors close on exec, except 0, 1 and 2."""
        where = "start"
        try:
            os.setsid()
            if self._prctl is not None:
                self._prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != supervisor:
                return
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.set_wakeup_fd(-1)
            for number in (*_BLOCKED, *_IGNORED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            if self._order.cwd:
                where = "cwd"
                os.chdir(self._order.cwd)
            where = "exec"
            env = dict(pair.split(b"=", 1) for pair in self._order.env)
            # Without a shell, which would interpret the arguments.
            os.execve(self._order.file, self._order.argv, env)  # noqa: S606
        except OSError as error:
            os.write(start_error, f"{where} {error.errno or 0}".encode())
        finally:
            os._exit(127)


def _find_prctl() -> Callable[[int, int], int] | None:
    """The prctl function, which only Linux has."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None


def _wake_on_child() -> int:
    """A descriptor that becomes readable when a child has ended."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return woken


def _end_adopted() -> None:
    """Kill descendants that left the group: this process adopts them when their parents are gone. A process that runs
    as another user cannot be killed, and stays."""
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
    """From stdin; shorter only at the end of the file."""
    found = b""
    while len(found) < length and (chunk := os.read(0, length - len(found))):
        found += chunk
    return found


def main() -> None:
    # Blocked, not ignored: a signal sent before the program has begun reaches it when it begins.
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    length = int.from_bytes(_read_exactly(4), "big")
    body = _read_exactly(length)
    if not length or len(body) < length:
        # The worker stopped the run before it began, or is gone.
        return
    report = pack_report(ProgramSupervisor(unpack_order(body)).run())
    with contextlib.suppress(BrokenPipeError):
        while report:
            report = report[os.write(1, report) :]


if __name__ == "__main__":
    main()
