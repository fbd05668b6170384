"""`tocsin next`: the coming times of an expression, with what the clock does between them."""

from __future__ import annotations

import json

import pytest

from tocsin.cli.main import run

PARIS = ["--tz", "Europe/Paris"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    assert run(["next", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_times_are_told_as_utc_and_local_with_a_note_where_the_clock_changes(capsys):
    found = printed(capsys, "30 2 * * *", *PARIS, "-n", "3", "--after", "2026-03-28T00:00Z")
    assert found == [
        {"utc": "2026-03-28T01:30:00.000Z", "local": "2026-03-28T02:30:00+01:00", "note": ""},
        {
            "utc": "2026-03-29T01:00:00.000Z",
            "local": "2026-03-29T03:00:00+02:00",
            "note": "the clock goes forward from 02:00 to 03:00 on 2026-03-29",
        },
        {"utc": "2026-03-30T00:30:00.000Z", "local": "2026-03-30T02:30:00+02:00", "note": ""},
    ]


def test_times_that_come_twice_are_told_apart(capsys):
    found = printed(capsys, "30 2 * * *", *PARIS, "--dst", "both", "-n", "3", "--after", "2026-10-24T12:00Z")
    assert [(each["local"], each["note"]) for each in found] == [
        ("2026-10-25T02:30:00+02:00", "the first of two such times"),
        (
            "2026-10-25T02:30:00+01:00",
            "the clock goes back from 03:00 to 02:00 on 2026-10-25; the second of two such times",
        ),
        ("2026-10-26T02:30:00+01:00", ""),
    ]


def test_a_day_that_is_skipped_is_told(capsys):
    [_, found] = printed(capsys, "0 12 * * *", "--tz", "Pacific/Apia", "-n", "2", "--after", "2011-12-29T00:00Z")
    assert found["local"] == "2011-12-31T00:00:00+14:00"
    assert found["note"] == "the clock goes forward from 00:00 to 00:00 on 2011-12-30, and the date to 2011-12-31"


def test_people_get_columns(capsys):
    assert run(["next", "@daily", "--after", "2026-01-01T00:00Z", "-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["local", "UTC"],
        ["Fri", "2026-01-02", "00:00:00+00:00", "2026-01-02", "00:00:00"],
        ["Sat", "2026-01-03", "00:00:00+00:00", "2026-01-03", "00:00:00"],
    ]


def test_it_begins_after_now_and_gives_five_unless_told_otherwise(capsys):
    found = printed(capsys, "*/5 * * * *")
    assert len(found) == 5
    assert found == sorted(found, key=lambda each: each["utc"])
    [past] = printed(capsys, "0 0 1 1 *", "--after", "-1000d", "-n", "1")
    [coming] = printed(capsys, "0 0 1 1 *", "-n", "1")
    assert past["utc"] < coming["utc"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["61 * * * *"], "the minute in '61 * * * *' is wrong"),
        (["0 0 31 2 *"], "never fires"),
        (["@daily", "--tz", "Europe/Pariss"], "did you mean 'Europe/Paris'?"),
        (["@daily", "--dst", "erlier"], "did you mean 'earlier'?"),
        (["@daily", "--after", "tomorrow"], "is not a time"),
        (["@daily", "-n", "0"], ">= 1"),
        ([], "requires an argument"),
    ],
)
def test_wrong_usage_is_told_with_what_to_write(capsys, words, hint):
    assert run(["next", *words]) == 2
    assert hint in capsys.readouterr().err


def test_later_first_moves_on_in_the_gap_and_takes_the_first_of_two(capsys):
    words = ["30 2 * * *", *PARIS, "--dst", "later-first", "-n", "1"]
    [spring] = printed(capsys, *words, "--after", "2026-03-28T12:00Z")
    assert spring["local"] == "2026-03-29T03:30:00+02:00"
    [autumn] = printed(capsys, *words, "--after", "2026-10-24T12:00Z")
    assert (autumn["local"], autumn["note"]) == ("2026-10-25T02:30:00+02:00", "the first of two such times")


def test_steps_that_are_hardly_meant_are_said_beside_the_times(capsys):
    assert run(["next", "*/90 * * * *", "-n", "2"]) == 0
    told = capsys.readouterr()
    assert "'*/90' is the same as 0" in told.err
    assert len(told.out.splitlines()) == 3


def test_an_expression_whose_times_all_fall_into_a_gap_is_told(capsys):
    assert run(["next", "30 2 * 3 7L", *PARIS, "--dst", "skip"]) == 2
    assert "was not found in reasonable time" in capsys.readouterr().err
