"""`tocsin script`: a Lua script as it is sent to the server, for developers. The help does not show it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from tocsin.cli.options import WrongUsage
from tocsin.store.scripts.script import assembled, orders_of, script_names


def print_script(
    name: str,
    /,
    *,
    order: Annotated[str | None, Parameter(help="The order of the queue; else the first it is for.")] = None,
) -> int:
    """Print a script with its libraries in place, by the name of its file. Redis counts these lines in its errors."""
    if name not in script_names():
        raise WrongUsage(f"there is no script {name!r}: these are {', '.join(script_names())}")
    orders = orders_of(name)
    if order is not None and order not in orders:
        raise WrongUsage(f"{name} is for queues of order {', '.join(orders)}, not {order!r}")
    print(assembled(name, order or orders[0]), end="")
    return 0
