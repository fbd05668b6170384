"""Where requests and messages may go is checked with the rest of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.config_files import problems, write
from tocsin.config import load_config
from tocsin.config.keys import value_of

GROUPS = ("http", "message")


@pytest.mark.parametrize("group", GROUPS)
def test_networks_and_hosts_are_taken(tmp_path: Path, group: str) -> None:
    path = write(tmp_path, f'{group}:\n  allow: [10.0.0.0/8, localhost, "*.internal", "::1"]\n')
    found = value_of(load_config(path, {}).config, f"{group}.allow")
    assert found == ("10.0.0.0/8", "localhost", "*.internal", "::1")


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("entry", ["10.0.0.0/33", "127.1", "host:80", "https://host", "a b"])
def test_each_entry_that_is_neither_is_told(tmp_path: Path, entry: str, group: str) -> None:
    path = write(tmp_path, f'{group}:\n  allow: [localhost, "{entry}", "*"]\n')
    first, second = problems(path)
    assert first.startswith(f"{path}:2: {group}.allow: {entry!r} is neither a network nor a host")
    assert "'*' is neither a network nor a host" in second


def test_variables_too() -> None:
    for group in GROUPS:
        [problem] = problems(**{f"TOCSIN_{group.upper()}__ALLOW": "localhost,10.0.0.5/8"})
        assert f"{group}.allow: '10.0.0.5/8' is neither" in problem
        assert "it is 10.0.0.0/8" in problem
