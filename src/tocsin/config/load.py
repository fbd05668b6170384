"""Loads the configuration: the file, overridden by the environment. Reports all problems at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tocsin.config import rules
from tocsin.config.keys import (
    GROUPS,
    PREFIXES,
    SETTINGS,
    VARIABLES,
    Setting,
    parent,
    short,
    suggestion,
    value_of,
    variable,
)
from tocsin.config.mask import masked
from tocsin.config.origins import DEFAULT, Origin, Problem
from tocsin.config.schema import Config
from tocsin.config.values import RawValue, Value, WrongValue, parse
from tocsin.model.errors import InvalidConfig

FILE_NAME = "tocsin.yaml"
FILE_VARIABLE = "TOCSIN_CONFIG"
# A file with all settings and a page of comments on each is far smaller. With more the parser would take minutes.
LARGEST_BYTES = 256 * 1024
_SECRET = "redis.connection.url"  # noqa: S105  # its name, not its value


class Loaded(msgspec.Struct, frozen=True):
    config: Config
    # By dotted key, for every setting.
    origins: Mapping[str, Origin]
    # One line each.
    warnings: tuple[str, ...]
    # The file that was read, if any.
    path: str | None

    def shown(self) -> Iterator[tuple[str, Value, Origin]]:
        """All settings with their values, without passwords, and their origins."""
        for key, origin in self.origins.items():
            value = value_of(self.config, key)
            yield key, masked(value) if key == _SECRET else value, origin


def load_config(path: str | None = None, env: Mapping[str, str] | None = None) -> Loaded:
    """Read `path`, else $TOCSIN_CONFIG, else tocsin.yaml in the current folder if it exists. Raises InvalidConfig with
    a line per problem."""
    variables = os.environ if env is None else env
    found, text = _read(path, variables)
    collector = _Collector()
    if found is not None:
        collector.add_file(found, text)
    collector.add_environment(variables)
    return collector.result(found)


def merged(config: Config, values: Mapping[str, Value]) -> Loaded:
    """The configuration with some settings changed, by dotted key. Raises InvalidConfig if settings contradict."""
    collector = _Collector({key: value_of(config, key) for key in SETTINGS} | dict(values))
    return collector.result(None)


def _read(path: str | None, env: Mapping[str, str]) -> tuple[str | None, str]:
    wanted = path if path is not None else env.get(FILE_VARIABLE) or None
    try:
        found = FILE_NAME if wanted is None else wanted
        return found, _read_text(found)
    except FileNotFoundError:
        if wanted is None:
            return None, ""
        by = f" (named by ${FILE_VARIABLE})" if path is None else ""
        raise InvalidConfig(str(Problem(Origin(file=wanted), f"there is no such file{by}"))) from None


def _read_text(path: str) -> str:
    """Raises FileNotFoundError if there is no file: the default file may be missing."""
    where = Origin(file=path)
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidConfig(str(Problem(where, f"cannot be read: {reason}"))) from None
    if len(data) > LARGEST_BYTES:
        raise InvalidConfig(str(Problem(where, f"is larger than {LARGEST_BYTES // 1024} KiB: not a configuration")))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = Origin(file=path, line=data.count(b"\n", 0, error.start) + 1)
        raise InvalidConfig(str(Problem(where, "is not UTF-8"))) from None


class _Collector:
    """Collects values, later ones over earlier ones, and the problems with them."""

    def __init__(self, values: dict[str, Value] | None = None) -> None:
        # Lacks the settings whose values are wrong.
        self._values = values or {key: setting.default for key, setting in SETTINGS.items()}
        self._origins = dict.fromkeys(SETTINGS, DEFAULT)
        self._problems: list[Problem] = []
        self._whole = True

    def add_file(self, path: str, text: str) -> None:
        # Imported here because the YAML parser is slow to import, and programs without a file do not need it.
        from tocsin.config.yaml_file import parse_file

        parsed = parse_file(text, path)
        self._whole = parsed.whole
        self._problems += parsed.problems
        for key, given in parsed.found.items():
            if given is None:
                del self._values[key]
            else:
                self._put(SETTINGS[key], given, Origin(file=path, line=given.line))

    def add_environment(self, env: Mapping[str, str]) -> None:
        for name in sorted(name for name in env if name.startswith(PREFIXES)):
            origin = Origin(variable=name)
            key = VARIABLES.get(name)
            if key is None:
                self._problems.append(Problem(origin, _unknown(name)))
            elif key in GROUPS:
                self._problems.append(Problem(origin, f"{key} is a group: set the settings in it, as {name}__…"))
            else:
                self._put(SETTINGS[key], RawValue(env[name], plain=True), origin)

    def _put(self, setting: Setting, given: RawValue, origin: Origin) -> None:
        self._origins[setting.key] = origin
        try:
            self._values[setting.key] = parse(setting, given)
        except WrongValue as error:
            self._values.pop(setting.key, None)
            self._problems.append(Problem(origin, f"{setting.key} {error}"))

    def result(self, path: str | None) -> Loaded:
        # Check the rules only if the whole file could be read: the missing part may resolve a contradiction.
        broken = rules.check(self._values) if self._whole else ()
        problems = [*self._problems, *map(self._problem, broken)]
        if problems:
            problems.sort(key=lambda problem: (problem.origin.variable, problem.origin.line))
            raise InvalidConfig("\n".join(map(str, problems)))
        doubtful = list(rules.warn(self._values))
        if any(rules.EXCEPTIONAL in broken.keys for broken in doubtful):
            self._values[rules.EXCEPTIONAL] = ""
        warnings = tuple(str(self._problem(broken)) for broken in doubtful)
        return Loaded(msgspec.convert(_nested(self._values), Config), self._origins, warnings, path)

    def _problem(self, broken: rules.BrokenRule) -> Problem:
        origins = (self._origins[key] for key in broken.keys)
        return Problem(next((origin for origin in origins if origin != DEFAULT), DEFAULT), broken.what)


def _unknown(name: str) -> str:
    key = known = name.removeprefix("TOCSIN_").lower().replace("__", ".").replace("_", "-")
    if key in VARIABLES.values():
        return f"variables are written in capitals: {variable(key)}"
    # Compare the first unknown part.
    while parent(known) not in GROUPS:
        known = parent(known)
    return f"there is no setting {short(key)!r}; {suggestion(known, variable)}"


def _nested(values: Mapping[str, Value]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for key, value in values.items():
        *groups, name = key.split(".")
        group = root
        for part in groups:
            group = group.setdefault(part, {})
        group[name] = value
    return root
