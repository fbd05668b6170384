"""The rules of the house: sizes, names, and which file may know what. Each exception is listed with its reason.

Rules for Lua are in `store/scripts/test_assembly.py`, links and file names of documents in `docs/test_documents.py`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from redis.asyncio import Connection, ConnectionPool, RedisCluster

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tocsin"
TESTS = ROOT / "tests"

LONGEST_FILE = 400
LONGEST_FUNCTION = 50
MOST_POSITIONAL = 6

LONG_FUNCTIONS = {
    "tests/app/test_every_key.py:observed": "one line for each configuration key",
}

# Public in both places: a trigger, and the receiver's memory of keys.
TWICE = {"Once"}

# Files that read or write packed bytes.
PACKS_BYTES = {
    "model/record.py": "the header of a job's record",
    "model/msgpack.py": "msgpack's own heads of texts and arrays",
    "store/formats.py": "everything else that is packed in Redis",
    "store/embedded/keeper.py": "the kernel's structure for the peer of a socket; it runs without our packages",
}

# What we use of redis-py that it does not document, by the file that uses it.
REDIS_PRIVATE = {
    "store/connection/pool.py": {
        ConnectionPool: ("_available_connections", "_in_use_connections"),
        Connection: ("_writer", "_connect", "_connection_arguments"),
    },
    "store/connection/cluster.py": {RedisCluster: ("_initialize", "_determine_slot")},
}

# Who catches every exception and does not raise it again, and why.
CATCHES_ALL = {
    "cli/load_app.py": "a program that cannot be imported fails in any way; the message names it",
    "engine/finisher.py": "a trigger may raise anything; the outcomes behind it must not be lost",
    "engine/heartbeat.py": "the heart's thread must not end while the worker lives",
    "engine/intake.py": "one bad record must not take the other claims of its reply along",
    "engine/loop.py": "the one loop: a failed pass is logged and tried again",
    "engine/runner_pool.py": "a handler may raise anything, SystemExit too, and must not end the worker",
    "patterns/agent_execution.py": "a user's instrumentation must not fail the run",
    "patterns/background_workers.py": "the error travels to the thread that waits",
    "resilience/classify.py": "a user's classifier must not fail the decision",
    "store/transitions/put_batcher.py": "each caller gets the error of the call that it shared",
    "targets/python/processes.py": "the error travels to the parent process",
    "targets/python/threads.py": "the error travels to the event loop",
    "triggers/next_tick.py": "a user's trigger data may fail in any way, and becomes TriggerFailed",
    "upkeep/agent_registrar.py": "a user's shard function must not stop the other agents",
    "upkeep/health_check.py": "a reading that fails makes the worker DEGRADED instead of ending the check",
}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def python(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...], folder: Path = SOURCE) -> Iterator[tuple[str, ast.AST]]:
    for path in python(folder):
        for node in ast.walk(tree(path)):
            if isinstance(node, kind):
                yield name_of(path), node


@pytest.mark.parametrize("folder", [SOURCE, TESTS], ids=["src", "tests"])
def test_a_file_fits_in_one_reading(folder: Path) -> None:
    files = [*python(folder), *folder.rglob("*.lua")]
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


@pytest.mark.parametrize("folder", [SOURCE, TESTS], ids=["src", "tests"])
def test_a_function_fits_on_a_screen(folder: Path) -> None:
    lengths = {
        f"{name}:{node.name}": node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]
        for name, node in nodes((ast.FunctionDef, ast.AsyncFunctionDef), folder)
    }
    assert {name for name, lines in lengths.items() if lines > LONGEST_FUNCTION} <= set(LONG_FUNCTIONS)


def test_constructors_take_many_arguments_by_name_only() -> None:
    found = {}
    for name, node in nodes(ast.ClassDef):
        for each in node.body:  # type: ignore[attr-defined]
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                positional = len(each.args.posonlyargs) + len(each.args.args) - 1
                if positional > MOST_POSITIONAL:
                    found[f"{name}:{node.name}"] = positional  # type: ignore[attr-defined]
    assert found == {}


def test_no_class_name_stands_for_two_things() -> None:
    places = defaultdict(list)
    for name, node in nodes(ast.ClassDef):
        places[node.name].append(name)  # type: ignore[attr-defined]
    assert {cls: files for cls, files in places.items() if len(files) > 1 and cls not in TWICE} == {}


def test_only_the_owners_of_formats_pack_bytes() -> None:
    found = set()
    for name, node in nodes((ast.Import, ast.ImportFrom)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]  # type: ignore[attr-defined]
        if "struct" in modules:
            found.add(name)
    assert found <= set(PACKS_BYTES)


def test_no_other_file_counts_the_bytes_of_a_record() -> None:
    counts = re.compile(r"\brecord\[\d")
    users = {name_of(path) for path in python(SOURCE) if counts.search(path.read_text())}
    assert users <= {"model/record.py"}


@pytest.mark.parametrize("file", REDIS_PRIVATE)
def test_redis_py_still_has_the_private_parts_that_we_use(file: str) -> None:
    missing = [
        f"{cls.__name__}.{part}"
        for cls, parts in REDIS_PRIVATE[file].items()
        for part in parts
        if f"{part}" not in Path(inspect.getfile(cls)).read_text()
    ]
    assert missing == [], f"this redis-py has no {missing}: {file} must find another way before it is allowed"


def test_private_parts_of_redis_py_are_used_where_the_list_says() -> None:
    names = {part for classes in REDIS_PRIVATE.values() for parts in classes.values() for part in parts}
    names -= {"_connect", "_writer", "_initialize"}  # plain words that others use for their own
    users = {name_of(path) for path in python(SOURCE) if any(f".{name}" in path.read_text() for name in names)}
    assert users <= set(REDIS_PRIVATE)


def test_whoever_catches_every_exception_is_listed() -> None:
    found = set()
    for name, node in nodes(ast.ExceptHandler):
        caught = node.type  # type: ignore[attr-defined]
        names = {each.id for each in ast.walk(caught) if isinstance(each, ast.Name)} if caught else {"BaseException"}
        body = node.body  # type: ignore[attr-defined]
        raises_again = isinstance(body[-1], ast.Raise) and body[-1].exc is None
        if names & {"Exception", "BaseException"} and not raises_again:
            found.add(name)
    assert found == set(CATCHES_ALL)
