"""Programs: each on a leash of its own, judged by its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from typing import Any

from tocsin.engine.handlers import TryLater
from tocsin.engine.work_item import WorkItem
from tocsin.model.clock import Clock
from tocsin.model.delivery import Delivered, DeliveryFailed, head_of
from tocsin.model.grants import Grants
from tocsin.model.secret import Secret
from tocsin.model.subprocess import Subprocess
from tocsin.model.target import target_of
from tocsin.model.template import fill
from tocsin.targets.envelope import Envelope
from tocsin.targets.host_gates import HostGates
from tocsin.targets.secret_masking import NOTHING, SecretMask, veil_of
from tocsin.targets.secrets import Secrets
from tocsin.targets.subprocess import supervisor
from tocsin.targets.subprocess.allowed import Allowed
from tocsin.targets.subprocess.supervisor import ExitReport, StartOrder
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.programs")

# Between asking a program to end and killing it. A worker that stops waits for 2 s, then others get the run.
GRACE_S = 1.5
# Of the output so much of the end is kept at most: that is where errors stand.
TAIL = 2048
# So many characters of it fit into the error of a run.
ERROR_TAIL = 700
# What every program has of the worker's environment. The rest may hold passwords.
INHERITED = ("PATH", "HOME", "LANG", "TZ")
# Without these some Pythons do not even start.
_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# When no process can be started, the run goes back for so long: another worker may have room.
_NO_ROOM_S = 1.0
_TROUBLE = {
    errno.ENOENT: "it is not there, or the interpreter that its first line names is not",
    errno.EACCES: "the user of this worker may not execute it",
    errno.ENOEXEC: "it is no program, and has no first line like #!/bin/sh",
    errno.E2BIG: "its arguments and variables are too long",
}
_CODES = {126: "; it could not execute something that it calls", 127: "; it did not find something that it calls"}


class ProgramFailed(DeliveryFailed):
    """It did not start, or did not end well. Its words are quoted, and say nothing about the class of the failure."""


class SubprocessTarget:
    """The programs of all jobs of a worker."""

    stoppable = True

    def __init__(self, namespace: str, clock: Clock, gates: HostGates, secrets: Secrets, allowed: Grants) -> None:
        self._namespace = namespace
        self._clock = clock
        self._gates = gates
        self._secrets = secrets
        self._allowed = Allowed(allowed)

    async def deliver(self, unit: WorkItem) -> Delivered:
        target = target_of(unit.spec)
        assert isinstance(target, Subprocess)
        path, file = self._allowed.find(target.argv[0])
        self._allowed.check_names(path, target.env)
        secrets = {
            name: self._secrets.read_for_program(value)
            for name, value in target.env.items()
            if isinstance(value, Secret)
        }
        order = _order(target, Envelope(unit, self._namespace), path, file, secrets)
        veil = _veil(target, secrets)
        with veil.over_errors(), self._gates.beside_hosts():
            started = self._clock.monotonic()
            report, in_time = await _run(order, target.timeout, veil)
            return judge(target, report, round((self._clock.monotonic() - started) * 1000), in_time, veil)


def _veil(target: Subprocess, secrets: dict[str, str]) -> SecretMask:
    """Also without what stands before a secret: a program prints what it likes of it."""
    values = [(secrets[name], value.before) for name, value in target.env.items() if isinstance(value, Secret)]
    return veil_of(tuple(text for whole, before in values for text in {whole, whole.removeprefix(before)}))


def _order(target: Subprocess, envelope: Envelope, path: str, file: str, secrets: dict[str, str]) -> StartOrder:
    argv = [path, *(fill(text, envelope.values) for text in target.argv[1:])]
    env = {name: os.environ[name] for name in INHERITED if name in os.environ}
    for name, value in target.env.items():
        env[name] = fill(value, envelope.values) if isinstance(value, str) else secrets[name]
    env |= {
        "TOCSIN_RUN": envelope.run_id,
        "TOCSIN_JOB": envelope.job_id,
        "TOCSIN_DUE": envelope.due,
        "TOCSIN_ATTEMPT": str(envelope.attempt),
        "TOCSIN_IDEMPOTENCY_KEY": envelope.key,
    }
    head, tail = shares(target.output)
    return StartOrder(
        os.getpid(),
        head,
        tail,
        os.fsencode(target.cwd or ""),
        os.fsencode(file),
        [_bytes(text) for text in argv],
        [_bytes(f"{name}={value}") for name, value in env.items()],
    )


async def _run(order: StartOrder, timeout: float, veil: SecretMask) -> tuple[ExitReport | None, bool]:
    """The report, and whether it ended by itself in time. However this ends, the program has ended too."""
    process = await _start_leash()
    assert process.stdin is not None
    process.stdin.write(supervisor.pack_order(order))
    reading = asyncio.ensure_future(_report(process, veil))
    try:
        ended, _ = await asyncio.wait([reading], timeout=timeout)
        if not ended:
            await _stop(process, reading)
        return reading.result(), bool(ended)
    except asyncio.CancelledError:
        await _stop(process, reading)
        raise
    finally:
        process.stdin.close()


async def _start_leash() -> asyncio.subprocess.Process:
    try:
        # -I and -S: what the user's environment does to Python is not for the leash.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", supervisor.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={name: os.environ[name] for name in _LOADER if name in os.environ},
        )
    except OSError as error:
        raise TryLater(f"no process could be started: {error}", _NO_ROOM_S, is_trouble=True) from error


async def _report(process: asyncio.subprocess.Process, veil: SecretMask) -> ExitReport | None:
    """Short, however much the program writes."""
    assert process.stdout is not None
    said = await process.stdout.read()
    code = await process.wait()
    report = supervisor.unpack_report(said)
    if report is None:
        log.error("the leash of a program failed", code=code, said=head_of(veil.data(said)))
    return report


async def _stop(process: asyncio.subprocess.Process, reading: asyncio.Future[ExitReport | None]) -> None:
    """Ask it to end, then kill it. Cancelled again, it is killed at once."""
    assert process.stdin is not None
    try:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(b"end")
        await asyncio.wait([reading], timeout=GRACE_S)
    finally:
        process.stdin.close()
    await asyncio.wait([reading])


def judge(
    target: Subprocess, report: ExitReport | None, ms: int, in_time: bool, veil: SecretMask = NOTHING
) -> Delivered:
    """What an exit means: done, or how it failed. A program may print what it was given: secrets are not kept."""
    program = target.argv[0]
    if report is None:
        raise ProgramFailed(f"the process that watches over {program} was killed, and the program with it")
    if report.where:
        raise ProgramFailed(f"{program} could not be started{_why(target, report)}")
    output = output_of(report, target.output, veil)
    told: dict[str, Any] = {"code": report.code, "ms": ms, "head": head_of(_kept(report, veil))}
    if in_time and report.code == 0:
        return Delivered(told, {"code": 0, "ms": ms, "output": output, "bytes": report.written})
    last = output.strip()[-ERROR_TAIL:]
    how = _how(report.code) if in_time else f"did not end within {target.timeout:g} s, and was ended"
    raise ProgramFailed(f"{program} {how}{': ' if last else ''}{last}", told)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}{_CODES.get(code, '')}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"was ended by signal {-code}{name}"


def _why(target: Subprocess, report: ExitReport) -> str:
    said = os.strerror(report.errno)
    if report.where == "cwd":
        return f" in {target.cwd!r}: {said}"
    return f": {_TROUBLE.get(report.errno, said)}"


def shares(output: int) -> tuple[int, int]:
    """How many bytes of the beginning of an output are kept, and how many of its end."""
    tail = min(TAIL, output // 2)
    return output - tail, tail


def output_of(report: ExitReport, most: int, veil: SecretMask = NOTHING) -> str:
    """What it wrote, as text of at most so many bytes, whatever it is; and how much is missing in the middle."""
    missing = report.written - len(report.head) - len(report.tail)
    if not missing:
        return _legible(_kept(report, veil))[:most].decode(errors="ignore")
    head, tail = shares(most)
    # Secrets may be cut in two as well.
    first, last = veil.beginning(report.head), veil.end(report.tail)
    first, last = _legible(first)[:head], _legible(last)[-tail:] if tail else b""
    return f"{first.decode(errors='ignore')}\n… {missing} bytes left out …\n{last.decode(errors='ignore')}"


def _kept(report: ExitReport, veil: SecretMask) -> bytes:
    if report.written == len(report.head) + len(report.tail):
        return veil.data(report.head + report.tail)
    return veil.beginning(report.head) + veil.end(report.tail)


def _legible(written: bytes) -> bytes:
    """UTF-8, which may be longer: what is none is replaced."""
    return written.decode(errors="replace").replace("\0", "\ufffd").encode()


def _bytes(text: str) -> bytes:
    if "\0" in text:
        raise ProgramFailed("an argument or a variable has a NUL in it, which no program can be given", final=True)
    return os.fsencode(text)
