"""Reads settings from a program's mapping, nested as in the file or with dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tocsin.config.keys import GROUPS, SETTINGS, Setting, parent, short, suggestion
from tocsin.config.origins import one_line
from tocsin.config.values import RawValue, Value, WrongValue, parse, wanted
from tocsin.model.errors import InvalidConfig


def read_mapping(given: Mapping[str, Any]) -> dict[str, Value]:
    """The values by dotted key. Raises InvalidConfig with a line per problem. `merged` checks the rules."""
    found: dict[str, Value] = {}
    problems: list[str] = []
    for key, value in _flat(given, ""):
        if key not in SETTINGS:
            problems.append(_unknown(key))
            continue
        try:
            found[key] = parse(SETTINGS[key], _as_written(SETTINGS[key], value))
        except WrongValue as error:
            problems.append(f"{key} {error}")
    if problems:
        raise InvalidConfig("\n".join(map(one_line, problems)))
    return found


def _flat(given: Mapping[Any, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        key = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping) and key in GROUPS:
            yield from _flat(value, key)
        else:
            yield key, value


def _unknown(key: str) -> str:
    if key and key in GROUPS:
        return f"{key} is a group: give a mapping of the settings in it"
    # Compare the first unknown part.
    known = key
    while parent(known) not in GROUPS:
        known = parent(known)
    return f"there is no setting {short(key)!r}; {suggestion(known)}"


def _as_written(setting: Setting, value: Any) -> RawValue:
    """The value as it would be written in the file: text in quotes, numbers and booleans without."""
    if isinstance(value, str):
        return RawValue(value, plain=False)
    if setting.kind in (tuple, dict) and _is_texts(value):
        return RawValue("", plain=False, items=tuple(value))
    if setting.kind is dict and isinstance(value, Mapping) and _is_texts([*value]):
        lists = all(_is_texts(texts) for texts in value.values())
        if lists:
            return RawValue("", plain=False, lists={name: tuple(texts) for name, texts in value.items()})
    if isinstance(value, int | float) and setting.kind not in (str, tuple, dict):
        return RawValue(str(value).lower() if isinstance(value, bool) else repr(value), plain=True)
    raise WrongValue(f"must be {wanted(setting)}, not {value!r:.60}")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
