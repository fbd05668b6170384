"""Errors: one tree, and messages that say what to do."""

from __future__ import annotations

import inspect

import pytest

import tocsin
from tocsin import ClaimLost, ConflictingJobs, InvalidConfig, StoreUnavailable, TocsinError, UnknownJob
from tocsin.model import errors
from tocsin.model.errors import did_you_mean


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("dely", "did you mean 'delay'?"),
        ("tenent", "did you mean 'tenant'?"),
        ("delay", "did you mean 'delay'?"),
        ("xyzzy", "there are: delay, queue, tenant"),
        ("", "there are: delay, queue, tenant"),
    ],
)
def test_the_nearest_known_word_is_named_or_else_all_of_them(word, says):
    assert did_you_mean(word, ["tenant", "queue", "delay"]) == says


def test_every_error_is_a_tocsin_error_and_stands_in_the_tree():
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]
    assert len(classes) >= 16
    for cls in classes:
        assert issubclass(cls, TocsinError)
        assert f"{cls.__name__}" in (errors.__doc__ or "")


def test_errors_that_callers_catch_are_exported():
    for name in ("StoreUnavailable", "ClaimLost", "UnknownJob", "InvalidTrigger", "InvalidConfig", "InvalidArgument"):
        assert getattr(tocsin, name) is getattr(errors, name)


def test_errors_fit_where_python_has_a_word_for_them():
    assert issubclass(errors.InvalidArgument, ValueError)
    assert issubclass(errors.ResultTimeout, TimeoutError)
    assert issubclass(InvalidConfig, errors.InvalidArgument)
    assert issubclass(errors.StoreFull, StoreUnavailable)


def test_errors_carry_their_facts():
    assert UnknownJob("a").job_id == "a"
    assert ClaimLost("a@1").run_id == "a@1"
    conflict = ConflictingJobs("a", ["default", "mail"])
    assert (conflict.job_id, conflict.queues) == ("a", ["default", "mail"])
    assert "queue=" in str(conflict)
