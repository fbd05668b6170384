"""The worker: builds the parts from a store, handlers and settings, and runs their loops."""

from tocsin.worker.settings import WorkerSettings
from tocsin.worker.stats import Stats
from tocsin.worker.worker import GRACE_S, Worker

__all__ = ["Worker", "WorkerSettings", "Stats", "GRACE_S"]
