"""The Lua scripts: one transition a file, whose header is the contract.

The KEYS and ARGV of a header are what Python passes and, by name, the locals that the body reads; USES names the
files of lua/lib that stand before the body. So headers cannot drift from the code. A key with a star behind its name
stands for any number of keys of that kind, and is the only one.

A script that uses `line` comes in one form for each order of a queue: other files of lua/lib, and the keys they need.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, ResponseError

_SECTION = re.compile(r"--\s(KEYS|ARGV|RETURN|USES)\s+(.*)")
_FUNCTION = re.compile(r"^local function (\w+)\((?:[^\n]*\bend|.*?\nend)\n", re.MULTILINE | re.DOTALL)
_LOCALS = re.compile(r"^local (?!function)([\w, ]+)", re.MULTILINE)
_TEXT = re.compile(r"'[^'\n]*'")
_KEY = re.compile(r"--\s(?:KEYS)?\s+([a-z]+[0-4]?\*?)\s+(?:HASH|ZSET|LIST|STREAM|STRING)\b")

_READY = tuple(f"ready{band}" for band in range(5))
_TURNS = tuple(f"turns{band}" for band in range(5))
# By order: the files that stand for the common name, and the keys that they need.
_FORMS: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "due": {"line": (("pace", "apart", "line"), ())},
    "priority": {
        "line": (("pace", "apart", "ready", "line_priority", "entering"), ("jobs", "waiting", *_READY)),
        "standing": (("standing_priority",), _READY),
        "pick": (("pick_priority",), ()),
        "places": (("places_priority",), _READY),
    },
    "fair": {
        "line": (
            ("pace", "apart", "ready", "line_fair", "entering"),
            ("jobs", "waiting", *_READY, *_TURNS, "tenants", "spots", "resting"),
        ),
        "standing": (("standing_fair",), ("spots", *_READY)),
        "pick": (("pick_fair",), ("weights",)),
        "places": (("places_fair",), (*_READY, *_TURNS, "tenants", "spots", "resting")),
    },
}
ORDERS = tuple(_FORMS)


class Script:
    """A script with its contract. Call it with a store's client or add it to a pipeline."""

    def __init__(self, name: str, text: str, order: str = "due") -> None:
        self.name = name
        self.keys, self.args, uses = _read_header(name, text)
        more: list[str] = []
        for common, (parts, keys) in _FORMS[order].items():
            if common in uses:
                at = uses.index(common)
                uses[at : at + 1] = parts
                more += [key for key in keys if key not in (*self.keys, *more)]
        code = _assemble([*(_lua(f"lib/{use}.lua") for use in uses), text], [*self.keys, *more, *self.args])
        self.keys += [key for key in more if re.search(rf"\b{key}\b", code)]
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
    if name == "run_claim_ordered":
        return ("priority", "fair")
    if name in ("line_look", "line_mend"):
        return ("fair",)
    return ("due",) if name in ("run_claim", "run_claim_ids", "job_park") else ORDERS


def script_names() -> list[str]:
    return sorted(path.name[:-4] for path in files(__package__).joinpath("lua").iterdir() if path.name.endswith(".lua"))


def _lua(path: str) -> str:
    return files(__package__).joinpath("lua", path).read_text(encoding="utf-8")


def _read_header(name: str, text: str) -> tuple[list[str], list[str], list[str]]:
    lines = text.splitlines()
    header = lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))]
    if not header or not header[0].startswith(f"-- {name}: "):
        raise ValueError(f"{name}.lua must begin with '-- {name}: ' and what it does")
    keys = [match[1] for line in header if (match := _KEY.match(line))]
    sections = {match[1]: match[2] for line in header if (match := _SECTION.match(line))}
    return keys, _names(sections.get("ARGV", "")), _names(sections.get("USES", ""))


def _names(section: str) -> list[str]:
    """'id, expected version, due (0: any): what for' -> id, expected_version, due"""
    plain = re.sub(r"\([^)]*\)", "", section).partition(":")[0]
    return [word.strip().replace(" ", "_") for word in plain.split(",") if word.strip()]


def _bindings(keys: list[str], args: list[str]) -> str:
    if keys and keys[0].endswith("*"):
        # As many of one kind as the caller gives, as a table.
        return f"local {keys[0][:-1]} = KEYS\n" + _bindings([], args)
    given = {"KEYS": keys, "ARGV": args}
    return "".join([f"local {', '.join(names)} = unpack({table})\n" for table, names in given.items() if names])


class _Piece(NamedTuple):
    """A function, or what stands between two."""

    name: str
    code: str
    words: Counter[str]


@functools.cache
def _pieces(text: str) -> list[_Piece]:
    code = "".join(f"{line}\n" for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
    pieces, at = [], 0
    for match in _FUNCTION.finditer(code):
        pieces += [("", code[at : match.start()]), (match[1], match[0])]
        at = match.end()
    pieces.append(("", code[at:]))
    return [_Piece(name, piece, Counter(re.findall(r"\w+", _TEXT.sub("", piece)))) for name, piece in pieces]


def _assemble(texts: list[str], bound: list[str]) -> str:
    """Without functions that nobody calls: they would be made in each call, and count among the 200 locals of Lua.
    Those that are called stand where they are needed first: a call that ends before that does not make them."""
    pieces = [piece for text in texts for piece in _pieces(text)]
    words: Counter[str] = Counter()
    for piece in pieces:
        words.update(piece.words)
    while unused := [piece for piece in pieces if piece.name and words[piece.name] == piece.words[piece.name]]:
        for piece in unused:
            words.subtract(piece.words)
        pieces = [piece for piece in pieces if piece not in unused]
    return "".join(piece.code for piece in _in_order_of_need(pieces, bound))


def _in_order_of_need(pieces: list[_Piece], bound: list[str]) -> list[_Piece]:
    """Only ever later than they stood, so what they refer to is there; not past a second local of the same name."""
    declared = Counter([*bound, *(name for piece in pieces for name in _declared(piece))])
    twice = {name for name, times in declared.items() if times > 1}
    ordered: list[_Piece] = []
    waiting: dict[str, _Piece] = {}
    functions: dict[str, _Piece] = {}
    for piece in pieces:
        if piece.name:
            functions[piece.name] = piece
        if piece.name and not twice & piece.words.keys():
            waiting[piece.name] = piece
            continue
        needed = _needs(piece, functions)
        ordered += [waiting.pop(name) for name in list(waiting) if name in needed]
        ordered.append(piece)
    return ordered


def _declared(piece: _Piece) -> list[str]:
    """The locals of the whole script that a piece declares."""
    if piece.name:
        return [piece.name]
    return [name for names in _LOCALS.findall(piece.code) for name in re.findall(r"\w+", names)]


def _needs(piece: _Piece, functions: dict[str, _Piece]) -> set[str]:
    """The functions that it calls, and those that these call."""
    needed: set[str] = set()
    unseen = [piece]
    while unseen:
        called = {name for name in unseen.pop().words if name in functions} - needed
        needed |= called
        unseen += [functions[name] for name in called]
    return needed
