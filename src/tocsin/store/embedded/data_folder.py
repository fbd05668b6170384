"""Makes and checks the data folder of the embedded server: its owner and its permissions.

Another user who can write there could make the server load jobs of their choice, or make us write through links into
our own files. So the folder and our files in it must belong to us or root, and others must not be able to write in it.
Our files are private by their own mode. The folder's mode changes only if it contains nothing but our files: it may be
a home, or /srv.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from tocsin.store.embedded.keeper import OwnedByAnotherUser, is_ours, user

_APPENDONLY = "appendonlydir"
_NAMES = {"start.lock", "users.lock", "keeper.lock", "server.lock", "server.log", "server.log.old", "server.pid"}
_NAMES |= {_APPENDONLY, "dump.rdb"}
# The prefix of files that the server writes while it rewrites its log.
_TEMPORARY = "temp-"

_ELSE = "choose another with $TOCSIN_DATA"


def make_folder(folder: Path) -> Path:
    """Make the folder if it is missing. Returns its path without links. Raises OwnedByAnotherUser if it is unsafe."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = folder.lstat()
    if not is_ours(link.st_uid):
        raise _foreign(f"the data folder {folder}", link)
    real = folder.resolve()
    os.close(open_folder(real))
    return real


def open_folder(folder: Path) -> int:
    """A descriptor of the folder, valid even if the folder is moved. Raises OwnedByAnotherUser if it is unsafe."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check(descriptor, folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(descriptor: int, folder: Path) -> None:
    found = os.fstat(descriptor)
    if not is_ours(found.st_uid):
        raise _foreign(f"the data folder {folder}", found)
    names = os.listdir(descriptor)
    ours = [name for name in names if name in _NAMES or name.startswith(_TEMPORARY)]
    _keep_others_out(descriptor, folder, alone=len(ours) == len(names))
    for name in ours:
        # The server may remove its files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            _check_ours(descriptor, name, folder)


def _keep_others_out(descriptor: int, folder: Path, *, alone: bool) -> None:
    if alone and os.fstat(descriptor).st_mode & 0o077 and os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, 0o700)
    found = os.fstat(descriptor)
    # In a folder of root its group may write: containers get their volumes like this.
    forbidden = 0o022 if found.st_uid == os.geteuid() else 0o002
    if found.st_mode & forbidden:
        raise OwnedByAnotherUser(
            f"others may write in the data folder {folder} ({stat.filemode(found.st_mode)}), and so give the server "
            f"other data: `chmod go-w` it, or {_ELSE}, such as {folder / 'tocsin'}"
        )


def _check_ours(descriptor: int, name: str, folder: Path) -> None:
    found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    is_folder = name == _APPENDONLY
    if not is_ours(found.st_uid):
        raise _foreign(f"{folder / name}", found)
    if stat.S_ISLNK(found.st_mode) and not is_folder:
        raise OwnedByAnotherUser(f"{folder / name} is a link, which is never followed: remove it, or {_ELSE}")
    if found.st_uid == os.geteuid() and (is_folder or stat.S_ISREG(found.st_mode)):
        _tighten(descriptor, name, folder, is_folder=is_folder)


def _tighten(descriptor: int, name: str, folder: Path, *, is_folder: bool) -> None:
    """Make private what an older version or a copy left readable, and check the files of the log."""
    inside = os.open(name, os.O_RDONLY | os.O_CLOEXEC | (0 if is_folder else os.O_NOFOLLOW), dir_fd=descriptor)
    try:
        found = os.fstat(inside)
        if not is_ours(found.st_uid):
            raise _foreign(f"{folder / name}", found)
        if found.st_mode & 0o077 and found.st_uid == os.geteuid():
            os.fchmod(inside, found.st_mode & 0o700)
        for each in os.listdir(inside) if is_folder else ():
            with contextlib.suppress(FileNotFoundError):
                log = os.stat(each, dir_fd=inside, follow_symlinks=False)
                if not is_ours(log.st_uid):
                    raise _foreign(f"{folder / name / each}", log)
    finally:
        os.close(inside)


def _foreign(what: str, found: os.stat_result) -> OwnedByAnotherUser:
    return OwnedByAnotherUser(
        f"{what} belongs to {user(found.st_uid)}, not to {user(os.geteuid())}: have it removed, or {_ELSE}"
    )
