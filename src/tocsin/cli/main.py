"""The command line: all commands, the options that they share, and how errors become messages and exit codes."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import sys
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter, UnknownOptionError

from tocsin import __version__
from tocsin.cli.bench import bench
from tocsin.cli.config import config as config_commands
from tocsin.cli.dead import dead
from tocsin.cli.demo.demo import demo
from tocsin.cli.doctor import doctor
from tocsin.cli.jobs import jobs
from tocsin.cli.next import next_ticks
from tocsin.cli.options import Options, WrongUsage
from tocsin.cli.printing import say, silence_stdout
from tocsin.cli.purge import purge
from tocsin.cli.queues import queues
from tocsin.cli.script import print_script
from tocsin.cli.why import why
from tocsin.cli.worker import worker
from tocsin.cli.workers import list_workers
from tocsin.model.errors import InvalidArgument, TocsinError
from tocsin.telemetry import log_output

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

app = App(name="tocsin", help="Runs jobs on time, on Redis.", version=__version__, help_format="plaintext")
app.meta.group_parameters = Group("Options of every command", sort_key=10)
app.command(demo)
app.command(worker)
app.command(queues)
app.command(purge)
app.command(jobs)
app.command(list_workers, name="workers")
app.command(why)
app.command(dead)
app.command(next_ticks, name="next")
app.command(doctor)
app.command(config_commands)
app.command(bench)
app.command(print_script, name="script", show=False)


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    url: str | None = None,
    config: str | None = None,
    prefix: str | None = None,
    hash_tag: str | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    log_level: str = "info",
) -> int:
    """Parse the command, pass it the shared options, run it.

    Parameters
    ----------
    url
        The server's address; default: $TOCSIN_URL, else an embedded server.
    config
        The YAML file with the settings; default: $TOCSIN_CONFIG, else tocsin.yaml here, if it exists.
    prefix
        The namespace: all keys begin with it.
    hash_tag
        The hash tag of the keys, for agents on a Redis Cluster.
    json
        Print JSON.
    log_level
        debug, info, warning or error.
    """
    try:
        options = Options(url, prefix, hash_tag, json, log_output.check_level(log_level), config)
    except InvalidArgument as error:
        raise WrongUsage(str(error)) from None
    command, bound, unparsed = app.parse_args(tokens, exit_on_error=False, print_error=False)
    log_output.set_up(options.log_level)
    result = command(*bound.args, **bound.kwargs, **dict.fromkeys(unparsed, options))
    return (asyncio.run(result) if inspect.iscoroutine(result) else result) or DONE


def run(argv: list[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        code = app.meta(argv, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return code or DONE
    except (CycloptsError, WrongUsage) as error:
        say(f"tocsin: {_explained(error)}\nTry `tocsin --help`.")
        return USAGE
    except TocsinError as error:
        say(f"tocsin: {error}")
        return FAILED
    except BrokenPipeError:
        silence_stdout()
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED


def _explained(error: Exception) -> str:
    text = str(error)
    if isinstance(error, UnknownOptionError) and "Did you mean" not in text:
        # The parser of a command knows only its own options, so look among the shared ones too.
        word = error.token.keyword or error.token.value
        names = [name for argument in app.meta.assemble_argument_collection() for name in argument.names]
        close = difflib.get_close_matches(word, names, n=1)
        return f"{text} Did you mean {close[0]}?" if close else text
    return text
