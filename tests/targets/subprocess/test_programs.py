"""Programs as jobs: what they are given, and what is told of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.subprocess_programs import make
from tocsin import Every, InvalidArgument, Retry, Secret, Subprocess, Tocsin
from tocsin.model.subprocess import LARGEST_OUTPUT
from tocsin.targets.subprocess.target import TAIL
from tocsin.testing import ManualClock, run_until_idle


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before `tocsin_app` reads it."""
    monkeypatch.setenv("TOCSIN_SUBPROCESS__ALLOW", f"{tmp_path}/*=*,/bin/true")


async def result_of(app: Tocsin, target: Subprocess, **options: Any) -> Any:
    handle = await app.enqueue(target, **({"id": "a"} | options))
    await run_until_idle(app)
    return await handle.result()


async def error_of(app: Tocsin, target: Subprocess, **options: Any) -> str:
    handle = await app.enqueue(target, **({"id": "a"} | options))
    await run_until_idle(app)
    assert await handle.status() == "failed"
    job = await app.get(handle.id)
    assert job is not None
    assert job.failure is not None
    return job.failure.error


async def test_a_program_that_ends_with_0_is_done_and_its_output_is_the_result(
    tocsin_app: Tocsin, tmp_path: Path
) -> None:
    program = make(tmp_path, 'print("out"); sys.stdout.flush(); print("err", file=sys.stderr)')
    result = await result_of(tocsin_app, Subprocess([program]))
    assert result == {"code": 0, "ms": 0, "output": "out\nerr\n", "bytes": 8}
    [run] = [run async for run in tocsin_app.runs()]
    assert run.told == {"code": 0, "ms": 0, "head": "out\nerr\n"}


async def test_arguments_are_given_as_they_stand_without_a_shell(tocsin_app: Tocsin, tmp_path: Path) -> None:
    program = make(tmp_path, "print(sys.argv[1:])")
    given = ["$HOME", "a b", "*", "; true", "", "--due={run.due}", "{name}", "é"]
    result = await result_of(tocsin_app, Subprocess([program, *given]))
    assert result["output"] == f"{[*given[:5], '--due=2030-01-01T00:00:00.000Z', *given[6:]]}\n"


async def test_it_knows_its_run_and_little_of_the_worker(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_TOKEN", "open sesame")
    monkeypatch.setenv("TZ", "Europe/Paris")
    monkeypatch.setenv("REDIS_PASSWORD", "hidden")
    body = 'said = open("/proc/self/environ").read()\nprint(said.replace("\\0", "\\n"), end="")\nnote("said", said)'
    program = make(tmp_path, body)
    env: dict[str, str | Secret] = {"TOKEN": Secret.env("TOCSIN_SECRET_TOKEN"), "WHEN": "at {run.due_ms}", "HOME": "/x"}
    result = await result_of(tocsin_app, Subprocess([program], env=env | {"TOCSIN_RUN": "forged"}))
    [run] = [run async for run in tocsin_app.runs()]
    found = dict(line.split("=", 1) for line in result["output"].splitlines())
    key = found.pop("TOCSIN_IDEMPOTENCY_KEY")
    assert len(key) == 32
    assert found == {
        **{name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ},
        "HOME": "/x",
        "TOKEN": "***",
        "WHEN": f"at {tocsin_clock.ms}",
        "TOCSIN_RUN": run.id,
        "TOCSIN_JOB": "a",
        "TOCSIN_DUE": "2030-01-01T00:00:00.000Z",
        "TOCSIN_ATTEMPT": "1",
    }
    assert "TOKEN=open sesame\0" in (tmp_path / "said").read_text()


async def test_it_has_a_session_of_its_own_nothing_to_read_and_no_files_of_the_worker(
    tocsin_app: Tocsin, tmp_path: Path
) -> None:
    body = """
files = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
ignored = [line for line in open("/proc/self/status") if line.startswith(("SigIgn", "SigBlk"))]
print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()), sorted(files), os.getcwd())
print(*(line.split()[1] for line in ignored))
"""
    # What the interpreter itself ignores, SIGPIPE and SIGXFSZ, is set by it; from 32 on they are the C library's own.
    result = await result_of(tocsin_app, Subprocess([make(tmp_path, body)], cwd=str(tmp_path)))
    first, second = result["output"].splitlines()
    assert first == f"True '' ['0', '1', '2'] {tmp_path}"
    assert [int(mask, 16) & 0x7FFFFFFF for mask in second.split()] == [0, 0x01001000]


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("sys.exit(3)", "ended with code 3: too bad"),
        ("sys.exit(127)", "ended with code 127; it did not find something that it calls: too bad"),
        ("os.kill(os.getpid(), 9)", "was ended by signal 9 (SIGKILL): too bad"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", f"was ended by signal {34 + 3}: too bad"),
    ],
    ids=["code", "127", "signal", "nameless signal"],
)
async def test_another_ending_is_a_failure_that_tells_the_last_words(
    tocsin_app: Tocsin, tmp_path: Path, ending: str, error: str
) -> None:
    program = make(tmp_path, f'print("x" * 5000, "too bad", sep="\\n", flush=True)\n{ending}')
    said = await error_of(tocsin_app, Subprocess([program]))
    assert said.startswith(f"ProgramFailed: {program} {error.split(':')[0]}: xxx")
    assert said.endswith("xxx\ntoo bad")
    [run] = [run async for run in tocsin_app.runs()]
    assert run.told["head"] == "x" * 256


@pytest.fixture
def backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are classified; before `tocsin_app` reads it."""
    monkeypatch.setenv("TOCSIN_REDIS__SCHEDULER__FAILURE_BACKOFF__ENABLED", "true")


async def test_it_is_tried_again_as_retry_says_whatever_words_it_uses(
    backoff: None, tocsin_app: Tocsin, tocsin_clock: ManualClock, tmp_path: Path
) -> None:
    """An error that says this is not tried again at all."""
    program = make(tmp_path, 'print("403 Forbidden: permission denied"); sys.exit(1)')
    await tocsin_app.schedule(Subprocess([program]), Every("1h"), id="a", retry=Retry(2, "1s"))
    tocsin_clock.advance("1h")
    for _ in range(4):
        await run_until_idle(tocsin_app)
        tocsin_clock.advance("3s")
    assert [run.outcome async for run in tocsin_app.runs()] == ["failed", "retried", "retried"]


async def test_of_a_long_output_the_beginning_and_the_end_are_kept(tocsin_app: Tocsin, tmp_path: Path) -> None:
    program = make(tmp_path, 'sys.stdout.write("b" * 5000 + "m" * 1_000_000 + "e" * 3000)')
    result = await result_of(tocsin_app, Subprocess([program], output=6000))
    missing = 1_008_000 - 6000
    assert result["output"] == f"{'b' * (6000 - TAIL)}\n… {missing} bytes left out …\n{'e' * TAIL}"
    assert result["bytes"] == 1_008_000


async def test_endless_output_costs_no_memory_and_the_program_is_ended_at_its_timeout(
    tocsin_app: Tocsin, tmp_path: Path
) -> None:
    body = """
chunk = b"0123456789" * 10000
written = 0
while True:
    written += os.write(1, chunk)
    if written == 100_000_000:
        [most] = [line for line in open(f"/proc/{os.getppid()}/status") if line.startswith("VmHWM")]
        note("most", most.split()[1])
"""
    error = await error_of(tocsin_app, Subprocess([make(tmp_path, body)], timeout="3s"))
    assert "did not end within 3 s, and was ended: " in error
    assert len(error) < 1000
    [run] = [run async for run in tocsin_app.runs()]
    assert run.told["code"] == -15
    # In KiB: who reads its output drops it, and the worker is told only the ends.
    assert int((tmp_path / "most").read_text()) < 50_000


@pytest.mark.parametrize("output", [0, 1, 100, LARGEST_OUTPUT])
async def test_output_that_is_no_text_is_a_result_all_the_same(tocsin_app: Tocsin, tmp_path: Path, output: int) -> None:
    program = make(tmp_path, 'sys.stdout.buffer.write(b"\\xff\\x00\\x80" * 40000)')
    result = await result_of(tocsin_app, Subprocess([program], output=output))
    assert result["bytes"] == 120_000
    kept = result["output"].replace(f"\n… {120_000 - output} bytes left out …\n", "")
    assert set(kept) <= {"\ufffd"}
    assert len(kept.encode()) <= output


@pytest.mark.parametrize(
    ("make_it", "why"),
    [
        (lambda path: None, "it does not exist, or the interpreter that its first line names does not"),
        (lambda path: path.write_text("#!/no/such/interpreter\n"), "it does not exist, or the interpreter"),
        (lambda path: path.write_text("hello"), "it is not a program, and has no first line like #!/bin/sh"),
        (lambda path: path.mkdir(), "the user of this worker may not execute it"),
    ],
    ids=["missing", "no interpreter", "no program", "folder"],
)
async def test_what_cannot_be_started_says_why(tocsin_app: Tocsin, tmp_path: Path, make_it: Any, why: str) -> None:
    path = tmp_path / "thing"
    make_it(path)
    if path.is_file():
        path.chmod(0o755)
    assert f"{path} could not be started: {why}" in await error_of(tocsin_app, Subprocess([str(path)]))


async def test_a_folder_that_is_not_there_is_told(tocsin_app: Tocsin, tmp_path: Path) -> None:
    program = make(tmp_path, "")
    error = await error_of(tocsin_app, Subprocess([program], cwd="/no/such/folder"))
    assert "could not be started in '/no/such/folder': No such file or directory" in error


async def test_too_long_arguments_are_told(tocsin_app: Tocsin, tmp_path: Path) -> None:
    program = make(tmp_path, "")
    # Linux takes no argument above 128 KiB, whatever is free.
    error = await error_of(tocsin_app, Subprocess([program, "x" * 200_000]))
    assert "its arguments and variables are too long" in error


def test_what_no_program_can_be_is_refused_when_it_is_made() -> None:
    for argv, why in [
        ("ls -l", "there is no shell"),
        ([], "needs a program"),
        ([""], "needs a program"),
        (["./run"], "its name or its whole path"),
        (["bin/run"], "its name or its whole path"),
        (["/bin/{run.tenant}"], "the program cannot have fields of the run"),
        (["echo", "{run.dew}"], r"\{run\.dew\}.*did you mean 'due'"),
        (["echo", "a\0b"], "without NUL"),
        (["echo", 3], "must be text"),
    ]:
        with pytest.raises(InvalidArgument, match=why):
            Subprocess(argv)  # type: ignore[arg-type]
    for options, why in [
        ({"env": {"A=B": "x"}}, "no name of a variable"),
        ({"env": {"A": "{run.dew}"}}, "did you mean 'due'"),
        ({"timeout": 0}, "between 1 ms and 30 days"),
        ({"output": LARGEST_OUTPUT + 1}, "output must be from 0 to"),
    ]:
        with pytest.raises(InvalidArgument, match=why):
            Subprocess([sys.executable], **options)  # type: ignore[arg-type]
