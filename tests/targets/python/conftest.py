"""Workers whose passes a test calls itself, and workers that run their loops on a clock that stands still."""

from __future__ import annotations

from tests.support.worker_fixtures import live_app, make_worker, other_app

__all__ = ["live_app", "make_worker", "other_app"]
