"""The embedded server's allocator: the machine's jemalloc where there is one, and what the user preloads before it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import redis

from tocsin.store.embedded.server import EmbeddedServer

LIBRARIES = sorted(Path("/usr/lib").glob("*-linux-gnu/libjemalloc.so.2"))


def loaded(folder: Path) -> str:
    """What a new server has loaded."""
    with contextlib.closing(EmbeddedServer(folder)) as server:
        server.start()
        with contextlib.closing(redis.Redis.from_url(server.url)) as client:
            pid = client.info("server")["process_id"]
            assert client.set("key", "value")
            return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
class TestAllocator:
    @pytest.mark.skipif(not LIBRARIES, reason="jemalloc is not installed")
    def test_it_is_the_machines_jemalloc(self, tmp_path: Path):
        assert "libjemalloc" in loaded(tmp_path)

    def test_whoever_preloads_something_has_chosen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("LD_PRELOAD", "")
        assert "libjemalloc" not in loaded(tmp_path)
