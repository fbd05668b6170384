"""What a Lua script names before it is there, and how many locals it has, without running it.

Lua 5.1 has at most 200 locals in a function, and a script is one function. A name that is no local yet is a global
to it, and Redis refuses that only when the line is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# What Redis gives to scripts.
GIVEN = {
    *(
        "redis",
        "cmsgpack",
        "struct",
        "string",
        "table",
        "math",
        "unpack",
        "pcall",
        "tonumber",
        "type",
        "pairs",
        "ipairs",
    ),
    *("next", "select", "KEYS", "ARGV"),
}
_TOKEN = re.compile(r"--[^\n]*|'(?:[^'\\\n]|\\.)*'|\.\.\.|\.\.|[<>=~]=|\d[\w.]*|[A-Za-z_]\w*|\S", re.DOTALL)
_KEYWORDS = {
    *(
        "and",
        "break",
        "do",
        "else",
        "elseif",
        "end",
        "false",
        "for",
        "function",
        "if",
        "in",
        "local",
        "nil",
        "not",
        "or",
    ),
    *("repeat", "return", "then", "true", "until", "while"),
}
# Words that begin or end a statement, so that an expression is over.
_BEGIN = {"local", "return", "if", "for", "while", "repeat", "do", "end", "else", "elseif", "until", "break"}


class Chunk:
    """A script or a library as Lua reads it.

    unknown      names that are neither given nor declared by then
    locals       how many the script has at most at a time, functions aside
    statements   what is neither in a function nor in the declaration of a local
    calls        names that are called to give a local of the chunk its value
    """

    def __init__(self, code: str) -> None:
        self._tokens = [token for token in _TOKEN.findall(code) if not token.startswith("--")]
        self._at = 0
        # Of each open block its kind and its names; functions are blocks too.
        self._blocks: list[tuple[str, list[str]]] = [("chunk", [])]
        self.unknown: set[str] = set()
        self.locals = 0
        self.statements: list[str] = []
        self.calls: list[str] = []
        self._in_local = False
        while self._at < len(self._tokens):
            self._step(self._next())

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _declare(self, *names: str) -> None:
        self._blocks[-1][1].extend(names)
        if all(kind != "function" for kind, _ in self._blocks):
            self.locals = max(self.locals, sum(len(names) for _, names in self._blocks))

    def _names(self) -> Iterator[str]:
        yield self._next()
        while self._peek() == ",":
            self._next()
            yield self._next()

    def _step(self, token: str) -> None:
        if len(self._blocks) == 1 and token not in ("local", "function", "end"):
            if not self._in_local:
                self.statements.append(token)
            elif token == "(":
                self.calls.append(self._tokens[self._at - 2])
        if token == "local":
            self._local()
        elif token == "function":
            self._function()
        elif token == "for":
            names = list(self._names())
            self._until("do")
            self._blocks.append(("block", []))
            # Lua keeps three of its own for a loop.
            self._declare("(for)", "(for)", "(for)", *names)
        elif token in ("do", "then", "repeat"):
            self._blocks.append(("block", []))
        elif token in ("elseif", "else", "end"):
            self._blocks.pop()
            if token == "else":
                self._blocks.append(("block", []))
        elif token == "until":
            # No script of ours names in its condition what the block declares.
            self._blocks.pop()
        elif re.match(r"[A-Za-z_]", token) and token not in _KEYWORDS:
            self._name(token)

    def _name(self, name: str) -> None:
        before = self._tokens[self._at - 2] if self._at > 1 else ""
        is_field = before == "." or (self._peek() == "=" and before in ("{", ","))
        if not is_field and name not in GIVEN and all(name not in names for _, names in self._blocks):
            self.unknown.add(name)

    def _until(self, word: str) -> None:
        while (token := self._next()) != word:
            self._step(token)

    def _local(self) -> None:
        if self._peek() == "function":
            self._next()
            self._declare(self._next())
            self._function()
            return
        names = list(self._names())
        if self._peek() == "=":
            # What stands behind the sign does not see the names yet.
            self._next()
            before, self._in_local = self._in_local, True
            self._expressions()
            self._in_local = before
        self._declare(*names)

    def _expressions(self) -> None:
        """Up to the word that begins another statement. Names in a row, or a word after a value, begin one."""
        depth, before = 0, "="
        while self._at < len(self._tokens):
            token = self._peek()
            is_name = bool(re.match(r"[A-Za-z_]", token)) and token not in _KEYWORDS
            after_value = bool(re.match(r"[\w')\]}]|\.\.\.", before)) and before not in ("and", "or", "not")
            if depth == 0 and (token in _BEGIN or (is_name and after_value)):
                return
            if token in "({[":
                depth += 1
            elif token in ")}]":
                depth -= 1
            before = self._next()
            if before == "function":
                blocks = len(self._blocks)
                self._function()
                while len(self._blocks) > blocks:
                    self._step(self._next())
                before = "end)"
            else:
                self._step(before)

    def _function(self) -> None:
        self._until_word("(")
        names: list[str] = []
        while (token := self._next()) != ")":
            if token not in (",", "..."):
                names.append(token)
        self._blocks.append(("function", []))
        self._declare(*names)

    def _until_word(self, word: str) -> None:
        while self._next() != word:
            pass
