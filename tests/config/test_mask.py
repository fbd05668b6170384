"""A password is shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.config_files import nested, problems, write
from tocsin.config import load_config
from tocsin.config.mask import masked

URL = "redis.connection.url"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", ""),
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("unix:///run/valkey.sock", "unix:///run/valkey.sock"),
        ("redis+sentinel://a:1,b:2/main/0", "redis+sentinel://a:1,b:2/main/0"),
        ("redis://:s3cret@db", "redis://***@db"),
        ("redis://me:s3cret@db:1/2", "redis://***@db:1/2"),
        ("redis://s3cret@db", "redis://***@db"),
        ("redis://me:s3cret@2@db", "redis://***@db"),
        ("redis://me:s3/cret@db", "redis://***@db"),
        ("redis://me:s3?cret@db", "redis://***@db"),
        ("redis://db?password=s3cret", "redis://db?***"),
        ("redis://db?password=s3cret@x", "redis://***@x"),
        ("redis://me:s3cret", "***"),
        ("redis://db#s3cret", "***"),
        ("me:s3cret@db", "***"),
        ("s3cret", "***"),
    ],
)
def test_login_and_options_of_an_address_are_hidden(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize("url", ["redis://me:s3cret@db/0", "s3cret", "redis://db?password=s3cret"])
def test_the_address_is_hidden_wherever_it_is_shown(url: str, tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, nested(URL, f'"{url}"')), {})
    assert loaded.config.redis.connection.url == url
    assert "s3cret" not in repr(loaded)
    assert "s3cret" not in repr(list(loaded.shown()))


def test_other_fields_are_seen_as_ever() -> None:
    loaded = load_config(env={"TOCSIN_REDIS__CONNECTION__CONNECT_TIMEOUT": "77"})
    assert "timeout=3000, connect_timeout=77)" in repr(loaded.config)


@pytest.mark.parametrize(
    "text",
    [
        "redis:\n  connection: redis://me:s3cret@db\n",
        "redis:\n  connection:\n    uri: redis://me:s3cret@db\n",
        "redis:\n  connection:\n    timeout: redis://me:s3cret@db\n",
        "redis:\n  connection:\n    url: [redis://me:s3cret@db]\n",
        "redis: redis://me:s3cret@db\n",
        "redis:\n  connection:\n    url: redis://me:s3cret@db: 1\n",
        'redis:\n  connection:\n    url: "redis://me:s3cret@db\n',
        "redis:\n  connection:\n    url: !!str redis://me:s3cret@db\n",
    ],
)
def test_no_problem_quotes_an_address(text: str, tmp_path: Path) -> None:
    assert "s3cret" not in "\n".join(problems(write(tmp_path, text)))
