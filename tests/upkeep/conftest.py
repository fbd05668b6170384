"""Processes of one namespace with two queues, and workers whose passes a test calls itself."""

from __future__ import annotations

from tests.support.orphans import after_look, cleaner, line
from tests.support.two_queues import make_yard
from tests.support.worker_fixtures import live_app, make_worker, other_app

__all__ = ["after_look", "cleaner", "line", "live_app", "make_worker", "make_yard", "other_app"]
