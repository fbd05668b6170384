"""`tocsin doctor`: is everything where it belongs? What is not, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tocsin.cli.options import Given, Options, connected
from tocsin.cli.show import Listing, cell, print_json, print_listing, size
from tocsin.store.fleet import Fleet
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.survey import Survey
from tocsin.upkeep.audit import Audit, Report
from tocsin.upkeep.findings import Finding


async def doctor(
    *,
    repair: Annotated[bool, Parameter(negative="", show_default=False, help="Mend what is provably safe to.")] = False,
    options: Given,
) -> int:
    """Check that every job of a live system is where it belongs, and servers, workers and sizes."""
    async with connected(options) as (app, _):
        with _progress(options) as progress:
            audit = Audit(Survey(app.store), Fleet(app.store), repair=repair, progress=progress)
            report = await audit.run()
    if options.json:
        print_json({"wrong": report.wrong, **msgspec.to_builtins(report)})
    else:
        _print(report, repair)
    return 1 if report.wrong else 0


@contextmanager
def _progress(options: Options) -> Iterator[Callable[[int, int], None]]:
    if options.json or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (TextColumn("looking at partitions"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(report: Report, repair: bool) -> None:
    for node in report.nodes:
        print(f"{cell(node.name)}: {node.product} {node.version}, {size(node.used_bytes)} used")
    print_listing(_sizes(report))
    for finding in report.findings:
        print(_told(finding, repair))
    left = [finding for finding in report.findings if finding.level == "wrong" and finding.left]
    workers = f"{len(report.workers)} worker{'' if len(report.workers) == 1 else 's'}"
    print("something is wrong" if left else f"nothing is wrong: {workers}, {len(report.queues)} queues")


def _sizes(report: Report) -> Listing:
    counted = ("ready", *STAGE_KEYS, "done")
    columns = ["queue", "#partitions", *(f"#{name}" for name in counted), "#memory"]
    rows = [
        [queue.name, queue.partitions, *(queue.counts[name] for name in counted), size(queue.bytes)]
        for queue in report.queues
    ]
    return Listing(columns, rows, empty="there are no queues")


def _told(finding: Finding, repair: bool) -> str:
    where = f" in {finding.where}" if finding.where else ""
    examples = f" ({', '.join(map(cell, finding.examples))}{', …' if finding.count > len(finding.examples) else ''})"
    head = f"{finding.level}: {finding.what}: {finding.count}{where}{examples if finding.examples else ''}"
    if repair and finding.mended:
        head += f"; {finding.mended} mended"
    return f"{head}\n  -> {finding.todo}" if finding.left else head
