"""`tocsin script`: print a Lua script as the server gets it. For developers; the help does not list it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from tocsin.cli.options import WrongUsage
from tocsin.store.scripts.script import assembled, orders_of, script_names


def print_script(
    name: str,
    /,
    *,
    order: Annotated[str | None, Parameter(help="The order of the queue; default: the script's first order.")] = None,
) -> int:
    """Print the script of this name with its libraries in place. Line numbers in errors of Redis count these lines."""
    if name not in script_names():
        raise WrongUsage(f"there is no script {name!r}: choose one of {', '.join(script_names())}")
    orders = orders_of(name)
    if order is not None and order not in orders:
        raise WrongUsage(f"{name} is for queues of order {', '.join(orders)}, not {order!r}")
    print(assembled(name, order or orders[0]), end="")
    return 0
