"""Tocsin runs jobs on time, on Redis."""

import logging
from typing import TYPE_CHECKING

from tocsin.model.delivery import DeliveryFailed
from tocsin.model.errors import (
    ClaimLost,
    ConflictingJobs,
    InvalidArgument,
    InvalidConfig,
    InvalidTrigger,
    RecordUnreadable,
    ResultLost,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    TocsinError,
    TriggerFailed,
    UnknownJob,
    WrongKeyType,
)
from tocsin.model.failure_class import FailureClass
from tocsin.model.follow_up import FollowUp
from tocsin.model.http import Http
from tocsin.model.job import Job, Retry, Stage
from tocsin.model.message import Message
from tocsin.model.run import Run
from tocsin.model.secret import Secret
from tocsin.model.subprocess import Subprocess
from tocsin.model.trigger import Cron, Dates, Every, Holidays, Once, Rrule

if TYPE_CHECKING:
    from tocsin.app import Handle, Tocsin
else:

    def __getattr__(name: str) -> object:
        """Load the app on first use: programs that only receive requests (`tocsin.receive`) do not need it."""
        if name not in ("Handle", "Tocsin"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import tocsin.app

        return getattr(tocsin.app, name)


# A library must not print by itself: without a handler Python would write our warnings to stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"

__all__ = [
    "Tocsin",
    "Cron",
    "Every",
    "Once",
    "Rrule",
    "Holidays",
    "Dates",
    "Http",
    "Message",
    "Subprocess",
    "Secret",
    "Retry",
    "Run",
    "Job",
    "Stage",
    "FailureClass",
    "FollowUp",
    "Handle",
    "TocsinError",
    "InvalidArgument",
    "InvalidTrigger",
    "TriggerFailed",
    "InvalidConfig",
    "UnknownJob",
    "ConflictingJobs",
    "ClaimLost",
    "RunCancelled",
    "ResultLost",
    "RunFailed",
    "DeliveryFailed",
    "ResultTimeout",
    "StoreUnavailable",
    "StoreFull",
    "StoreTimeout",
    "StoreRefused",
    "StoreChanged",
    "WrongKeyType",
    "RecordUnreadable",
]
