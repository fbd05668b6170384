"""The composition root: takes a store, a catalog and settings, builds the parts, runs the loops."""

from tocsin.worker.settings import WorkerSettings
from tocsin.worker.stats import Stats
from tocsin.worker.worker import GRACE_S, Worker

__all__ = ["Worker", "WorkerSettings", "Stats", "GRACE_S"]
