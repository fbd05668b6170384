"""Handlers that run in processes of their own: the child imports this module."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from tocsin import Run


def double(x):
    return {"double": 2 * x, "pid": os.getpid()}


def about(run: Run):
    return [run.id, run.job_id, run.attempt, run.tenant, run.idempotency_key, run.args]


def fails(message):
    raise LookupError(message)


def exits(how):
    if how == "os._exit":
        os._exit(7)
    if how == "sys.exit":
        sys.exit(3)
    raise KeyboardInterrupt


def hangs(folder):
    Path(folder, f"{os.getpid()}").touch()
    threading.Event().wait()


def returns_an_object():
    return object()


def extends(run: Run):
    run.extend("1m")


def batch(items: list[Run]):
    return [ValueError("odd") if run.args[0] % 2 else run.args[0] * 10 for run in items]


def batch_of_nothing(items: list[Run]):
    return None


def ignores(data):
    return None
