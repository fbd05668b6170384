"""Which programs may be started is the operator's decision, and tricks with paths do not change it."""

from __future__ import annotations

import asyncio
import re
import secrets
import subprocess
from pathlib import Path

import pytest

from tests.support.subprocess_programs import make
from tocsin import Subprocess, Tocsin
from tocsin.config import load_config
from tocsin.model.delivery import DeliveryFailed
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.targets.external import TargetPermissions
from tocsin.targets.subprocess.allowed import Allowed
from tocsin.testing import ManualClock, run_until_idle
from tocsin.worker import WorkerSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`jobs` has two programs that are allowed, and links; `other` has one that is not."""
    for name in ("jobs", "other"):
        (tmp_path / name).mkdir()
    make(tmp_path / "jobs", "", "good")
    make(tmp_path / "jobs", "", "well")
    make(tmp_path / "other", "", "bad")
    (tmp_path / "jobs" / "link").symlink_to("../other/bad")
    (tmp_path / "jobs" / "inside").symlink_to("good")
    (tmp_path / "jobs" / "deep").symlink_to("../other")
    return tmp_path


def refused(allowed: Allowed, name: str) -> bool:
    """For good."""
    try:
        allowed.find(name)
    except DeliveryFailed as error:
        return error.final
    return False


def test_a_path_is_compared_as_it_is_given_and_as_it_really_is(folder: Path) -> None:
    jobs, other = folder / "jobs", folder / "other"
    allowed = Allowed(dict.fromkeys([f"{jobs}/*"], ()))
    assert allowed.find(f"{jobs}/good") == (f"{jobs}/good", f"{jobs}/good")
    assert allowed.find(f"{jobs}/inside") == (f"{jobs}/inside", f"{jobs}/good")
    for trick in (
        f"{other}/bad",
        f"{jobs}/link",
        f"{jobs}/deep/bad",
        f"{jobs}/../other/bad",
        f"{jobs}/./good",
        f"{jobs}//good",
        f"/{jobs}/good",
        f"{jobs}/good/",
        "jobs/good",
        "./good",
    ):
        assert refused(allowed, trick), trick


def test_a_link_that_the_operator_names_leads_where_it_leads(folder: Path) -> None:
    """As /usr/bin/python3 leads to the Python of the day; and what a link may do, its end may not."""
    jobs, other = folder / "jobs", folder / "other"
    allowed = Allowed(dict.fromkeys([f"{jobs}/link"], ()))
    assert allowed.find(f"{jobs}/link") == (f"{jobs}/link", f"{other}/bad")
    assert refused(allowed, f"{other}/bad")
    both = Allowed(dict.fromkeys([f"{jobs}/*", f"{other}/bad"], ()))
    assert both.find(f"{jobs}/link") == (f"{jobs}/link", f"{other}/bad")


def test_a_program_is_allowed_as_the_one_it_is_not_by_how_its_name_begins(folder: Path) -> None:
    make(folder / "jobs", "", "good2")
    allowed = Allowed(dict.fromkeys([f"{folder}/jobs/good"], ()))
    assert refused(allowed, f"{folder}/jobs/good2")
    assert refused(allowed, f"{folder}/jobs/well")
    assert not refused(Allowed(dict.fromkeys(["*"], ())), f"{folder}/other/bad")


def test_names_are_looked_up_where_the_worker_finds_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in whole paths: not where it happens to stand."""
    monkeypatch.chdir(folder / "other")
    (folder / "jobs" / "bad").write_text("not executable")
    monkeypatch.setenv("PATH", f":.:{folder}/jobs:{folder}/other")
    allowed = Allowed(dict.fromkeys([f"{folder}/jobs/*", f"{folder}/other/*"], ()))
    assert allowed.find("good")[0] == f"{folder}/jobs/good"
    assert allowed.find("bad")[0] == f"{folder}/other/bad"
    monkeypatch.setenv("PATH", f":.:{folder}/jobs")
    with pytest.raises(DeliveryFailed, match=f"there is no program 'bad' .* not in {folder}/jobs"):
        allowed.find("bad")


UNKNOWN = ["LD_PRELOAD", "PATH", "BASH_FUNC_ls%%", "TAR_OPTIONS", "GIT_CONFIG_COUNT", "HOME", "http_proxy", "X", "lang"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_job_sets_no_variable_that_the_operator_does_not_list_for_the_program(name: str) -> None:
    """Nobody knows all of those that make a program run other code."""
    allowed = Allowed({"/opt/backup": ("DEPTH", "BACKUP_*"), "/opt/*": ("LEVEL",), "/bin/sh": ()})
    for path in ("/opt/backup", "/opt/other", "/bin/sh"):
        with pytest.raises(DeliveryFailed, match=f"may not set the variable {re.escape(name)} for {path}") as raised:
            allowed.check_names(path, ["LANG", name])
        assert raised.value.final
    Allowed({"*": ()}).check_names("/opt/backup", [name])
    Allowed({"/opt/backup": ("*",)}).check_names("/opt/backup", [name])


def test_variables_are_listed_for_a_program_or_a_pattern_of_them() -> None:
    allowed = Allowed({"/opt/backup": ("DEPTH", "BACKUP_*"), "/opt/*": ("LEVEL",), "/bin/sh": ()})
    allowed.check_names("/opt/backup", ["DEPTH", "BACKUP_SET", "LEVEL", "LANG", "LC_ALL", "TZ"])
    allowed.check_names("/opt/other", ["LEVEL", "LC_TIME"])
    for path, name in (("/opt/other", "DEPTH"), ("/bin/sh", "LEVEL"), ("/opt/backup", "BACKUP")):
        with pytest.raises(DeliveryFailed):
            allowed.check_names(path, [name])


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """Two that an operator would allow without a second thought."""
    (tmp_path / "repo").mkdir()
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    for name, body in {
        "backup": f"exec tar cf /dev/null -C {tmp_path} repo",
        "status": f"cd {tmp_path}/repo && git status --short",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


async def test_variables_of_a_job_do_not_make_an_allowed_script_run_other_code(
    tocsin_server: EmbeddedServer, tocsin_clock: ManualClock, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SUBPROCESS__ALLOW", f"{scripts}/backup,{scripts}/status=DEPTH")
    attack = f"touch {scripts}/done"
    git = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": f"{attack}; false"}
    tar = {"TAR_OPTIONS": f"--checkpoint=1 --checkpoint-action=exec='{attack}'"}
    prefix = f"test-{secrets.token_hex(4)}:"
    async with Tocsin(tocsin_server.url, prefix=prefix, clock=tocsin_clock) as app:
        await app.enqueue(Subprocess([f"{scripts}/backup"], env=tar), id="tar")
        await app.enqueue(Subprocess([f"{scripts}/status"], env=git), id="git")
        await app.enqueue(Subprocess([f"{scripts}/status"], env={"DEPTH": "1", "LANG": "C", "LC_ALL": "C"}), id="fine")
        await run_until_idle(app)
        assert {run.job_id: run.outcome async for run in app.runs()} == {
            "tar": "dead",
            "git": "dead",
            "fine": "succeeded",
        }
    assert not (scripts / "done").exists()


async def test_what_is_not_allowed_fails_for_good_and_names_the_setting(
    tocsin_server: EmbeddedServer, tocsin_clock: ManualClock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SUBPROCESS__ALLOW", f"{folder}/jobs/*")
    prefix = f"test-{secrets.token_hex(4)}:"
    async with Tocsin(tocsin_server.url, prefix=prefix, clock=tocsin_clock) as app:
        await app.enqueue(Subprocess([f"{folder}/jobs/link"]), id="a")
        await app.enqueue(Subprocess([f"{folder}/jobs/good"], env={"LD_PRELOAD": "/tmp/x.so"}), id="b")
        await run_until_idle(app)
        for job_id, error in (("a", f"link', which is '{folder}/other/bad', may not be started"), ("b", "LD_PRELOAD")):
            job = await app.get(job_id)
            assert job is not None
            assert job.failure is not None
            assert (job.stage, job.attempt) == ("dead", 1)
            assert error in job.failure.error
            assert "`subprocess.allow`" in job.failure.error


async def test_a_worker_that_may_start_nothing_leaves_programs_to_others_and_why_says_what_is_missing(
    tocsin_app: Tocsin, folder: Path
) -> None:
    program = f"{folder}/jobs/good"
    handle = await tocsin_app.enqueue(Subprocess([program]), id="a")
    stranger = await tocsin_app.worker(settings=WorkerSettings(beat_s=0.05))
    await asyncio.to_thread(stranger.heart.beat)
    stranger.heart.start()
    try:
        assert "tocsin.subprocess" not in stranger.about().handlers
        await stranger.fetcher.step()
        assert await handle.status() == "parked"
        answer = await tocsin_app.why("a")
        assert answer.kinds[:2] == ["parked", "unknown_handler"]
        assert "none may start programs: `subprocess.allow` is empty there" in answer.reasons[1].says
        assert "list the program in `subprocess.allow`" in answer.reasons[1].do[0]
    finally:
        await stranger.kill()
    knowing = await tocsin_app.worker(settings=WorkerSettings(reach=TargetPermissions(programs={program: ()})))
    try:
        await knowing.start()
        assert (await handle.result("10s"))["code"] == 0
    finally:
        await knowing.stop(grace=0)


def test_an_entry_that_allows_nothing_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tocsin.yaml"
    path.write_text("subprocess:\n  allow: [rsync, /usr/bin/rsync, '*/tidy']\n")
    loaded = load_config(str(path), {})
    assert loaded.config.subprocess.allow == {"rsync": (), "/usr/bin/rsync": (), "*/tidy": ()}
    [warning] = loaded.warnings
    assert "subprocess.allow has 'rsync', which allows nothing: write whole paths" in str(warning)
