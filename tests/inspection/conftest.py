"""Processes of one namespace with two queues."""

from __future__ import annotations

from tests.support.audit_bench import bench
from tests.support.two_queues import make_yard

__all__ = ["bench", "make_yard"]
