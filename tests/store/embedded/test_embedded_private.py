"""The embedded server and the other users of the machine: what they can read, and what of theirs is refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tocsin import Tocsin
from tocsin.model.errors import StoreRefused
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import open_blocking_client, open_client
from tocsin.store.connection.errors import translate
from tocsin.store.embedded.server import EmbeddedServer, keeper

STRANGER = 7602
CARD = b"4111-1111"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

# Another user, with a server of their own that says PONG to everybody and tells what it was sent.
LISTENER = """
import os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
folder, path = sys.argv[1:]
os.path.isdir(folder) or os.mkdir(folder)
with socket.socket(socket.AF_UNIX) as server:
    server.bind(path)
    server.listen()
    print("listens", flush=True)
    while True:
        connection, _ = server.accept()
        connection.settimeout(1)
        try:
            while got := connection.recv(4096):
                print(got, flush=True)
                connection.sendall(b"+PONG\\r\\n")
        except OSError:
            pass
"""


class Stranger:
    """Listens where our server's socket is to be."""

    def __init__(self, socket: str) -> None:
        program = [sys.executable, "-c", LISTENER.format(uid=STRANGER), os.path.dirname(socket), socket]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"listens\n"

    def sent(self) -> bytes:
        """All that it was sent until now, when it is killed."""
        self.process.kill()
        return self.process.communicate()[0]


Listen = Callable[[str], Stranger]


@pytest.fixture
def listen_as_stranger() -> Iterator[Listen]:
    with contextlib.ExitStack() as running:

        def listen(socket: str) -> Stranger:
            stranger = Stranger(socket)
            running.enter_context(stranger.process)
            running.callback(stranger.process.kill)
            return stranger

        yield listen


@contextlib.contextmanager
def started(folder: Path) -> Iterator[EmbeddedServer]:
    with contextlib.closing(EmbeddedServer(folder)) as server:
        server.start()
        with contextlib.closing(redis.Redis.from_url(server.url)) as client:
            client.config_set("appendfsync", "always")
            client.set("card", CARD)
        yield server


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def loose(folder: Path) -> dict[str, str]:
    """What is in the folder that others could read, if they got there."""
    found = {}
    for path in folder.rglob("*"):
        # A server that rewrites its log removes files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found[path.relative_to(folder).as_posix()] = mode(path)
    return {name: oct(bits) for name, bits in found.items() if bits & 0o077}


def seen_by_stranger(folder: Path) -> bytes:
    """Of the card, which is in the data."""
    program = ["grep", "-rhoa", CARD.decode(), str(folder)]
    if os.geteuid() == 0:
        program = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", *program]
        return subprocess.run(program, capture_output=True, check=False).stdout
    return b""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """As `mkdir` makes it, where others may come by."""
    before = os.umask(0o022)
    # With several test processes there is one folder more.
    for above in (tmp_path, *list(tmp_path.parents)[:3]):
        if above.stat().st_uid == os.geteuid():
            above.chmod(0o755)
    (tmp_path / "data").mkdir(mode=0o755)
    yield tmp_path / "data"
    os.umask(before)


class TestWhatOthersCanRead:
    def test_nothing_of_a_folder_that_was_there_before(self, folder: Path) -> None:
        with started(folder):
            assert CARD in b"".join(path.read_bytes() for path in folder.rglob("*.aof"))
            assert (mode(folder), loose(folder)) == (0o700, {})
            assert seen_by_stranger(folder) == b""

    def test_nothing_of_ours_in_a_folder_that_holds_other_things(self, folder: Path) -> None:
        """Whose mode is not ours to change: it may be a home, or /srv."""
        (folder / "page.html").write_text("hello")
        with started(folder):
            assert (mode(folder), set(loose(folder))) == (0o755, {"page.html"})
            assert seen_by_stranger(folder) == b""

    def test_nothing_that_an_older_server_left_readable(self, folder: Path) -> None:
        (folder / "page.html").write_text("hello")
        with started(folder):
            pass
        (folder / "appendonlydir").chmod(0o755)
        for path in (*folder.rglob("*.aof"), folder / "server.log", folder / "users.lock"):
            path.chmod(0o644)
        (folder / "server.log.old").write_text("old")
        with started(folder):
            assert [name for name in loose(folder) if "/" not in name] == ["page.html"]
            assert seen_by_stranger(folder) == b""

    def test_nothing_while_a_log_is_rewritten(self, folder: Path) -> None:
        (folder / "page.html").write_text("hello")
        with started(folder) as server, contextlib.closing(redis.Redis.from_url(server.url)) as client:
            client.bgrewriteaof()
            while client.info("persistence")["aof_rewrite_in_progress"]:
                assert set(loose(folder)) == {"page.html"}
            assert set(loose(folder)) == {"page.html"}


class TestWhoCanWrite:
    @pytest.mark.parametrize("bits", [0o777, 0o1777, 0o775])
    def test_a_folder_of_ours_alone_is_closed(self, folder: Path, bits: int) -> None:
        folder.chmod(bits)
        with started(folder):
            assert mode(folder) & 0o077 == 0

    @pytest.mark.parametrize("bits", [0o777, 0o1777, 0o775])
    def test_one_that_holds_other_things_is_refused_and_left_as_it_is(self, folder: Path, bits: int) -> None:
        (folder / "page.html").write_text("hello")
        folder.chmod(bits)
        with pytest.raises(StoreRefused, match=rf"others may write in the data folder {folder} .*\$TOCSIN_DATA"):
            EmbeddedServer(folder)
        assert mode(folder) == bits
        assert [path.name for path in folder.iterdir()] == ["page.html"]

    def test_a_folder_that_is_opened_while_it_is_in_use_is_closed_again(self, folder: Path) -> None:
        with started(folder):
            folder.chmod(0o777)
            with started(folder):
                assert mode(folder) == 0o700


@needs_root
class TestWhatBelongsToAnother:
    """Of all of it the owner and the path are named, and nothing is written."""

    def refused(self, folder: Path, path: Path) -> None:
        with pytest.raises(StoreRefused, match=rf"{path} belongs to uid {STRANGER}.*\$TOCSIN_DATA"):
            EmbeddedServer(folder).start()

    def test_the_folder(self, folder: Path, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.write_text("precious")
        (folder / "keeper.lock").symlink_to(precious)
        os.chown(folder, STRANGER, STRANGER)
        self.refused(folder, folder)
        assert precious.read_text() == "precious"
        assert [path.name for path in folder.iterdir()] == ["keeper.lock"]

    def test_a_link_to_a_folder_of_ours(self, folder: Path, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(folder)
        os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
        self.refused(link, link)
        assert mode(folder) == 0o755

    @pytest.mark.parametrize("name", ["users.lock", "keeper.lock", "server.log", "server.pid"])
    def test_a_link_in_the_folder(self, folder: Path, tmp_path: Path, name: str) -> None:
        precious = tmp_path / "precious"
        precious.write_text("precious")
        (folder / name).symlink_to(precious)
        os.chown(folder / name, STRANGER, STRANGER, follow_symlinks=False)
        self.refused(folder, folder / name)
        assert precious.read_text() == "precious"

    @pytest.mark.parametrize("name", ["appendonlydir", "appendonlydir/appendonly.aof.manifest"])
    def test_data_that_was_planted(self, folder: Path, name: str) -> None:
        (folder / "appendonlydir").mkdir()
        (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("")
        os.chown(folder / name, STRANGER, STRANGER)
        self.refused(folder, folder / name)

    def test_a_folder_that_was_given_away_while_it_is_in_use(self, folder: Path) -> None:
        with started(folder):
            newcomer = EmbeddedServer(folder)
            os.chown(folder, STRANGER, STRANGER)
            with pytest.raises(StoreRefused, match=f"{folder} belongs to uid {STRANGER}"):
                newcomer.start()
            os.chown(folder, 0, 0)


def test_a_link_among_our_files_is_not_followed(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (folder / "keeper.lock").symlink_to(precious)
    with pytest.raises(StoreRefused, match=r"keeper\.lock is a link"):
        EmbeddedServer(folder).start()
    assert precious.read_text() == "precious"


def test_a_link_of_ours_to_a_folder_of_ours_is_fine(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with started(tmp_path / "link"):
        assert seen_by_stranger(folder) == b""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets that this test may lose: that of the machine is in use by others. Its path is short."""
    parent = Path("/tmp") / f"t{os.getpid()}"
    parent.mkdir()
    parent.chmod(0o1777)
    made = parent / f"tocsin-{os.getuid()}"
    monkeypatch.setattr(keeper, "runtime_folder", lambda *_: str(made))
    yield made
    shutil.rmtree(parent)


@needs_root
class TestASocketOfAnother:
    def test_is_refused_by_who_joins_a_server_whose_socket_was_cleaned_away(
        self, folder: Path, runtime: Path, listen_as_stranger: Listen
    ) -> None:
        with started(folder) as server:
            shutil.rmtree(runtime)
            stranger = listen_as_stranger(server.socket)
            newcomer = EmbeddedServer(folder)
            with pytest.raises(StoreRefused, match=rf"{runtime}, .* belongs to uid {STRANGER}"):
                newcomer.start()
            with pytest.raises(StoreRefused, match=rf"{runtime}, .* belongs to uid {STRANGER}"):
                server.ensure()
            assert stranger.sent() == b""

    def test_is_refused_in_a_folder_of_ours_too(self, folder: Path, runtime: Path, listen_as_stranger: Listen) -> None:
        with started(folder) as server:
            os.remove(server.socket)
            runtime.chmod(0o777)
            stranger = listen_as_stranger(server.socket)
            runtime.chmod(0o700)
            with pytest.raises(StoreRefused, match=rf"{server.socket} belongs to uid {STRANGER}"):
                EmbeddedServer(folder).start()
            assert stranger.sent() == b""

    async def test_gets_nothing_from_connections_that_are_made_anew(
        self, folder: Path, runtime: Path, listen_as_stranger: Listen
    ) -> None:
        with started(folder) as server:
            shutil.rmtree(runtime)
            stranger = listen_as_stranger(server.socket)
            address = parse(server.url)
            client: Any = open_client(address)
            blocking: Any = open_blocking_client(address)
            with pytest.raises(redis.ConnectionError) as refused:
                await client.set("card", CARD)
            with pytest.raises(redis.ConnectionError) as refused_too:
                blocking.set("card", CARD)
            for error in (refused.value, refused_too.value):
                meant = translate(error, address)
                assert isinstance(meant, StoreRefused)
                assert f"{server.socket} belongs to uid {STRANGER}" in str(meant)
            with pytest.raises(StoreRefused, match=f"uid {STRANGER}"):
                await Tocsin(server.url).open()
            await client.aclose()
            blocking.close()
            assert stranger.sent() == b""


@needs_root
def test_a_folder_of_roots_will_do_where_a_group_may_write_but_not_where_all_may(folder: Path) -> None:
    """That is how containers get their volumes."""
    program = (
        "import os, sys; from pathlib import Path; from tocsin.store.embedded.server import EmbeddedServer\n"
        f"os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})\n"
        "print(os.path.dirname(EmbeddedServer(Path(sys.argv[1])).socket))\n"
    )
    command = [sys.executable, "-c", program, str(folder)]
    os.chown(folder, 0, STRANGER)
    os.chmod(folder, 0o2770)
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.stdout == f"/tmp/tocsin-{STRANGER}\n", shown.stderr
    os.chmod(folder, 0o2777)
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "others may write in the data folder" in shown.stderr
