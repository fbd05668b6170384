"""The program target: runs each program under a supervisor process of its own, and judges the run by the exit code."""

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
from tocsin.targets.secret_masking import NO_SECRETS, SecretMask, mask_of
from tocsin.targets.secrets import Secrets
from tocsin.targets.subprocess import supervisor
from tocsin.targets.subprocess.allowed import Allowed
from tocsin.targets.subprocess.supervisor import ExitReport, StartOrder
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.programs")

# From asking a program to end until killing it. A stopping worker waits 2 s before other workers get the run.
GRACE_S = 1.5
# At most so many bytes of the end of the output are kept: errors are there.
TAIL = 2048
# So many characters of the output go into the error of a run.
ERROR_TAIL = 700
# The variables of the worker that every program gets. The others may hold passwords.
INHERITED = ("PATH", "HOME", "LANG", "TZ")
# Without these some Pythons do not even start.
_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# When no process can be started, the run goes back for so long: another worker may be able to.
_AWAY_S = 1.0
_START_ERRORS = {
    errno.ENOENT: "it does not exist, or the interpreter that its first line names does not",
    errno.EACCES: "the user of this worker may not execute it",
    errno.ENOEXEC: "it is not a program, and has no first line like #!/bin/sh",
    errno.E2BIG: "its arguments and variables are too long",
}
_CODES = {126: "; it could not execute something that it calls", 127: "; it did not find something that it calls"}


class ProgramFailed(DeliveryFailed):
    """A program that did not start, or failed. The message quotes its output, so the classifier ignores the message."""


class SubprocessTarget:
    """Runs the programs of all jobs of a worker."""

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
        mask = _mask(target, secrets)
        with mask.mask_errors(), self._gates.program_permit():
            started = self._clock.monotonic()
            report, in_time = await _run(order, target.timeout, mask)
            return judge(target, report, round((self._clock.monotonic() - started) * 1000), in_time, mask)


def _mask(target: Subprocess, secrets: dict[str, str]) -> SecretMask:
    """Masks each secret with and without its prefix (`Secret.before`), because a program may print it alone."""
    values = [(secrets[name], value.before) for name, value in target.env.items() if isinstance(value, Secret)]
    return mask_of(tuple(text for whole, before in values for text in {whole, whole.removeprefix(before)}))


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
        worker=os.getpid(),
        head=head,
        tail=tail,
        cwd=os.fsencode(target.cwd or ""),
        file=os.fsencode(file),
        argv=[_bytes(text) for text in argv],
        env=[_bytes(f"{name}={value}") for name, value in env.items()],
    )


async def _run(order: StartOrder, timeout: float, mask: SecretMask) -> tuple[ExitReport | None, bool]:
    """The report, and whether the program ended by itself in time. After this, the program has ended in any case."""
    process = await _start_supervisor()
    assert process.stdin is not None
    process.stdin.write(supervisor.pack_order(order))
    reading = asyncio.ensure_future(_report(process, mask))
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


async def _start_supervisor() -> asyncio.subprocess.Process:
    try:
        # -I and -S: the user's settings for Python must not reach the supervisor.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", supervisor.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={name: os.environ[name] for name in _LOADER if name in os.environ},
        )
    except OSError as error:
        raise TryLater(f"no process could be started: {error}", _AWAY_S, is_trouble=True) from error


async def _report(process: asyncio.subprocess.Process, mask: SecretMask) -> ExitReport | None:
    """The supervisor's report. It is short, however much the program writes."""
    assert process.stdout is not None
    output = await process.stdout.read()
    code = await process.wait()
    report = supervisor.unpack_report(output)
    if report is None:
        log.error("the supervisor of a program failed", code=code, said=head_of(mask.data(output)))
    return report


async def _stop(process: asyncio.subprocess.Process, reading: asyncio.Future[ExitReport | None]) -> None:
    """Ask the program to end, then kill it. If this is cancelled, the program is killed at once."""
    assert process.stdin is not None
    try:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(b"end")
        await asyncio.wait([reading], timeout=GRACE_S)
    finally:
        process.stdin.close()
    await asyncio.wait([reading])


def judge(
    target: Subprocess, report: ExitReport | None, ms: int, in_time: bool, mask: SecretMask = NO_SECRETS
) -> Delivered:
    """The success, or raise ProgramFailed. A program may print its secrets, so they are masked."""
    program = target.argv[0]
    if report is None:
        raise ProgramFailed(f"the process that watches over {program} was killed, and the program with it")
    if report.where:
        raise ProgramFailed(f"{program} could not be started{_why(target, report)}")
    output = output_of(report, target.output, mask)
    note: dict[str, Any] = {"code": report.code, "ms": ms, "head": head_of(_kept(report, mask))}
    if in_time and report.code == 0:
        return Delivered(note, {"code": 0, "ms": ms, "output": output, "bytes": report.written})
    last = output.strip()[-ERROR_TAIL:]
    how = _how(report.code) if in_time else f"did not end within {target.timeout:g} s, and was ended"
    raise ProgramFailed(f"{program} {how}{': ' if last else ''}{last}", note)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}{_CODES.get(code, '')}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"was ended by signal {-code}{name}"


def _why(target: Subprocess, report: ExitReport) -> str:
    reason = os.strerror(report.errno)
    if report.where == "cwd":
        return f" in {target.cwd!r}: {reason}"
    return f": {_START_ERRORS.get(report.errno, reason)}"


def shares(output: int) -> tuple[int, int]:
    """How many bytes are kept of the beginning and of the end of an output."""
    tail = min(TAIL, output // 2)
    return output - tail, tail


def output_of(report: ExitReport, most: int, mask: SecretMask = NO_SECRETS) -> str:
    """The output as text of at most `most` bytes, and the number of bytes left out of the middle."""
    missing = report.written - len(report.head) - len(report.tail)
    if not missing:
        return _legible(_kept(report, mask))[:most].decode(errors="ignore")
    head, tail = shares(most)
    # The cut may go through a secret.
    first, last = mask.beginning(report.head), mask.end(report.tail)
    first, last = _legible(first)[:head], _legible(last)[-tail:] if tail else b""
    return f"{first.decode(errors='ignore')}\n… {missing} bytes left out …\n{last.decode(errors='ignore')}"


def _kept(report: ExitReport, mask: SecretMask) -> bytes:
    if report.written == len(report.head) + len(report.tail):
        return mask.data(report.head + report.tail)
    return mask.beginning(report.head) + mask.end(report.tail)


def _legible(written: bytes) -> bytes:
    """Valid UTF-8, which may be longer: invalid bytes and NULs are replaced."""
    return written.decode(errors="replace").replace("\0", "\ufffd").encode()


def _bytes(text: str) -> bytes:
    if "\0" in text:
        raise ProgramFailed("an argument or a variable contains a NUL, which no program accepts", final=True)
    return os.fsencode(text)
