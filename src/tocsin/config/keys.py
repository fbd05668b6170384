"""Finds settings by dotted key, from the schema, and suggests a key in place of an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct, structs

from tocsin.config.schema import Config, Group
from tocsin.model.grants import Grants

_SHOWN = 100


class Setting(Struct, frozen=True):
    key: str
    # bool, int, float, str, tuple (a list of texts) or dict (names with a list of texts each).
    kind: type
    default: bool | int | float | str | tuple[str, ...] | Grants
    limits: Meta | None = None
    # The allowed values, if they are a list.
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return variable(self.key)

    @property
    def alone(self) -> tuple[str, ...]:
        """The list for a name that is given without one."""
        extra = self.limits.extra if self.limits is not None else None
        return extra["alone"] if extra else ()


def variable(key: str) -> str:
    """redis.agent.enabled-pattern -> TOCSIN_REDIS__AGENT__ENABLED_PATTERN"""
    return "TOCSIN_" + key.upper().replace(".", "__").replace("-", "_")


def _walk(group: type[Group], above: str) -> Iterator[Setting | str]:
    for field in structs.fields(group):
        key = f"{above}.{field.encode_name}" if above else field.encode_name
        if isinstance(field.default, Group):
            yield key
            yield from _walk(type(field.default), key)
        else:
            # Mappings have a factory, so that configurations do not share one.
            made = field.default if field.default_factory is NODEFAULT else field.default_factory()
            yield _setting(key, field.type, made)


def _setting(key: str, kind: Any, default: Any) -> Setting:
    if get_origin(kind) is Literal:
        return Setting(key, str, default, choices=get_args(kind))
    if get_origin(kind) is Annotated:
        bare, limits = get_args(kind)
        return Setting(key, get_origin(bare) or bare, default, limits)
    return Setting(key, get_origin(kind) or kind, default)


_ALL = list(_walk(Config, ""))
SETTINGS = {setting.key: setting for setting in _ALL if isinstance(setting, Setting)}
# The root is the group "".
GROUPS = {"", *(key for key in _ALL if isinstance(key, str))}
# Variables with these prefixes are for us. Other TOCSIN_ variables have other uses.
PREFIXES = tuple(f"{variable(key)}__" for key in GROUPS if key and "." not in key)
VARIABLES = {variable(key): key for key in (*SETTINGS, *GROUPS) if key}


def short(key: str) -> str:
    """A key shortened for messages: an unknown key may have any length."""
    return key if len(key) <= _SHOWN else key[:_SHOWN] + "…"


def parent(key: str) -> str:
    return key.rpartition(".")[0]


def suggestion(key: str, spelled: Callable[[str], str] = str) -> str:
    """A suggestion, as the end of a message about an unknown key of a known group."""
    above, _, name = key.rpartition(".")
    siblings = {known.rpartition(".")[2]: known for known in VARIABLES.values() if parent(known) == above}
    elsewhere = [known for known in VARIABLES.values() if known.rpartition(".")[2] == name]
    # Compare last parts only: with the common prefixes all keys would look alike.
    close = [siblings[like] for like in difflib.get_close_matches(name.lower(), siblings, n=1)]
    if best := close or elsewhere:
        return f"did you mean {spelled(best[0])!r}?"
    return f"there are: {', '.join(sorted(map(spelled, siblings.values())))}"


def value_of(config: Config, key: str) -> Any:
    found: Any = config
    for name in key.split("."):
        found = getattr(found, name.replace("-", "_"))
    return found
