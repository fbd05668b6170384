"""`tocsin why JOB`: what a job is doing, and why it is not running."""

from __future__ import annotations

import msgspec

from tocsin.cli.options import Given, QueueName, connected
from tocsin.cli.printing import cell, print_json


async def why(job: str, /, *, queue: QueueName = None, options: Given) -> int:
    """Explain what a job is doing, why it is not running, and what to do about it.

    Parameters
    ----------
    job
        The job's id, or the id of one of its runs (ID@MS).
    """
    async with connected(options) as (app, _):
        answer = await app.why(job, queue=queue)
    if options.json:
        print_json(msgspec.to_builtins(answer))
    else:
        print("\n".join(map(cell, answer.lines())), flush=True)
    return 0 if answer.known else 1
