"""Parses text as the value of a setting. The setting's type decides: `on` is a boolean only for a boolean setting."""

from __future__ import annotations

import math
import re

from msgspec import Meta, Struct

from tocsin.config.keys import Setting
from tocsin.config.mask import masked
from tocsin.model.errors import did_you_mean
from tocsin.model.grants import Grants

Value = bool | int | float | str | tuple[str, ...] | Grants

# The booleans of YAML 1.1, in lower case, upper case or capitalized.
_TRUE = {"true", "yes", "on"}
_FALSE = {"false", "no", "off"}
# No leading zeros: some YAML parsers read 010 as 8, others as 10.
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_NUMBER = re.compile(r"[-+]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.?(inf|infinity|nan)", re.IGNORECASE)
_SHOWN = 60


class RawValue(Struct, frozen=True):
    """A value as written in the file or in a variable. `plain`: without quotes."""

    text: str
    plain: bool
    line: int = 0
    # A list in the file. None: `text`, which for a list setting is split at commas.
    items: tuple[str, ...] | None = None
    # A mapping in the file.
    lists: dict[str, tuple[str, ...]] | None = None


class WrongValue(Exception):
    """A wrong value. The message continues the key: 'must be …'."""


def parse(setting: Setting, given: RawValue) -> Value:
    text = given.text
    if not given.plain and setting.kind not in (str, tuple, dict):
        raise WrongValue(f"must be {wanted(setting)}, not text: write it without quotes")
    if setting.kind is bool:
        return _truth(text)
    if setting.kind is int:
        return _whole(setting, text)
    if setting.kind is float:
        return _number(setting, text)
    if setting.kind is tuple:
        parts = text.split(",") if given.items is None else given.items
        return tuple(_text(setting, part.strip()) for part in parts if part.strip())
    if setting.kind is dict:
        return _grants(setting, given)
    return _text(setting, text)


def _grants(setting: Setting, given: RawValue) -> Grants:
    """Parse a list of names, names with a list each, or NAME and NAME=TEXT separated by commas."""
    if given.lists is not None:
        return {
            _text(setting, name.strip()): tuple(_text(setting, text.strip()) for text in texts if text.strip())
            for name, texts in given.lists.items()
            if name.strip()
        }
    if given.items is not None:
        return {_text(setting, name.strip()): setting.alone for name in given.items if name.strip()}
    found: Grants = {}
    for part in given.text.split(","):
        name, mark, text = (_text(setting, each.strip()) for each in part.partition("="))
        if name:
            found[name] = (*found.get(name, ()), *((text,) if mark else setting.alone))
    return found


def wanted(setting: Setting) -> str:
    """What the setting must be, in words."""
    return {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: 'text ("" for none)',
        tuple: "a list of texts ([] for none)",
        dict: "a list of names ([] for none), or names with a list of texts each",
    }[setting.kind]


def _truth(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE and text in (text.lower(), text.upper(), text.capitalize()):
        return text.lower() in _TRUE
    raise WrongValue(f"must be true or false, not {_quoted(text)}")


def _whole(setting: Setting, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise WrongValue(f"must be a whole number, not {_quoted(text)}")
    digits = text.replace("_", "")
    # Check it as a float first: int() refuses thousands of digits with an error of its own.
    _check(setting, float(digits), text)
    return int(digits)


def _number(setting: Setting, text: str) -> float:
    if _NOT_FINITE.fullmatch(text):
        raise WrongValue(f"must be a finite number, not {_quoted(text)}")
    if not _NUMBER.fullmatch(text):
        raise WrongValue(f"must be a number, not {_quoted(text)}")
    number = float(text.replace("_", ""))
    if not math.isfinite(number):
        raise WrongValue(f"must be a finite number, not {_quoted(text)}")
    _check(setting, number, text)
    return number


def _check(setting: Setting, number: float, text: str) -> None:
    limits = setting.limits or Meta()
    if limits.ge is not None and number < limits.ge:
        why = f": {limits.description}" if limits.description else ""
        raise WrongValue(f"must be at least {limits.ge}, not {_quoted(text)}{why}")
    if limits.le is not None and number > limits.le:
        raise WrongValue(f"must be at most {limits.le}, not {_quoted(text)}")
    if limits.lt is not None and number >= limits.lt:
        raise WrongValue(f"must be less than {limits.lt}, not {_quoted(text)}")


def _text(setting: Setting, text: str) -> str:
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise WrongValue("must be text in UTF-8")
    if setting.choices and text not in setting.choices:
        raise WrongValue(f"cannot be {_quoted(text)}; {did_you_mean(text, setting.choices)}")
    return text


def _quoted(text: str) -> str:
    """The text for a message: short, and without a password that was put in the wrong place."""
    if not text:
        return "empty"
    if "://" in text:
        return repr(masked(text))
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return shown if _NUMBER.fullmatch(shown) else repr(shown)
