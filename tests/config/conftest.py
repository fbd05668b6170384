"""Properties are checked on machines that are busy with other tests: no example is failed for being slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
