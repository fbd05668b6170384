"""Ids: what may be one, and what is derived from one for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin import InvalidArgument
from tocsin.model.ids import (
    check_job_id,
    check_member,
    check_queue_name,
    extra_member,
    idempotency_key,
    job_of,
    new_id,
    parse_run_id,
    partition_of,
    renew_process_prefix,
    run_id,
)

GOOD_IDS = [
    "a",
    "with space",
    "{braces}",
    "}{",
    "line\nbreak",
    "tab\t",
    "🔔",
    "é",
    "a@b",
    "a:b",
    "'\"",
    "x" * 512,
    "é" * 256,
]


@pytest.mark.parametrize("job_id", GOOD_IDS)
def test_an_id_is_almost_any_text(job_id):
    assert check_job_id(job_id) == job_id


@pytest.mark.parametrize(
    ("job_id", "why"),
    [
        ("", "1 to 512 bytes, this one has 0"),
        ("x" * 513, "this one has 513"),
        ("é" * 257, "this one has 514"),
        ("a\0b", "NUL"),
        ("a\x1fb", r"\\x1f"),
        ("\ud800", "not valid Unicode"),
        (5, "must be text"),
        (None, "must be text"),
        (b"bytes", "must be text"),
    ],
)
def test_an_id_that_cannot_be_says_why(job_id, why):
    with pytest.raises(InvalidArgument, match=why):
        check_job_id(job_id)


def test_an_extra_run_is_named_by_its_job_and_its_due_time():
    assert check_member("job") == "job"
    assert check_member(extra_member("job", 12)) == "job\x1f12"
    for wrong in ("a\x1fb", "\x1f12", "a\x1f1\x1f2", "a\x1f", 5, None):
        with pytest.raises(InvalidArgument):
            check_member(wrong)


@pytest.mark.parametrize("name", ["", "a b", "a{b}", "é", "x" * 101, "a/b", "a:b", None, 3])
def test_a_queue_name_is_plain(name):
    with pytest.raises(InvalidArgument, match="queue name"):
        check_queue_name(name)


def test_the_id_of_a_run_is_that_of_its_job_and_its_due_time():
    assert run_id("digest", 1234) == "digest@1234"
    assert run_id(extra_member("digest", 1234), 1234) == "digest@1234"
    assert job_of(extra_member("digest", 1234)) == job_of("digest") == "digest"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\x1f"), min_size=1, max_size=40))
def test_a_run_id_can_be_taken_apart_whatever_the_job_is_called(job_id):
    assert parse_run_id(run_id(job_id, 1_900_000_000_000)) == (job_id, 1_900_000_000_000)


@pytest.mark.parametrize("text", ["", "digest", "digest@", "digest@soon", "digest@-1", "@1234"])
def test_what_is_no_run_id_is_refused(text):
    with pytest.raises(InvalidArgument):
        parse_run_id(text)


def test_the_idempotency_key_of_a_run_is_pinned():
    """Receivers have stored these: a change would deliver everything twice."""
    assert idempotency_key("", "default", "welcome-42", 1_893_456_000_000) == "267346e5ffaacfb810c9c0eb9f8e6230"


def test_the_idempotency_key_tells_apart_namespace_queue_job_and_due():
    def key(namespace="n", queue="q", member="j", due=1):
        return idempotency_key(namespace, queue, member, due)

    keys = {key(), key(namespace="m"), key(queue="r"), key(member="k"), key(due=2), key(namespace="", queue="nq")}
    assert len(keys) == 6
    assert key(member=extra_member("j", 1)) == key()


@pytest.mark.parametrize(
    ("job_id", "of_16", "of_7"),
    [("a", 3, 4), ("welcome-42", 6, 1), ("{braces}", 6, 0), ("🔔", 5, 1), ("x" * 512, 13, 1)],
)
def test_the_partition_of_an_id_is_pinned(job_id, of_16, of_7):
    """It decides where a job lives: a change would lose every job there is."""
    assert (partition_of(job_id, 16), partition_of(job_id, 7)) == (of_16, of_7)


@given(st.text(min_size=1, max_size=30).filter(lambda text: "\x1f" not in text and text.isprintable()))
def test_an_extra_run_lives_with_its_job(job_id):
    assert partition_of(extra_member(job_id, 99), 16) == partition_of(job_id, 16)


def test_partitions_get_about_equal_shares():
    counts = [0] * 16
    for n in range(16_000):
        counts[partition_of(f"job-{n}", 16)] += 1
    assert min(counts) > 800
    assert max(counts) < 1200


def test_new_ids_differ_also_from_those_of_a_forked_child():
    ids = [new_id() for _ in range(1000)]
    renew_process_prefix()
    after = [new_id() for _ in range(1000)]
    assert len({*ids, *after}) == 2000
    assert not {each[:10] for each in ids} & {each[:10] for each in after}
    assert all(check_job_id(each) for each in ids)
