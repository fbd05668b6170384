"""`tocsin config`: show which settings apply and where they come from, and check them."""

from __future__ import annotations

from collections.abc import Iterator

from cyclopts import App

from tocsin.cli.options import Given, Options
from tocsin.cli.printing import cell, print_json, say
from tocsin.config import Loaded, load_config
from tocsin.config.values import Value
from tocsin.model.errors import InvalidConfig
from tocsin.store.connection import address

config = App(name="config", help="Show and check the settings.")


@config.command
def show(*, options: Given) -> int:
    """Print every setting, its value and where the value comes from, as YAML."""
    loaded = load_config(options.config)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    if options.json:
        print_json({key: {"value": value, "origin": str(origin)} for key, value, origin in loaded.shown()})
    else:
        print("\n".join(_lines(loaded)))
    return 0


@config.command
def check(*, options: Given) -> int:
    """Print all problems with the settings, one on each line."""
    try:
        loaded = load_config(options.config)
        if url := loaded.config.redis.connection.url:
            _check_address(url, loaded)
    except InvalidConfig as error:
        return _print_wrong(options, str(error).splitlines())
    if options.json:
        print_json({"ok": True, "file": loaded.path, "warnings": loaded.warnings, "problems": []})
        return 0
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    print("nothing is wrong" + (f" with {cell(loaded.path)}" if loaded.path else "; there is no configuration file"))
    return 0


def _check_address(url: str, loaded: Loaded) -> None:
    try:
        address.parse(url)
    except InvalidConfig as error:
        key = "redis.connection.url"
        raise InvalidConfig(f"{loaded.origins[key]}: {key}: {error}") from None


def _print_wrong(options: Options, problems: list[str]) -> int:
    # Problems go to stdout: they are the output of this command.
    if options.json:
        print_json({"ok": False, "problems": problems})
    else:
        print("\n".join(problems))
    return 1


def _lines(loaded: Loaded) -> Iterator[str]:
    above: list[str] = []
    for key, value, origin in loaded.shown():
        *groups, name = key.split(".")
        for depth, group in enumerate(groups):
            if groups[: depth + 1] != above[: depth + 1]:
                yield f"{'  ' * depth}{group}:"
        above = groups
        yield f"{'  ' * len(groups)}{name}: {_scalar(value)}  # {origin}"


def _scalar(value: Value) -> str:
    import yaml  # not at the top: no other command needs it, and importing it takes time

    if isinstance(value, tuple):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(name)}: {_scalar(texts)}" for name, texts in value.items()) + "}"
    style = '"' if isinstance(value, str) else None
    # After a plain scalar, safe_dump writes a second line that ends the document: drop it.
    return yaml.safe_dump(value, default_style=style, width=float("inf"), allow_unicode=True).splitlines()[0]
