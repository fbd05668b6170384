"""Which agents are a worker's to run."""

from __future__ import annotations

import pytest

from tocsin import InvalidArgument, InvalidConfig
from tocsin.upkeep.agent_ownership import Ownership, Shard, parse_shard


@pytest.mark.parametrize(
    ("enabled", "disabled", "name", "ours"),
    [
        (".*", "", "anything\nat all", True),
        ("aws-.*", "", "aws-images", True),
        ("aws-.*", "", "my-aws-images", False),
        ("aws", "", "aws-images", False),
        (".*", "aws-.*", "aws-images", False),
        ("aws-.*", "aws-.*", "aws-images", False),
        (".*", "aws", "aws-images", True),
        ("", "", "a", False),
    ],
)
def test_patterns_match_whole_names_and_the_disabled_one_wins(enabled, disabled, name, ours):
    assert Ownership(enabled, disabled)(name) is ours


@pytest.mark.parametrize(
    ("enabled", "disabled", "key"), [("(", "", "enabled-pattern"), (".*", "[", "disabled-pattern")]
)
def test_a_pattern_that_is_no_regular_expression_is_refused(enabled, disabled, key):
    with pytest.raises(InvalidConfig, match=key):
        Ownership(enabled, disabled)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_name_falls_to_exactly_one_shard_and_all_get_some(count):
    shards = [Shard(index, count) for index in range(1, count + 1)]
    names = [f"agent-{n}" for n in range(500)]
    for name in names:
        assert sum(shard(name) for shard in shards) == 1
    for shard in shards:
        assert len([name for name in names if shard(name)]) > 500 / count / 2


def test_a_shard_is_written_as_one_of_how_many():
    assert parse_shard("2/3") == Shard(2, 3)


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1", "a/b", "-1/3", "1/0", "1/3/5", " 1/3"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(InvalidArgument, match="I/N"):
        parse_shard(text)


def test_patterns_and_shard_must_both_agree():
    own = Ownership("a.*", shard=lambda name: name.endswith("1"))
    assert [own(name) for name in ("a1", "a2", "b1")] == [True, False, False]
