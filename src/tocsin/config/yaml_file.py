"""Reads the settings in the text of a YAML file, each with its line.

It reads the parser's events along the schema and builds only values of settings. So tags, aliases and deep nesting do
no harm, and the line of each value is known.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import yaml
from msgspec import Struct

from tocsin.config.keys import GROUPS, SETTINGS, short, suggestion
from tocsin.config.origins import Origin, Problem
from tocsin.config.values import RawValue, wanted

# The parser's time grows with the square of the depth. Settings are nested five deep.
DEEPEST = 50

_NULLS = ("", "~", "null", "Null", "NULL")
_ALIAS = "aliases are not read here: write the value out"


class Parsed(Struct, frozen=True):
    # None: the key is in the file, but its value is unusable.
    found: dict[str, RawValue | None]
    problems: list[Problem]
    # False: the text after the last problem could not be read.
    whole: bool


def parse_file(text: str, path: str) -> Parsed:
    reading = _Reading(path, text)
    whole = reading.document()
    return Parsed(reading.found, reading.problems, whole)


class _TooDeep(Exception):
    pass


class _Reading:
    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._line = 1
        self.found: dict[str, RawValue | None] = {}
        self.problems: list[Problem] = []

    def document(self) -> bool:
        try:
            self._document()
            return True
        except _TooDeep:
            self._wrong(self._line, "is nested deeper than any setting")
        except yaml.YAMLError as error:
            self._unreadable(error)
        except (ValueError, OverflowError):
            # PyYAML raises these itself, for "\UFFFFFFFF" and for a %YAML version of thousands of digits.
            self._wrong(self._line, "cannot be read as YAML here, or soon after")
        return False

    def _document(self) -> None:
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            return
        root = self._next()
        if self._tagged(root, "the file"):
            self._skip(root)
        elif isinstance(root, yaml.MappingStartEvent):
            self._group("")
        elif not self._null(root):
            self._wrong(self._line, "must hold settings, like `redis:` and below it `agent:`")
            self._skip(root)
        self._next()
        if isinstance(self._next(), yaml.DocumentStartEvent):
            self._wrong(self._line, "a second document begins here: only one is read")

    def _group(self, above: str) -> None:
        lines: dict[str, int] = {}
        while not isinstance(name := self._next(), yaml.MappingEndEvent):
            line = self._line
            key = self._key(above, name)
            value = self._next()
            if key is None:
                self._skip(value)
            elif key in lines:
                self._wrong(line, f"{short(key)} stands here a second time, first in line {lines[key]}")
                self._skip(value)
            else:
                lines[key] = line
                self._take(key, value)

    def _key(self, above: str, name: Any) -> str | None:
        if not isinstance(name, yaml.ScalarEvent):
            alias = isinstance(name, yaml.AliasEvent)
            self._wrong(self._line, _ALIAS if alias else "a key must be a name")
            self._skip(name)
            return None
        key = f"{above}.{name.value}" if above else str(name.value)
        if self._tagged(name, short(key)):
            return None
        if "." in name.value and (key in SETTINGS or key in GROUPS):
            self._wrong(self._line, f"{key}: write it nested, without dots in a key")
            return None
        # The group "" is the file itself.
        if not key or (key not in SETTINGS and key not in GROUPS):
            self._wrong(self._line, f"there is no setting {short(key)!r}; {suggestion(key)}")
            return None
        return key

    def _take(self, key: str, value: Any) -> None:
        if key in SETTINGS:
            self.found[key] = None
        if isinstance(value, yaml.AliasEvent):
            self._wrong(self._line, f"{key}: {_ALIAS}")
        elif self._tagged(value, key):
            self._skip(value)
        elif key in GROUPS:
            self._take_group(key, value)
        elif isinstance(value, yaml.ScalarEvent) and not self._null(value):
            self.found[key] = RawValue(value.value, value.style is None, self._line)
        elif isinstance(value, yaml.SequenceStartEvent) and SETTINGS[key].kind in (tuple, dict):
            line = self._line
            self.found[key] = RawValue("", True, line, self._list(key))
        elif isinstance(value, yaml.MappingStartEvent) and SETTINGS[key].kind is dict:
            line = self._line
            self.found[key] = RawValue("", True, line, lists=self._lists(key))
        else:
            self._wrong(self._line, f"{key} must be {wanted(SETTINGS[key])}, not {self._kind(value)}")
            self._skip(value)

    def _list(self, key: str) -> tuple[str, ...]:
        items = []
        while not isinstance(item := self._next(), yaml.SequenceEndEvent):
            if isinstance(item, yaml.ScalarEvent) and not self._tagged(item, key) and not self._null(item):
                items.append(str(item.value))
            else:
                self._wrong(self._line, f"{key} must be {wanted(SETTINGS[key])}, and here is {self._kind(item)}")
                self._skip(item)
        return tuple(items)

    def _lists(self, key: str) -> dict[str, tuple[str, ...]]:
        """Names with a list each. A single text stands for a list of one."""
        found: dict[str, tuple[str, ...]] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            name = self._name(key, event, found)
            value = self._next()
            if name is None or self._tagged(value, key):
                self._skip(value)
            elif isinstance(value, yaml.SequenceStartEvent):
                found[name] = self._list(key)
            elif isinstance(value, yaml.ScalarEvent) and not self._null(value):
                found[name] = (str(value.value),)
            else:
                self._wrong(self._line, f"{key}: {short(name)!r} needs a list, and here is {self._kind(value)}")
                self._skip(value)
        return found

    def _name(self, key: str, event: Any, taken: Container[str]) -> str | None:
        if not isinstance(event, yaml.ScalarEvent):
            self._wrong(self._line, f"{key}: a key must be a name")
        elif event.value in taken:
            self._wrong(self._line, f"{key}: {short(event.value)!r} stands here a second time")
        elif not self._tagged(event, key):
            return str(event.value)
        self._skip(event)
        return None

    def _take_group(self, key: str, value: Any) -> None:
        if isinstance(value, yaml.MappingStartEvent):
            self._group(key)
        # A group without settings, perhaps all commented out, counts as missing.
        elif not self._null(value):
            self._wrong(self._line, f"{key} must hold settings, not {self._kind(value)}")
            self._skip(value)

    def _next(self) -> Any:
        event = next(self._events)
        self._line = event.start_mark.line + 1
        return event

    def _skip(self, event: Any) -> None:
        """Skip the value that begins with this event."""
        depth = 0
        while True:
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST:
                raise _TooDeep
            if not depth:
                return
            event = self._next()

    def _tagged(self, event: Any, what: str) -> bool:
        tagged = getattr(event, "tag", None) is not None
        if tagged:
            self._wrong(self._line, f"{what}: tags like !!python or !!int are not read here: write the plain value")
        return tagged

    def _null(self, event: Any) -> bool:
        return isinstance(event, yaml.ScalarEvent) and event.style is None and event.value in _NULLS

    def _kind(self, event: Any) -> str:
        if self._null(event):
            return "nothing"
        names = {yaml.MappingStartEvent: "a mapping", yaml.SequenceStartEvent: "a list"}
        return names.get(type(event), "a value")

    def _unreadable(self, error: Any) -> None:
        if (mark := getattr(error, "problem_mark", None)) is not None:
            reason = ", ".join(part for part in (error.context, error.problem) if part)
            self._wrong(mark.line + 1, f"is not YAML: {reason}")
        else:
            # A character that YAML does not allow. For those PyYAML gives only the position.
            line = self._text.count("\n", 0, error.position) + 1
            self._wrong(line, f"is not YAML: the character {chr(error.character)!r} is not allowed")

    def _wrong(self, line: int, what: str) -> None:
        self.problems.append(Problem(Origin(file=self._path, line=line), what))
