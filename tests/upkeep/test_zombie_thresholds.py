"""From when on a run is a zombie."""

from __future__ import annotations

import pytest

from tests.support.captured_logs import capture_logs
from tocsin.upkeep.zombie_thresholds import ZombieThresholds, threshold_for

USUAL, LONG = 30_000, 3_600_000


@pytest.mark.parametrize(
    ("pattern", "member", "threshold"),
    [
        ("", "aws/indexer", USUAL),
        (".*", "aws/indexer", LONG),
        ("aws/.*", "aws/indexer", LONG),
        # The whole of the id.
        ("aws", "aws/indexer", USUAL),
        ("indexer", "aws/indexer", USUAL),
        ("a|aws/indexer", "aws/indexer", LONG),
        ("AWS/.*", "aws/indexer", USUAL),
        ("aws/.*", "aws/two\nlines", LONG),
        # An extra run is a run of its job.
        ("aws/.*r", "aws/indexer\x1f1900000000000", LONG),
        # Not an expression: as if it were not there.
        ("aws/(", "aws/(", USUAL),
        ("*", "aws/indexer", USUAL),
    ],
)
def test_exceptional_jobs_have_a_threshold_of_their_own(pattern, member, threshold):
    assert threshold_for(member, ZombieThresholds.of(USUAL, pattern, LONG)) == threshold


@pytest.mark.parametrize(("pattern", "told"), [("", 0), ("aws/.*", 0), ("aws/(", 1)])
def test_a_pattern_that_cannot_be_read_is_told(pattern, told):
    with capture_logs() as logs:
        ZombieThresholds.of(USUAL, pattern, LONG)
    assert [said["pattern"] for said in logs] == [pattern] * told
