"""Tocsin runs jobs on time, on Redis."""

from tocsin.app import Handle, Tocsin
from tocsin.model.errors import (
    ClaimLost,
    ConflictingJobs,
    InvalidArgument,
    InvalidConfig,
    InvalidTrigger,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    TocsinError,
    UnknownJob,
)
from tocsin.model.job import Job, Retry, Stage
from tocsin.model.run import Run
from tocsin.model.trigger import Cron, Dates, Every, Holidays, Once, Rrule
from tocsin.resilience.failure import FailureClass

__version__ = "0.1.0"

__all__ = [
    "Tocsin",
    "Cron",
    "Every",
    "Once",
    "Rrule",
    "Holidays",
    "Dates",
    "Retry",
    "Run",
    "Job",
    "Stage",
    "FailureClass",
    "Handle",
    "TocsinError",
    "InvalidArgument",
    "InvalidTrigger",
    "InvalidConfig",
    "UnknownJob",
    "ConflictingJobs",
    "ClaimLost",
    "RunCancelled",
    "RunFailed",
    "ResultTimeout",
    "StoreUnavailable",
    "StoreFull",
    "StoreTimeout",
    "StoreRefused",
    "StoreChanged",
]
