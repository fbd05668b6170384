"""Classifies exceptions by class of failure.

The classifier examines an exception together with its causes, outermost first. For each it calls the user's functions
first, then checks codes, statuses and types. TRANSIENT ("the connection failed") often comes from a wrapper, so it
counts only if no cause is more specific: a refused password behind a connection error is PERMANENT_FORBIDDEN. The
exception that was being handled (`__context__`) is not a cause. It counts only if nothing else gave a class; the words
of the messages come last.

A group gets the class of its most demanding member: PERMANENT_FORBIDDEN before THROTTLED, SERVER_ERROR, TRANSIENT and
UNKNOWN, because the next try would meet that member again.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable

from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.model.failure_class import FailureClass
from tocsin.resilience.evidence import (
    MOST_LINKS,
    explanations,
    facts,
    is_operational,
    members,
    message_says,
    surroundings,
    text_of,
)
from tocsin.telemetry.logs import get_logger

__all__ = ["FailureClass", "Classifier", "ClassifyFunction"]

log = get_logger("tocsin.classify")

ClassifyFunction = Callable[[BaseException], FailureClass | str | None]


class Classifier:
    def __init__(self) -> None:
        self._functions: list[ClassifyFunction] = []
        self._warned: set[int] = set()

    def add(self, function: ClassifyFunction) -> None:
        """Call `function` before all other checks, after functions added earlier. If it returns None, they decide."""
        if not callable(function):
            raise InvalidArgument(f"classify needs a function from an exception to a failure class, not {function!r}")
        if inspect.iscoroutinefunction(function):
            raise InvalidArgument(f"{function!r} cannot be used: a classify function must not be async")
        self._functions.append(function)

    def classify(self, error: BaseException) -> FailureClass:
        return self._judge(error, set()) or FailureClass.UNKNOWN

    def _judge(self, error: BaseException, seen: set[int]) -> FailureClass | None:
        """The class, or None if nothing decides it. `seen` ends cycles and bounds the work."""
        links: list[BaseException] = []
        explaining, surrounding = deque([error]), deque[BaseException]()
        transient = False
        while explaining or (surrounding and not transient):
            link = explaining.popleft() if explaining else surrounding.popleft()
            if id(link) in seen or len(seen) >= MOST_LINKS:
                continue
            seen.add(id(link))
            links.append(link)
            if (answer := self._ask(link)) is not None:
                return answer
            for fact in (*facts(link), *self._worst_member(link, seen)):
                if fact is not FailureClass.TRANSIENT:
                    return fact
                transient = True
            explaining.extend(explanations(link))
            surrounding.extend(surroundings(link))
        if transient:
            return FailureClass.TRANSIENT
        said = next((said for link in links if (said := message_says(link)) is not None), None)
        return FailureClass.TRANSIENT if said is None and any(map(is_operational, links)) else said

    def _worst_member(self, group: BaseException, seen: set[int]) -> Iterable[FailureClass]:
        verdicts = {self._judge(member, seen) for member in members(group)}
        return [verdict for verdict in FailureClass if verdict in verdicts][:1]

    def _ask(self, error: BaseException) -> FailureClass | None:
        for function in self._functions:
            try:
                answer = _understood(function(error))
            except Exception as trouble:
                self._warn_once(function, trouble)
            else:
                if answer is not None:
                    return answer
        return None

    def _warn_once(self, function: ClassifyFunction, trouble: Exception) -> None:
        if id(function) not in self._warned:
            self._warned.add(id(function))
            name = getattr(function, "__qualname__", None) or repr(function)
            error = f"{type(trouble).__name__}: {text_of(trouble)}"
            log.warning("a classify function failed and was ignored", function=name, error=error)


def _understood(answer: FailureClass | str | None) -> FailureClass | None:
    if answer is None or isinstance(answer, FailureClass):
        return answer
    if not isinstance(answer, str):
        raise InvalidArgument(f"a classify function must answer with a FailureClass, its name or None, not {answer!r}")
    try:
        return FailureClass[answer.upper()]
    except KeyError:
        raise InvalidArgument(
            f"there is no failure class {answer!r}; {did_you_mean(answer, FailureClass.__members__)}"
        ) from None
