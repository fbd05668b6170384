"""Each test has a namespace of its own."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Tool
from tests.support.servers import Server


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command sets up the log lines of its process, which here is that of all tests."""
    ours = logging.getLogger("tocsin")
    before = ours.handlers[:], ours.propagate, ours.level
    yield
    ours.handlers[:], ours.propagate = before[:2]
    ours.setLevel(before[2])


@pytest.fixture
def tocsin(valkey: Server, tmp_path: Path) -> Iterator[Tool]:
    tool = Tool(valkey.url, f"t{secrets.token_hex(4)}:", tmp_path)
    yield tool
    tool.close()


@pytest.fixture(scope="module")
def module_tool(valkey: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """For tests that only look."""
    tool = Tool(valkey.url, f"t{secrets.token_hex(4)}:", tmp_path_factory.mktemp("looking"))
    yield tool
    tool.close()
