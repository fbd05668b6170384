"""How a script is put together: only functions that are called, each where it is needed first."""

from __future__ import annotations

from tocsin.store.scripts.script import Script

HEADER = """-- what: a script
-- KEYS   meta  HASH
-- ARGV   items
-- RETURN 1
"""


def source(body: str) -> str:
    return Script("what", HEADER + body).source


def test_a_function_that_nobody_calls_is_left_out():
    code = source("local function used() return 1 end\nlocal function unused() return used() end\nreturn used()\n")
    assert "used()" in code
    assert "unused" not in code


def test_a_name_in_a_text_is_no_call():
    assert "function finish" not in source("local function finish() return 1 end\nreturn 'finish'\n")


def test_a_function_stands_before_the_first_code_that_needs_it():
    early, late = "local function early() return 1 end\n", "local function late() return early() end\n"
    split = "local function between() return 2 end\n"
    quick, rest = "if items == '' then return early() end\n", "return late() + between()\n"
    code = source(late.replace("early()", "1") + early + quick + split + rest)
    assert code.index("function early") < code.index("return early()") < code.index("function late")
    assert code.index("function between") < code.index("return late()")


def test_what_a_function_calls_stands_before_it():
    called, calling = "local function called() return 1 end\n", "local function calling() return called() end\n"
    code = source(called + calling + "local n = 1\nlocal function other() return n end\nreturn other() + calling()\n")
    assert code.index("function called") < code.index("function calling") < code.index("return other()")


def test_a_function_does_not_move_past_a_second_local_of_a_name_that_it_uses():
    code = source(
        "local n = 1\nlocal function first() return n end\nlocal n = 2\n"
        "local function second() return 1 end\nreturn first() + second()\n"
    )
    assert code.index("function first") < code.index("local n = 2")


def test_nor_past_a_local_with_the_name_of_a_key_or_an_argument():
    code = source("local function first() return #items end\nlocal items = cmsgpack.unpack(items)\nreturn first()\n")
    assert code.index("function first") < code.index("local items = cmsgpack")


def test_a_function_that_another_takes_the_name_of_keeps_its_place():
    code = source(
        "local function apply() return 1 end\nlocal plain = apply\n"
        "local function apply() return plain() + 1 end\nreturn apply()\n"
    )
    assert code.index("function apply() return 1 end") < code.index("local plain") < code.index("return plain() + 1")
