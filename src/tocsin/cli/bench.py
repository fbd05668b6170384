"""`tocsin bench`: this design's own numbers, one table, on an embedded server of its own."""

from __future__ import annotations

import tempfile

import msgspec
from rich.console import Console
from rich.table import Table

from tocsin.app import Tocsin
from tocsin.cli.measures import Bench, Measure


async def bench(scale: float = 1.0, as_json: bool = False) -> bool:
    """Measure, print, and say whether every bar was cleared."""
    measures: list[Measure] = []
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        async with Tocsin(data=folder) as app:
            async for measure in Bench(app, scale).all():
                measures.append(measure)
                if not as_json:
                    console.print(f"  {measure.what}: {shown(measure.value)} {measure.unit}", highlight=False)
    if as_json:
        rows = [{**msgspec.to_builtins(measure), "good": measure.good} for measure in measures]
        print(msgspec.json.encode(rows).decode())
    else:
        Console().print(table(measures))
    return all(measure.good is not False for measure in measures)


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
