"""Templates: text with fields of the run, like {run.due}. All other braces stay as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tocsin.model.errors import InvalidArgument, did_you_mean

# The fields that `{run.…}` may name. `key` is the idempotency key; `due` and `due_ms` are the same moment.
FIELDS = ("id", "job_id", "due", "due_ms", "attempt", "key", "queue", "tenant", "priority")
MARK = "{run."

_FIELD = re.compile(r"\{run\.([^{}]*)\}")


def check_template(text: str, what: str) -> str:
    """Raises InvalidArgument for an unknown field, when the job is put and not when it runs."""
    for name in _FIELD.findall(text):
        if name not in FIELDS:
            raise InvalidArgument(
                f"{what} has the field {{run.{name}}}, and no run has that; {did_you_mean(name, FIELDS)}"
            )
    return text


def fill(text: str, values: Mapping[str, str], written: Callable[[str], str] = str) -> str:
    """The text with its fields filled in. `written` escapes each value for its place."""
    if MARK not in text:
        return text
    return _FIELD.sub(lambda found: written(values[found[1]]), text)
