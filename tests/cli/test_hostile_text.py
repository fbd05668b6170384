"""Ids, tenants and arguments that try to steer the operator's terminal: nothing of that reaches it."""

from __future__ import annotations

import json
import os
import re
import select
from typing import Any

import pytest

from tests.support.apps import shop
from tests.support.command_line import Tool
from tocsin import Tocsin
from tocsin.cli.printing import say

# A title for the window, text that is hidden, an 8-bit escape sequence, text that runs backwards, and a forged line.
EVIL = "job\x1b]0;PWNED\x07\x1b[8m\x9b31m\u202egpj.exe\u2066\u2069\u200f\u2028\x7f\r\nnothing is wrong"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def hostile(tocsin: Tool) -> Tool:
    async def put(app: Tocsin) -> None:
        await app.enqueue(shop.slow, EVIL, id=EVIL, tenant=EVIL, delay="1h")

    tocsin.do(put)
    return tocsin


@pytest.mark.parametrize(
    "words", [["jobs", "list"], ["jobs", "show", EVIL], ["why", EVIL], ["queues", "list"], ["jobs", "pause", EVIL]]
)
def test_no_command_repeats_what_a_terminal_obeys(hostile: Tool, words: list[str]) -> None:
    said = hostile.quick(*words)
    assert not OBEYED.search(said)
    assert "\nnothing is wrong" not in said


@pytest.mark.parametrize("words", [["jobs", "list"], ["jobs", "show", EVIL], ["why", EVIL]])
def test_json_is_the_same_value_and_harmless_too(hostile: Tool, words: list[str]) -> None:
    said = hostile.quick("--json", *words)
    assert not OBEYED.search(said)
    assert any(EVIL in text for text in texts(json.loads(said)))


def texts(value: Any) -> list[str]:
    """All that stand anywhere in it."""
    if isinstance(value, (dict, list)):
        return [text for each in (value.values() if isinstance(value, dict) else value) for text in texts(each)]
    return [value] if isinstance(value, str) else []


def test_errors_that_quote_it_are_harmless(hostile: Tool, capsys: pytest.CaptureFixture[str]) -> None:
    said = hostile.quick("jobs", "show", EVIL + "x", code=1)
    assert "PWNED" in said
    assert not OBEYED.search(said)
    # Some quote what a server said, as it is.
    say(f"tocsin: {EVIL}")
    assert not OBEYED.search(capsys.readouterr().err)


def test_a_worker_on_a_terminal_writes_it_out(tocsin: Tool) -> None:
    async def put(app: Tocsin) -> None:
        await app.enqueue(shop.hopeless, id=EVIL)

    tocsin.do(put)
    ours, its = os.openpty()
    tocsin.start("worker", "shop:app", stderr=its, stdout=its)
    os.close(its)
    text = ""
    while "PWNED" not in text:
        assert select.select([ours], [], [], 30)[0], text
        text += os.read(ours, 65536).decode()
    while not text.endswith("\n"):
        text += os.read(ours, 65536).decode()
    os.close(ours)
    # A terminal gets \r\n for each \n.
    text = COLOURS.sub("", text).replace("\r\n", "\n")
    assert not OBEYED.search(text)
    assert not re.search("^nothing is wrong", text, flags=re.MULTILINE)
