"""What Tocsin logs while a test runs, and of this what it says of failures."""

from __future__ import annotations

import pytest

from tests.support.captured_logs import capture_logs


@pytest.fixture
def logs():
    with capture_logs() as lines:
        yield lines


def failures(logs) -> list[dict]:
    return [line for line in logs if line["logger"] == "tocsin.failures"]
