"""Import the app or the scheduler of agents that MODULE:NAME names; explain what is wrong with a bad name."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from tocsin.app import Tocsin
from tocsin.cli.options import WrongUsage
from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.patterns import AgentScheduler

Hosted = Tocsin | AgentScheduler


def load(target: str) -> Hosted:
    """Raises WrongUsage or InvalidArgument with a message that says what to do."""
    name, colon, attribute = target.partition(":")
    if not colon or not name or not attribute or name.endswith(".py") or "/" in name:
        raise WrongUsage(f"{target!r} is not MODULE:APP: {_suggestion(name, attribute)}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return _hosted_in(_module(name), name, attribute)


def _suggestion(name: str, attribute: str) -> str:
    module = name.removesuffix(".py").strip("./").replace("/", ".") or "module"
    return f"write it like {module}:{attribute or 'app'}"


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidArgument(f"there is no module {name!r} in {Path.cwd()}{_near(name, _modules())}") from None
        raise InvalidArgument(_failed(name, error)) from error
    except Exception as error:
        raise InvalidArgument(_failed(name, error)) from error


def _failed(name: str, error: Exception) -> str:
    """One line that names the place in the user's code that failed."""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
        return f"module {name!r} cannot be imported: {type(error).__name__}: {error.msg}{place}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames[1:] else ""
    return f"module {name!r} cannot be imported: {type(error).__name__}: {error}{place}"


def _hosted_in(module: ModuleType, name: str, attribute: str) -> Hosted:
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Hosted):
        return found
    known = [known for known, value in vars(module).items() if isinstance(value, Hosted)]
    if not known:
        raise InvalidArgument(f"module {name!r} has no Tocsin: write `{attribute} = Tocsin()` in it")
    what = "does not exist" if found is None else f"is a {type(found).__name__}, not a Tocsin or an AgentScheduler"
    raise InvalidArgument(f"{name}:{attribute} {what}{_near(attribute, known)}")


def _modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules([str(Path.cwd())])]


def _near(word: str, known: Iterable[str]) -> str:
    words = list(known)
    return f"; {did_you_mean(word, words[:20])}" if words else ""
