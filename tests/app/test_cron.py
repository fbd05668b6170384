"""Schedules of every kind: put, run, changed, paused, filled up, looked at."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.support.captured_logs import capture_logs
from tocsin import Cron, Dates, Every, InvalidTrigger, Once, Retry, Rrule, Tocsin
from tocsin.testing import run_until_idle
from tocsin.triggers.recurrence import phase

PARIS = ZoneInfo("Europe/Paris")
MORNING = Cron("0 9 * * *", tz="Europe/Paris")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=PARIS)


@pytest.fixture(autouse=True)
def _spring(tocsin_clock):
    """Two days before the clock goes forward in Paris."""
    tocsin_clock.move_to(at("2026-03-27 12:00"))


async def dues(app: Tocsin, job_id: str = "j", n: int = 4) -> list[str]:
    return [f"{due:%m-%d %H:%M%z}" for due in await app.next_runs(job_id, n)]


async def test_a_cron_schedule_runs_by_the_clock_on_the_wall(tocsin_app, tocsin_clock, note, runs):
    await tocsin_app.schedule(note, MORNING, id="j")
    assert await dues(tocsin_app) == ["03-28 09:00+0100", "03-29 09:00+0200", "03-30 09:00+0200", "03-31 09:00+0200"]
    for day in (28, 29, 30):
        tocsin_clock.move_to(at(f"2026-03-{day} 08:59:59.999"))
        await run_until_idle(tocsin_app)
        tocsin_clock.move_to(at(f"2026-03-{day} 09:00"))
        await run_until_idle(tocsin_app)
    assert [run.due.astimezone(PARIS) for run in runs] == [at(f"2026-03-{day} 09:00") for day in (28, 29, 30)]


@pytest.mark.parametrize(
    "trigger",
    [
        MORNING | Cron("0 17 * * *", tz="Europe/Paris"),
        MORNING - Dates(["2026-03-29"]),
        Rrule("FREQ=DAILY;COUNT=3", start=at("2026-03-28 08:00"), tz="Europe/Paris"),
        Every("6h", anchor=at("2026-01-01 00:10")),
        Once(at("2026-03-28 10:00")) | Once(at("2026-03-30 10:00")),
    ],
    ids=["union", "except", "rrule", "anchored", "moments"],
)
async def test_each_kind_runs_when_it_says_it_will(tocsin_app, tocsin_clock, note, runs, trigger):
    await tocsin_app.schedule(note, trigger, id="j")
    coming = await tocsin_app.next_runs("j", 3)
    for due in coming:
        tocsin_clock.move_to(due - timedelta(milliseconds=1))
        await run_until_idle(tocsin_app)
        tocsin_clock.move_to(due)
        await run_until_idle(tocsin_app)
    assert [run.due for run in runs] == coming
    ended = isinstance(trigger, Rrule) or len(coming) < 3
    assert (await tocsin_app.get("j") is None) == ended


async def test_jitter_starts_and_ends_hold_for_cron_too(tocsin_app, note):
    shift = timedelta(milliseconds=phase("j", 3600))
    await tocsin_app.schedule(
        note, MORNING, id="j", jitter="1h", starts=at("2026-04-02 00:00"), ends=at("2026-04-04 09:00") + shift
    )
    assert await tocsin_app.next_runs("j", 9) == [at(f"2026-04-0{day} 09:00") + shift for day in (2, 3, 4)]
    with pytest.raises(InvalidTrigger, match="would never run"):
        await tocsin_app.schedule(note, MORNING, id="k", ends=at("2026-03-28 08:00"))


async def test_declaring_a_schedule_again_keeps_its_due_time_and_a_changed_trigger_counts_from_now(
    tocsin_app, tocsin_clock, note, ran
):
    await tocsin_app.schedule(note, MORNING, "old", id="j")
    tocsin_clock.move_to(at("2026-03-28 09:30"))
    # Its run is due: the same trigger leaves it so, whatever else is changed.
    assert not (await tocsin_app.schedule(note, MORNING, "new", id="j")).new
    assert await dues(tocsin_app, n=1) == ["03-28 09:00+0100"]
    await run_until_idle(tocsin_app)
    assert ran == ["new"]
    assert await tocsin_app.update("j", trigger=Cron("30 9 * * *", tz="Europe/Paris"))
    await run_until_idle(tocsin_app)
    assert ran == ["new"], "nothing runs because it was edited, also at the very moment of a tick"
    assert await dues(tocsin_app, n=2) == ["03-29 09:30+0200", "03-30 09:30+0200"]
    assert await tocsin_app.update("j", retry=Retry(1, 1), criticality=3)
    assert await dues(tocsin_app, n=1) == ["03-29 09:30+0200"]
    assert await tocsin_app.update("j", trigger=Every("1h"))
    assert [due.astimezone(PARIS) for due in await tocsin_app.next_runs("j", 1)] == [at("2026-03-28 10:30")]
    with pytest.raises(InvalidTrigger, match="is recurring: remove it"):
        await tocsin_app.update("j", trigger=Once(at("2027-01-01 00:00")))


async def test_a_pause_over_some_ticks_resumes_at_the_next_one(tocsin_app, tocsin_clock, note, ran):
    await tocsin_app.schedule(note, MORNING, id="j", jitter="1h")
    [first, _, third] = await tocsin_app.next_runs("j", 3)
    await tocsin_app.pause("j")
    tocsin_clock.move_to(third - timedelta(hours=1))
    assert await tocsin_app.resume("j")
    await run_until_idle(tocsin_app)
    assert (ran, await tocsin_app.next_runs("j", 1)) == ([], [third])
    assert first < third


async def test_missed_occurrences_of_a_cron_can_be_run(tocsin_app, tocsin_clock, note, runs):
    await tocsin_app.schedule(note, MORNING, id="j")
    tocsin_clock.move_to(at("2026-03-30 12:00"))
    await run_until_idle(tocsin_app)
    assert await tocsin_app.backfill("j", at("2026-03-25 00:00"), at("2026-03-30 00:00")) == 5
    await run_until_idle(tocsin_app)
    days = sorted(f"{run.due.astimezone(PARIS):%d %H:%M}" for run in runs)
    assert days == ["25 09:00", "26 09:00", "27 09:00", "28 09:00", "28 09:00", "29 09:00"]


async def test_schedules_in_bulk_are_due_as_those_put_one_by_one(tocsin_app, note):
    triggers = [Cron(f"{n % 7} */3 * * *", tz="Europe/Paris") for n in range(40)] + [Every("1h"), MORNING | Every("2h")]
    rows = [(f"j{n}", trigger, (n,)) for n, trigger in enumerate(triggers)]
    assert await tocsin_app.schedule_many(note, rows, jitter="2h", ends=at("2027-01-01 00:00")) == len(rows)
    bulk = [await tocsin_app.next_runs(name, 2) for name, _, _ in rows]
    for name, trigger, args in rows:
        await tocsin_app.schedule(
            note, trigger, *args, id=name, jitter="2h", ends=at("2027-01-01 00:00"), if_exists="replace"
        )
    assert [await tocsin_app.next_runs(name, 2) for name, _, _ in rows] == bulk


async def test_an_unknown_thing_is_no_trigger(tocsin_app, note):
    for wrong in ("0 9 * * *", None, Dates(["2026-01-01"])):
        with pytest.raises(InvalidTrigger, match="a trigger is Every"):
            await tocsin_app.schedule(note, wrong, id="j")
        with pytest.raises(InvalidTrigger, match="a trigger is Every"):
            await tocsin_app.schedule_many(note, [("j", wrong, ())])


# Retries that outlast the interval: 3 times, 200 ms, 500 ms take 2 900 ms at worst

TRIES = Retry(3, "200ms", "500ms")


@pytest.mark.parametrize(("interval", "told"), [("2899ms", 1), ("2900ms", 0)])
async def test_retries_that_may_outlast_the_interval_are_told(tocsin_app, note, interval, told):
    with capture_logs() as logs:
        await tocsin_app.schedule(note, Every(interval), id="j", retry=TRIES)
        await tocsin_app.schedule_many(note, [(f"k{n}", Every(interval), ()) for n in range(9)], retry=TRIES)
    assert [(line["retries_ms"], line["apart_ms"]) for line in logs] == [(2900, 2899)] * 2 * told


async def test_retries_that_may_outlast_the_interval_are_refused_where_the_configuration_says_so(
    tocsin_server, tocsin_clock, tmp_path
):
    path = tmp_path / "tocsin.yaml"
    path.write_text("schedules:\n  retry-exceeds-interval: error\n")
    async with Tocsin(tocsin_server.url, prefix="strict:", clock=tocsin_clock, config=str(path)) as app:

        @app.job(name="note")
        async def note() -> None: ...

        often = Cron("* * * * * *")
        with pytest.raises(InvalidTrigger, match="take up to 2900 ms, and its runs can be 1000 ms apart"):
            await app.schedule(note, often, id="j", retry=TRIES)
        with pytest.raises(InvalidTrigger, match="2900 ms"):
            await app.schedule_many(note, [("j", often, ())], retry=TRIES)
        await app.schedule(note, MORNING, id="j", retry=TRIES)
        with pytest.raises(InvalidTrigger, match="2900 ms"):
            await app.update("j", trigger=often)
        assert (await app.get("j")).trigger == MORNING


async def test_steps_beyond_a_field_are_warned_of_once(tocsin_app, note):
    with capture_logs("tocsin.schedules") as lines:
        await tocsin_app.schedule(note, Cron("*/90 * * * *") - Dates(["2026-12-24"]), id="odd")
        await tocsin_app.schedule_many(note, [(f"m{n}", Cron("0 */25 * * *"), ()) for n in range(3)])
        await tocsin_app.schedule(note, Cron("*/60 * * * *"), id="even")
        await tocsin_app.update("even", trigger=Cron("*/61 * * * *"))
    assert [(line["log_level"], line["job"]) for line in lines] == [
        ("warning", "odd"),
        ("warning", "m0"),
        ("warning", "even"),
    ]
    assert "use Every('90m')" in lines[0]["odd"]
