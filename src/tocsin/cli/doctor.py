"""`tocsin doctor`: find jobs that are not where they belong, and say or do what repairs them."""

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

# --quick looks at no more entries of each key of a partition than this.
SAMPLE = 1000


async def doctor(
    *,
    repair: Annotated[bool, Parameter(negative="", show_default=False, help="Repair what is safe to repair.")] = False,
    quick: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Look only at a sample of the jobs, for a second or two."),
    ] = False,
    queue: Annotated[list[str] | None, Parameter(negative="", help="Only these: a,b; may be repeated.")] = None,
    options: Given,
) -> int:
    """Check that every job of a live system is where it belongs; check servers, workers and sizes."""
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
            print(f"this was a quick look: it covers at most {SAMPLE} entries of each key")
    return 1 if report.wrong else 0


def _print(report: DoctorReport, repair: bool) -> None:
    for node in report.nodes:
        print(f"{cell(node.name)}: {node.product} {node.version}, {size(node.used_bytes)} used")
    print_listing(_sizes(report))
    for finding in report.findings:
        print(_finding_text(finding, repair))
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


def _finding_text(finding: Finding, repair: bool) -> str:
    where = f" in {cell(finding.where)}" if finding.where else ""
    examples = f" ({', '.join(map(cell, finding.examples))}{', …' if finding.count > len(finding.examples) else ''})"
    head = f"{finding.level}: {finding.what}: {finding.count}{where}{examples if finding.examples else ''}"
    if repair and finding.mended:
        head += f"; {finding.mended} mended"
    return f"{head}\n  -> {cell(finding.todo)}" if finding.left else head
