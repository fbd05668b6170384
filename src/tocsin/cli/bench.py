"""`tocsin bench`: measure speed and cost on an embedded server and print one table."""

from __future__ import annotations

import gc
import tempfile
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from tocsin.app import Tocsin
from tocsin.bench.agents import AgentBench
from tocsin.bench.engine import Bench
from tocsin.bench.handlers import HandlerBench
from tocsin.bench.measure import Measure
from tocsin.bench.operating import OperateBench
from tocsin.bench.orders import LineBench
from tocsin.bench.puts import PutBench
from tocsin.bench.schedules import ScheduleBench
from tocsin.bench.sharing import SharingBench
from tocsin.bench.targets import TargetBench
from tocsin.cli.options import Given, WrongUsage
from tocsin.cli.printing import print_json, say
from tocsin.config import Config
from tocsin.model.errors import did_you_mean
from tocsin.telemetry import log_output

GROUPS: tuple[type[Any], ...] = (
    Bench, PutBench, SharingBench, AgentBench, ScheduleBench, LineBench, TargetBench, HandlerBench, OperateBench,
)  # fmt: skip


async def bench(
    *,
    scale: Annotated[float, Parameter(help="Fraction of the full counts: 0.1 is quick and rough.")] = 1.0,
    only: Annotated[str, Parameter(help="Measure only these rows, like drain,recurring; without it, all rows.")] = "",
    options: Given,
) -> int:
    """Measure speed and cost on an embedded server of its own. Exit code 1 if a number misses its bar."""
    if not 0 < scale <= 1:
        raise WrongUsage(f"--scale must be above 0 and at most 1, not {scale}")
    log_output.set_up("warning")
    rows = chosen(only)
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        # `keeper` keeps the server alive; each row connects to it with an app of its own.
        async with Tocsin(data=folder, config=Config()) as keeper:
            for group, row in rows:
                await keeper.store.client.execute_command("FLUSHALL", "SYNC")
                gc.collect()
                async with Tocsin(data=folder, config=group.CONFIG) as app:
                    for measure in await getattr(group(app, scale), row)():
                        measures.append(measure)
                        say(f"  {measure.what}: {shown(measure.value)} {measure.unit}")
    if options.json:
        print_json([{**msgspec.to_builtins(measure), "good": measure.good} for measure in measures])
    else:
        Console().print(table(measures))
    return 1 if any(measure.good is False for measure in measures) else 0


def chosen(only: str) -> list[tuple[type[Any], str]]:
    """The rows to measure and their groups, in an order in which no row disturbs the next."""
    every = [(group, row) for group in GROUPS for row in group.ROWS]
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    names = [row for _, row in every]
    for name in wanted:
        if name not in names:
            raise WrongUsage(f"there is no row {name!r}: {did_you_mean(name, names)}")
    return [(group, row) for group, row in every if not wanted or row in wanted]


def table(measures: list[Measure]) -> Table:
    rows = Table("measured", "value", "unit", "bar", "", title="tocsin bench")
    rows.columns[1].justify = rows.columns[3].justify = "right"
    for measure in measures:
        bar = "" if measure.bar is None else f"{'≥' if measure.at_least else '≤'} {shown(measure.bar)}"
        mark = {None: "", True: "[green]good[/]", False: "[red]missed[/]"}[measure.good]
        rows.add_row(measure.what, shown(measure.value), measure.unit, bar, mark)
    return rows


def shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
