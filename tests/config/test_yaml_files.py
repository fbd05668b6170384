"""Files that are not what they should be: said with the file and the line, whatever is in them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.config_files import problems, write
from tocsin.config import load_config
from tocsin.config.load import LARGEST_BYTES

BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("redis:\n  agent: [\n", 3, "is not YAML: while parsing a flow node, expected the node content"),
        ("redis:\n\tagent: 1\n", 2, "is not YAML: while scanning for the next token, found character"),
        ("redis: a: b\n", 1, "is not YAML: mapping values are not allowed here"),
        ('redis:\n  agent: "x\n', 3, "is not YAML: while scanning a quoted scalar"),
        ("redis:\n\n  \x07: 1\n", 3, "is not YAML: the character '\\x07' is not allowed"),
        ('redis:\n  "\\UFFFFFFFF": 1\n', 1, "cannot be read as YAML"),
        ("- redis\n", 1, "must hold settings"),
        ("just text\n", 1, "must hold settings"),
        ("42\n", 1, "must hold settings"),
        ("redis: {}\n---\nredis: {}\n", 2, "a second document begins here"),
        ("redis:\n  agent: {}\n  agent: {}\n", 3, "redis.agent stands here a second time, first in line 2"),
        ("redis: {}\n\nredis: {}\n", 3, "redis stands here a second time, first in line 1"),
        ("redis.agent: {}\n", 1, "redis.agent: write it nested"),
        ("redis:\n  scheduler.enabled: true\n", 2, "redis.scheduler.enabled: write it nested"),
        ('"": {redis: {}}\n', 1, "there is no setting ''; there are: http, limits, message, recovery, redis"),
        ("? [a, b]\n: 1\n", 1, "a key must be a name"),
        ("redis: &r\n  agent: *r\n", 2, "redis.agent: aliases are not read here"),
        ("redis:\n  *x : 1\n", 2, "aliases are not read here"),
        ("redis:\n  agent:\n    enabled-pattern: !!python/name:os.system x\n", 3, "tags like !!python"),
        ("redis: !!python/object/apply:os.system [id]\n", 1, "redis: tags like !!python"),
        ("!!python/object:x {}\n", 1, "the file: tags like !!python"),
        ("redis: !mine {}\n", 1, "redis: tags like !!python"),
        ("redis:\n  ? !!str agent\n  : {}\n", 2, "redis.agent: tags like"),
        ("redis:\n  agent: " + "[" * 2000 + "]" * 2000, 2, "is nested deeper than any setting"),
        ("redis: " + "[" * 100_000, 1, "is nested deeper than any setting"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text: str, line: int, told: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    assert problems(path)[-1].startswith(f"{path}:{line}: ")
    assert told in problems(path)[-1]


def test_an_unreadable_rest_hides_no_problem_before_it_and_makes_none_up(tmp_path: Path) -> None:
    text = """redis:
  scheduler:
    interval-ms: 0
    orphan-cleanup:
      run-budget-ms: 100000
      leadership-ttl-ms 300000
      enabled: true
"""
    told = problems(write(tmp_path, text))
    assert len(told) == 2
    assert "interval-ms must be at least 1" in told[0]
    assert "is not YAML" in told[1]


def test_bytes_that_are_no_utf8_are_told_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, b"redis:\n  # caf\xe9\n")
    assert problems(path) == [f"{path}:2: is not UTF-8"]
    path = write(tmp_path, "redis: {}\n".encode("utf-16"))
    assert problems(path) == [f"{path}:1: is not UTF-8"]


def test_a_bomb_of_aliases_costs_nothing(tmp_path: Path) -> None:
    started = time.process_time()
    told = problems(write(tmp_path, BOMB + "redis:\n  agent:\n    enabled-pattern: *i\n"))
    assert time.process_time() - started < 2
    assert "redis.agent.enabled-pattern: aliases are not read here" in told[-1]


def test_a_file_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = write(tmp_path, "#" * (LARGEST_BYTES + 1))
    assert problems(path) == [f"{path}: is larger than 256 KiB: not a configuration"]
    assert load_config(write(tmp_path, "#" * LARGEST_BYTES), {}).path == path
    assert problems("/dev/zero") == ["/dev/zero: is larger than 256 KiB: not a configuration"]


def test_what_is_no_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(str(tmp_path)) == [f"{tmp_path}: cannot be read: Is a directory"]
    assert problems("a\0b")[0].startswith("a\\x00b: cannot be read: ")
    monkeypatch.chdir(tmp_path)
    os.mkdir("tocsin.yaml")
    assert problems() == ["tocsin.yaml: cannot be read: Is a directory"]


def test_a_problem_is_one_line_whatever_its_file_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "a\nb\x1b[31m"
    folder.mkdir()
    [problem] = problems(write(folder, '"x\\ny": 1\n'))
    assert "a\\nb\\x1b[31m" in problem


def test_an_unknown_key_of_any_length_is_cut(tmp_path: Path) -> None:
    [problem] = problems(write(tmp_path, f"? {'x' * 50_000}\n: 1\n"))
    assert len(problem) < 400
