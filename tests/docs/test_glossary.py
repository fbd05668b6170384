"""The glossary names classes that exist, and every class of the packages at the core."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tocsin"
GLOSSARY = (ROOT / "docs" / "internals" / "glossary.md").read_text()
CORE = ("engine/**/*.py", "worker/**/*.py", "upkeep/**/*.py", "store/*.py", "store/transitions/**/*.py")


def classes(*patterns: str) -> Iterator[ast.ClassDef]:
    for pattern in patterns:
        for path in SOURCE.glob(pattern):
            yield from (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))


def exceptions() -> set[str]:
    """Exceptions of Python's and ours, by their names: a class is one if one of its bases is."""
    bases = {node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases} for node in classes("**/*.py")}
    found = {"BaseException", "Exception", "OSError", "ConnectionError", "ValueError", "TimeoutError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def in_the_table() -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", GLOSSARY.partition("\n## Classes\n")[2], flags=re.MULTILINE)


def test_every_class_that_the_glossary_names_exists() -> None:
    named = set(re.findall(r"`([A-Z]\w*[a-z]\w*)`", GLOSSARY))
    assert len(named) > 50
    assert sorted(named - {node.name for node in classes("**/*.py")}) == []


def test_every_class_of_the_core_is_in_the_glossary_except_exceptions_and_private_ones() -> None:
    core = {node.name for node in classes(*CORE) if not node.name.startswith("_")}
    assert len(core) > 50
    assert sorted(core - exceptions() - set(in_the_table())) == []


def test_each_class_has_one_line_and_the_lines_are_sorted() -> None:
    table = in_the_table()
    assert table == sorted(set(table))


def test_each_word_is_explained_once() -> None:
    words = re.findall(r"^\| ([a-z][a-z -]*) \|", GLOSSARY, flags=re.MULTILINE)
    words = [word for word in words if word not in {"word", "class"}]
    assert len(words) > 50
    assert [word for word in words if words.count(word) > 1] == []
