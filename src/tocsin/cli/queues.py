"""`tocsin queues`: list, show, limit, pause, repartition, purge and delete queues."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number

from tocsin.app.bulk_control import Removed
from tocsin.cli.confirm import Yes, confirm
from tocsin.cli.options import Given, Options, QueueArgument, Watch, WrongUsage, connected
from tocsin.cli.printing import Listing, cell, distance, iso, print_json, print_listing, show
from tocsin.cli.progress import progress
from tocsin.cli.purge import preview, purge, purge_jobs
from tocsin.inspection.inspector import Inspector, QueueDetail, QueueView
from tocsin.model.clock import monotonic
from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.model.queue import MOST_PARTITIONS, SETTINGS
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.views.tenants import TenantReader

queues = App(name="queues", help="Look at queues, and change them.")
queues.command(purge)


@queues.command(name="list")
async def list_queues(*, watch: Watch = False, options: Given) -> int:
    """List all queues, how many of their jobs are in each stage, and their limits."""
    async with connected(options) as (_, inspector):
        return await show(options, watch, inspector.queues, queue_listing, list)


def queue_listing(views: list[QueueView]) -> Listing:
    counted = ["due", "ready", *STAGE_KEYS, "done", "succeeded", "failed", "retried", "recovered"]
    columns = ["queue", "state", "order", "#partitions", *(f"#{name}" for name in counted), "bands", "settings"]
    rows = [_row(view, counted) for view in views]
    return Listing(columns, rows, empty="there are no queues yet: start a worker, or enqueue a job")


def _row(view: QueueView, counted: list[str]) -> list[object]:
    numbers = {"due": view.due, "done": view.done, **view.stages, **view.counters}
    bands = ", ".join(f"{name} {count}" for name, count in view.ready.items() if count)
    settings = " ".join(f"{name}={value}" for name, value in view.settings.items())
    return [view.name, _state(view), view.order, view.partitions, *(numbers[name] for name in counted), bands, settings]


def _state(view: QueueView) -> str:
    if view.moving_to == 0:
        return "being deleted: if that command was stopped, run it again"
    if view.moving_to is not None:
        return f"being repartitioned to {view.moving_to}: if that command was stopped, run it again"
    return "paused" if view.paused else "open"


@queues.command(name="show")
async def show_queue(name: QueueArgument, /, *, options: Given) -> int:
    """Show one queue with its settings. A fair queue also shows its tenants, the tenant whose turn is next first."""
    async with connected(options) as (_, inspector):
        await _print(inspector, name, options)
    return 0


@queues.command(name="set")
async def set_queue(
    name: QueueArgument,
    /,
    *settings: Annotated[str, Parameter(help="Like max_active=50, rate=100/s or aging=30s; none removes a limit.")],
    weight: Annotated[list[str] | None, Parameter(negative="", help="TENANT=N; may be repeated.")] = None,
    options: Given,
) -> int:
    """Change limits, and weights of tenants, at once and for all workers; then show the queue."""
    wanted = dict(_pair(text, "max_active=50") for text in settings)
    weights = {tenant: _weight(text) for tenant, text in (_pair(text, "--weight acme=10") for text in weight or ())}
    for setting in wanted:
        if setting not in SETTINGS:
            raise WrongUsage(f"a queue has no setting {setting!r}; {did_you_mean(setting, (*SETTINGS, '--weight'))}")
    if not wanted and not weights:
        raise WrongUsage("say what to set, like max_active=50 or --weight acme=10")
    async with connected(options) as (app, inspector):
        await inspector.check_queue(name)
        try:
            values = {setting: _value(text) for setting, text in wanted.items()}
            await app.queue_update(name, weights=weights or None, **values)
        except InvalidArgument as error:
            raise WrongUsage(str(error)) from None
        await _print(inspector, name, options)
    return 0


@queues.command
async def pause(name: QueueArgument, /, *, options: Given) -> int:
    """Start no more jobs of a queue. Running jobs go on."""
    return await _pause(name, True, options)


@queues.command
async def resume(name: QueueArgument, /, *, options: Given) -> int:
    """Start jobs of a paused queue again."""
    return await _pause(name, False, options)


async def _pause(name: str, paused: bool, options: Options) -> int:
    async with connected(options) as (app, inspector):
        await inspector.check_queue(name)
        changed = await (app.pause_queue(name) if paused else app.resume_queue(name))
    if options.json:
        print_json({"queue": name, "paused": paused, "changed": changed})
    else:
        state = "paused" if paused else "open"
        print(f"queue {cell(name)} is {state}" if changed else f"queue {cell(name)} was {state} already")
    return 0


@queues.command
async def repartition(
    name: str, partitions: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_PARTITIONS))], *, options: Given
) -> int:
    """Give a live queue another number of partitions. If the command is stopped half-way, run it again.

    Until it is done no job of the queue starts: programs and workers wait, and go on by themselves. No job is lost.

    Parameters
    ----------
    name
        The queue.
    partitions
        How many partitions it gets.
    """
    began = monotonic()
    async with connected(options) as (app, _):
        with progress(options, "looking at jobs") as show:
            done = await app.repartition_queue(name, partitions, show)
    took = monotonic() - began
    if options.json:
        print_json(
            {"queue": done.queue, "before": done.before, "after": done.after, "moved": done.moved,
             "resumed": done.resumed, "seconds": round(took, 3)}
        )  # fmt: skip
    elif done.before == done.after:
        print(f"queue {name} has {partitions} partitions already: nothing to do")
    else:
        again = " (continued a repartition that was stopped)" if done.resumed else ""
        print(f"queue {name} has {done.after} partitions, not {done.before}: {done.moved} moved in {took:.1f} s{again}")
    return 0


@queues.command
async def delete(
    name: QueueArgument,
    /,
    *,
    purge: Annotated[bool, Parameter(negative="", show_default=False, help="Remove its jobs first.")] = False,
    force: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Delete even if workers serve it; they create it again."),
    ] = False,
    yes: Yes = False,
    options: Given,
) -> int:
    """Delete a queue, its settings and its history. The queue must be empty unless --purge is given.

    A program that declares the queue and uses it again creates it again.
    """
    async with connected(options) as (app, inspector):
        counts = await preview(inspector, name, yes, options)
        if not confirm(options, yes, f"delete queue {cell(name)}{' and its jobs' if counts and purge else ''}?"):
            return 1
        removed = await purge_jobs(app, name, options) if purge and counts else Removed(0, 0)
        await app.delete_queue(name, force=force)
    if options.json:
        print_json({"queue": name, "deleted": True, "removed": removed.removed})
    else:
        print(f"deleted queue {cell(name)}")
    return 0


def _pair(text: str, example: str) -> tuple[str, str]:
    """Split at the last equals sign: a tenant's name may contain one, a value may not."""
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise WrongUsage(f"{text!r} is not a setting with a value: write it like {example}")
    return name, value


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    return int(text) if text.isdecimal() else text


def _weight(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise WrongUsage(f"a weight is a number, or none to remove it, not {text!r}") from None


async def _print(inspector: Inspector, name: str, options: Options) -> None:
    found, now = await inspector.queue(name), await inspector.now()
    if options.json:
        print_json(as_dict(found))
        return
    for line in _lines(found.queue):
        print(line)
    if found.tenants is not None:
        print_listing(_tenant_listing(found.tenants, now))


def as_dict(found: QueueDetail) -> dict[str, Any]:
    about: dict[str, Any] = msgspec.to_builtins(found.queue)
    if found.tenants is not None:
        shown = [msgspec.to_builtins(tenant) for tenant in found.tenants.shown]
        for tenant in shown:
            tenant["rested"] = iso(tenant.pop("rested_ms"))
        about |= {"tenants": shown, "other_tenants": found.tenants.others}
    return about


def _lines(view: QueueView) -> list[str]:
    facts: dict[str, object] = {
        "queue": view.name,
        "state": _state(view),
        "order": view.order,
        "partitions": view.partitions,
        **view.settings,
        "due": view.due,
        **view.stages,
        **{f"ready {name}": count for name, count in view.ready.items() if count},
        "done": view.done,
    }
    return [f"{name + ':':<19}{cell(value)}" for name, value in facts.items()]


def _tenant_listing(tenants: TenantReader, now: Millis) -> Listing:
    rows = [
        [
            tenant.name or "(none)",
            f"{tenant.weight:g}",
            tenant.active,
            tenant.ready,
            _rest(tenant.resting, tenant.rested_ms, now),
        ]
        for tenant in tenants.shown
    ]
    least = "at least " if tenants.others_at_least else ""
    more = f"and {least}{tenants.others} other tenants" if tenants.others else ""
    return Listing(["tenant", "#weight", "#active", "#ready", "rests"], rows, empty="no tenant has work", more=more)


def _rest(resting: bool, until: Millis | None, now: Millis) -> str:
    if not resting:
        return ""
    return "at its cap" if until is None else f"ahead of its rate, until {distance(until, now)}"
