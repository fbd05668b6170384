"""`tocsin doctor`: is everything where it belongs? What is not, and what to do about it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from tocsin.cli.options import Given, connected, split_names
from tocsin.cli.printing import Listing, cell, print_json, print_listing, size
from tocsin.cli.progress import progress
from tocsin.inspection.doctor import Doctor, DoctorReport
from tocsin.inspection.findings import Finding
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.audit import AuditReader

# With --quick so many entries of each key of a partition are looked at.
SAMPLE = 1000


async def doctor(
    *,
    repair: Annotated[bool, Parameter(negative="", show_default=False, help="Mend what is provably safe to.")] = False,
    quick: Annotated[
        bool, Parameter(negative="", show_default=False, help="Look at a sample of the jobs only: a second or two.")
    ] = False,
    queue: Annotated[list[str] | None, Parameter(negative="", help="Only these: a,b, or given several times.")] = None,
    options: Given,
) -> int:
    """Check that every job of a live system is where it belongs, and servers, workers and sizes."""
    names = None if queue is None else [name for text in queue for name in split_names(text)]
    async with connected(options) as (app, inspector):
        for name in names or ():
            await inspector.check_queue(name)
        survey, fleet = AuditReader(app.store, SAMPLE if quick else None), Fleet(app.store)
        with progress(options, "looking at jobs") as show:
            report = await Doctor(survey, fleet, queues=names, repair=repair, progress=show).run()
    if options.json:
        print_json({"wrong": report.wrong, "quick": quick, **msgspec.to_builtins(report)})
    else:
        _print(report, repair)
        if quick:
            print(f"this was a quick look: at {SAMPLE} entries of each key at most")
    return 1 if report.wrong else 0


def _print(report: DoctorReport, repair: bool) -> None:
    for node in report.nodes:
        print(f"{cell(node.name)}: {node.product} {node.version}, {size(node.used_bytes)} used")
    print_listing(_sizes(report))
    for finding in report.findings:
        print(_told(finding, repair))
    left = [finding for finding in report.findings if finding.level == "wrong" and finding.left]
    workers = f"{len(report.workers)} worker{'' if len(report.workers) == 1 else 's'}"
    print("something is wrong" if left else f"nothing is wrong: {workers}, {len(report.queues)} queues")


def _sizes(report: DoctorReport) -> Listing:
    counted = ("ready", *STAGE_KEYS, "done")
    columns = ["queue", "#partitions", *(f"#{name}" for name in counted), "#memory"]
    rows = [
        [queue.name, queue.partitions, *(queue.counts[name] for name in counted), size(queue.bytes)]
        for queue in report.queues
    ]
    return Listing(columns, rows, empty="there are no queues")


def _told(finding: Finding, repair: bool) -> str:
    where = f" in {cell(finding.where)}" if finding.where else ""
    examples = f" ({', '.join(map(cell, finding.examples))}{', …' if finding.count > len(finding.examples) else ''})"
    head = f"{finding.level}: {finding.what}: {finding.count}{where}{examples if finding.examples else ''}"
    if repair and finding.mended:
        head += f"; {finding.mended} mended"
    return f"{head}\n  -> {cell(finding.todo)}" if finding.left else head
