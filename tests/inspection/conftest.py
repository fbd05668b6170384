"""Processes of one namespace with two queues."""

from __future__ import annotations

from tests.support.two_queues_fixture import make_yard

__all__ = ["make_yard"]
