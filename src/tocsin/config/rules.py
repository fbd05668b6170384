"""Rules beyond a single type or limit: settings that must fit together, and texts with a syntax of their own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from tocsin.config.values import Value
from tocsin.model.allowed_hosts import entry_of
from tocsin.model.durations import seconds
from tocsin.model.errors import InvalidArgument
from tocsin.model.grants import ANY, Grants
from tocsin.model.http import LONGEST_TIMEOUT_S
from tocsin.model.job import check_keep

_ORPHAN = "redis.scheduler.orphan-cleanup"
_POOL = "redis.connection.pool"
_THROTTLED = "redis.scheduler.failure-backoff.throttled"
_KEYS = "redis.scheduler.keys"

EXCEPTIONAL = "redis.scheduler.zombie-cleanup.exceptional-agents.pattern"
ENABLED = "redis.agent.enabled-pattern"
PROGRAMS = "subprocess.allow"
SECRETS = "secrets.allow"
KEEP = "results.keep"
LONGEST = "http.max-timeout"
_PATTERNS = (ENABLED, "redis.agent.disabled-pattern")
_HOST_LISTS = ("http.allow", "message.allow")
_NAMES = tuple(f"{_KEYS}.{name}" for name in ("waiting-set", "working-set", "cleanup-leader-key"))


class AtLeast(Struct, frozen=True):
    """The rule that `key` must be at least `other` plus `more`."""

    key: str
    other: str
    more: int
    why: str


_AT_LEAST = (
    AtLeast(f"{_ORPHAN}.leadership-ttl-ms", f"{_ORPHAN}.run-budget-ms", 60_000, "a leader must outlast its pass"),
    AtLeast(f"{_THROTTLED}.cap-ms", f"{_THROTTLED}.base-ms", 0, "the first delay would be above the cap"),
    AtLeast(f"{_POOL}.max-total", f"{_POOL}.max-idle", 0, "idle connections count as well"),
    AtLeast(f"{_POOL}.max-idle", f"{_POOL}.min-idle", 0, "idle connections would be closed and opened in turn"),
)


class BrokenRule(Struct, frozen=True):
    """A broken rule. The message points to the first of its keys that does not have its default."""

    keys: tuple[str, ...]
    what: str


def check(values: Mapping[str, Value]) -> Iterator[BrokenRule]:
    """The broken rules. `values` lacks settings with wrong values, so no problem is reported twice."""
    for rule in _AT_LEAST:
        if rule.key in values and rule.other in values:
            yield from _at_least(rule, values)
    for key in _PATTERNS:
        if why := _not_a_regex(str(values.get(key, ""))):
            yield BrokenRule((key,), f"{key} is not a regex: {why}")
    yield from _names(values)
    yield from _hosts(values)
    for key, read in ((KEEP, keep_of), (LONGEST, longest_of)):
        try:
            read(str(values.get(key, "1")))
        except InvalidArgument as error:
            yield BrokenRule((key,), str(error))


def warn(values: Mapping[str, Value]) -> Iterator[BrokenRule]:
    """Values to warn about: they are useless, or they are ignored."""
    if why := _not_a_regex(str(values.get(EXCEPTIONAL, ""))):
        yield BrokenRule((EXCEPTIONAL,), f"{EXCEPTIONAL} is ignored, because it is not a regex: {why}")
    if values.get(ENABLED) == "":
        yield BrokenRule((ENABLED,), f"{ENABLED} is empty and so enables no agent: write .* for all")
    for program in _granted(values, PROGRAMS):
        if not program.startswith(("/", "*")):
            yield BrokenRule((PROGRAMS,), f"{PROGRAMS} has {program!r}, which allows nothing: write whole paths")


def _at_least(rule: AtLeast, values: Mapping[str, Value]) -> Iterator[BrokenRule]:
    value, other = int(str(values[rule.key])), int(str(values[rule.other]))
    if value < other + rule.more:
        more = f" + {rule.more}" if rule.more else ""
        least = f"{rule.other}{more}, which is {other + rule.more}"
        yield BrokenRule((rule.key, rule.other), f"{rule.key} must be at least {least}, not {value}: {rule.why}")


def _names(values: Mapping[str, Value]) -> Iterator[BrokenRule]:
    seen: dict[Value, str] = {}
    for key in _NAMES:
        name = values.get(key)
        if name == "":
            yield BrokenRule((key,), f"{key} must not be empty")
        elif name is not None and (first := seen.setdefault(name, key)) != key:
            yield BrokenRule((key, first), f"{key} must not be the same as {first}")
    if {"{", "}"} & set(str(values.get(f"{_KEYS}.hash-tag", ""))):
        yield BrokenRule((f"{_KEYS}.hash-tag",), f"{_KEYS}.hash-tag is written without braces, like ps")


def _hosts(values: Mapping[str, Value]) -> Iterator[BrokenRule]:
    for key in _HOST_LISTS:
        allowed = values.get(key, ())
        yield from _check_hosts(key, allowed if isinstance(allowed, tuple) else ())
    for name, hosts in _granted(values, SECRETS).items():
        if not hosts:
            yield BrokenRule((SECRETS,), f"{SECRETS} has {name!r} for no host: list its hosts, or '*' for any")
        yield from _check_hosts(SECRETS, [host for host in hosts if host != ANY])


def _check_hosts(key: str, entries: Iterable[str]) -> Iterator[BrokenRule]:
    for entry in entries:
        try:
            entry_of(entry)
        except InvalidArgument as error:
            yield BrokenRule((key,), f"{key}: {error}")


def _granted(values: Mapping[str, Value], key: str) -> Grants:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def keep_of(text: str) -> int:
    """`results.keep` in seconds. It is a number of seconds, or text like 10m."""
    return check_keep(_duration(text), KEEP)


def longest_of(text: str) -> float:
    """`http.max-timeout` in seconds. It is a number of seconds, or text like 10m."""
    longest = seconds(_duration(text), LONGEST)
    if not 0.001 <= longest <= LONGEST_TIMEOUT_S:
        raise InvalidArgument(f"{LONGEST} must be between 1 ms and a day, not {text!r}")
    return longest


def _duration(text: str) -> float | str:
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else text


def _not_a_regex(text: str) -> str:
    """Why the text is not a regex, or '' if it is one."""
    try:
        with warnings.catch_warnings():
            # Ignore warnings about regexes whose meaning may change in a later Python: they are valid today.
            warnings.simplefilter("ignore")
            re.compile(text)
    except re.error as error:
        return str(error)
    except (RecursionError, OverflowError):
        return "it is too large"
    return ""
