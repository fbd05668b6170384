"""The Lua scripts: one transition a file, whose header is the contract.

The KEYS and ARGV of a header are what Python passes and, by name, the locals that the body reads, so headers cannot
drift from the code; keys.py says what each key holds. A key with a star behind its name stands for any number of keys
of that kind, and is the only one. ORDERS names the orders of queues that a script is for, if it is not for all.

`--@include NAME` on a line of its own stands for lua/lib/NAME_ORDER.lua, or lua/lib/NAME.lua where the order of the
queue makes no difference. A file is included once, where it is named first. Libraries define functions and constants
and do nothing else. They use by name what the script has before the line: its keys and arguments, and the state of the
call. A library that names KEYS of its own adds them to those of the script.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from tocsin.store.keys import BANDS, TURNS

ORDERS = ("due", "priority", "fair")
_BANDED = (*BANDS, *TURNS)

_INCLUDE = re.compile(r"^ *--@include (\w+)\n", re.MULTILINE)
_SECTION = re.compile(r"--\s([A-Z]{4,})\s+(.*)")
# The names may go on for some lines.
_KEYS = re.compile(r"^-- KEYS\s+((?:[a-z0-4*, ]|\n--\s{2,})+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*(--.*)?\n", re.MULTILINE)


class Script:
    """A script with its contract. Call it with a store's client or add it to a pipeline."""

    def __init__(self, name: str, text: str, order: str = "due") -> None:
        if not text.startswith(f"-- {name}: "):
            raise ValueError(f"{name}.lua must begin with '-- {name}: ' and what it does")
        included: dict[str, str] = {}
        code = _COMMENT.sub("", _expand(text, order, included))
        self.name = name
        named = dict.fromkeys(key for part in (text, *included.values()) for key in _keys_of(part))
        self.keys = [key for key in named if key not in _BANDED] + [key for key in _BANDED if key in named]
        self.args = _names(_sections(text).get("ARGV", ""))
        self.source = _bindings(self.keys, self.args) + code
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, client: Any, keys: Sequence[str | bytes], args: Sequence[Any]) -> Any:
        seen = client.script_reloader.loads
        try:
            try:
                return await client.evalsha(self.sha, len(keys), *keys, *args)
            except NoScriptError:
                return await client.script_reloader.run_after_reload(self, client, keys, args, seen)
        except ResponseError as error:
            client.script_reloader.count(error)
            raise

    def blocking(self, client: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            # EVAL also loads it, so this happens once after a restart or a SCRIPT FLUSH.
            return client.eval(self.source, len(keys), *keys, *args)


@functools.cache
def script(name: str, order: str = "due") -> Script:
    return Script(name, _lua(f"{name}.lua"), order)


@functools.cache
def all_scripts() -> list[Script]:
    """Each in each of its forms."""
    forms = [script(name, order) for name in script_names() for order in ORDERS if order in orders_of(name)]
    return list({form.sha: form for form in forms}.values())


def orders_of(name: str) -> tuple[str, ...]:
    """The orders of queues that a script is for."""
    return tuple(_names(_sections(_lua(f"{name}.lua")).get("ORDERS", ""))) or ORDERS


def script_names() -> list[str]:
    return sorted(path.name[:-4] for path in files(__package__).joinpath("lua").iterdir() if path.name.endswith(".lua"))


def assembled(name: str, order: str = "due") -> str:
    """A script as it is sent to the server, for those that debug it."""
    return script(name, order).source


@functools.cache
def _lua(path: str) -> str:
    return files(__package__).joinpath("lua", path).read_text(encoding="utf-8")


def _expand(text: str, order: str, included: dict[str, str]) -> str:
    """The text with its includes in place. `included` gets those that are new, with their texts."""

    def include(match: re.Match[str]) -> str:
        name = match[1]
        if name in included:
            return ""
        included[name] = _library(name, order)
        return _expand(included[name], order, included)

    return _INCLUDE.sub(include, text)


@functools.cache
def _library(name: str, order: str) -> str:
    try:
        return _lua(f"lib/{name}_{order}.lua")
    except FileNotFoundError:
        return _lua(f"lib/{name}.lua")


def _sections(text: str) -> dict[str, str]:
    """The header by section, without what a section says beyond its first line."""
    lines = text.splitlines()
    header = lines[: next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))]
    return {match[1]: match[2] for line in header if (match := _SECTION.match(line))}


def _keys_of(text: str) -> list[str]:
    section = _KEYS.search(text)
    return re.findall(r"[a-z]+[0-4]?\*?", section[1]) if section else []


def _names(section: str) -> list[str]:
    """'id, expected version, due (0: any): what for' -> id, expected_version, due"""
    plain = re.sub(r"\([^)]*\)", "", section).partition(":")[0]
    return [word.strip().replace(" ", "_") for word in plain.split(",") if word.strip()]


def _bindings(keys: list[str], args: list[str]) -> str:
    """The locals by which the code knows its keys and arguments. Keys of bands come last, and `READY` and `TURNS` have
    them by band: Lua allows 200 locals."""
    if keys and keys[0].endswith("*"):
        # As many of one kind as the caller gives, as a table.
        return f"local {keys[0][:-1]} = KEYS\n" + _bindings([], args)
    single = [key for key in keys if key not in _BANDED]
    given = {"KEYS": single, "ARGV": args}
    code = [f"local {', '.join(names)} = unpack({table})\n" for table, names in given.items() if names]
    for first in range(len(single), len(keys), len(BANDS)):
        name = keys[first].rstrip("0").upper()
        code.append(f"local {name} = {{[0] = KEYS[{first + 1}], unpack(KEYS, {first + 2}, {first + len(BANDS)})}}\n")
    return "".join(code)
