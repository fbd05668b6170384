"""What is allowed by name: a list of names, names with a list each, or text in a variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.config_files import nested, problems, write
from tocsin.config import load_config
from tocsin.config.keys import SETTINGS, value_of

SECRETS, PROGRAMS = "secrets.allow", "subprocess.allow"


@pytest.mark.parametrize(
    ("key", "text", "found"),
    [
        (SECRETS, "[A, /b]", {"A": ("*",), "/b": ("*",)}),
        (SECRETS, "{A: [a.example, 10.0.0.0/8], /b: '*', C: c.example}", {
            "A": ("a.example", "10.0.0.0/8"), "/b": ("*",), "C": ("c.example",),
        }),
        (SECRETS, "A", {"A": ("*",)}),
        (SECRETS, "{}", {}),
        (SECRETS, "[]", {}),
        (PROGRAMS, "[/bin/a, /bin/b=c]", {"/bin/a": (), "/bin/b=c": ()}),
        (PROGRAMS, "{/bin/a: [A, B_*], /bin/b: []}", {"/bin/a": ("A", "B_*"), "/bin/b": ()}),
    ],
)  # fmt: skip
def test_a_file_has_a_list_or_a_mapping(key: str, text: str, found: object, tmp_path: Path) -> None:
    assert value_of(load_config(write(tmp_path, nested(key, text)), {}).config, key) == found


@pytest.mark.parametrize(
    ("key", "text", "found"),
    [
        (SECRETS, "A, B=b.example,B=c.example", {"A": ("*",), "B": ("b.example", "c.example")}),
        (PROGRAMS, "/bin/a,/bin/b=B,/bin/b=C", {"/bin/a": (), "/bin/b": ("B", "C")}),
        (PROGRAMS, "", {}),
    ],
)
def test_a_variable_has_names_and_what_each_is_for(key: str, text: str, found: object) -> None:
    assert value_of(load_config(env={SETTINGS[key].variable: text}).config, key) == found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{A: []}", "secrets.allow has 'A' for no host: list its hosts, or '*' for any"),
        ("{A: [https://a.example]}", "secrets.allow: 'https://a.example' is neither a network nor a host"),
        ("{A: }", "secrets.allow: 'A' needs a list, and here is nothing"),
        ("{A: {b: c}}", "secrets.allow: 'A' needs a list, and here is a mapping"),
        ("{A: [c, [b]]}", "and here is a list"),
        ("{A: [b], A: [c]}", "secrets.allow: 'A' stands here a second time"),
        ("{[A]: [b]}", "secrets.allow: a key must be a name"),
        ("{!!str A: [b]}", "secrets.allow: tags like"),
        ("{A: !!seq [b]}", "secrets.allow: tags like"),
    ],
)
def test_what_is_neither_is_told_with_its_line(text: str, told: str, tmp_path: Path) -> None:
    path = write(tmp_path, nested(SECRETS, text))
    [problem] = problems(path)
    assert problem.startswith(f"{path}:2: ")
    assert told in problem
