"""How a script is put together, and what libraries may hold, so that a script reads as it runs."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from tests.support.lua_code import Chunk
from tests.support.script_examples import in_each_order
from tocsin.store.scripts.script import ORDERS, Script, assembled, orders_of, script_names

LUA = files("tocsin.store.scripts").joinpath("lua")
LIBRARIES = {path.name[:-4]: path.read_text(encoding="utf-8") for path in LUA.joinpath("lib").iterdir()}
TEXTS = LIBRARIES | {name: LUA.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in script_names()}
HEADER = """-- what: a script
-- KEYS   meta
-- ARGV   items
-- RETURN 1
"""
# The files that know the bytes of what is stored.
OWNERS = re.compile(
    r"record|record_\w+|counts|claim|claim_\w+|score|score_\w+|session_entry|remember|outcome\w*|tenant|tenant_audit|audit|"
    r"extra_run|events|order_due|claim_batch|spot|outbox"
)
BYTES = re.compile(
    r"struct\.(?:un)?pack|\bbyte\(\w+, \d|\bsub\(\w+, \d+(?:, \d+)?\)|"
    r"[*/] 4096|/ 256\b|2251799813685248|281474976710656"
)
# A local that is no function and no constant, but another name for what there is: for hot loops, or by the order.
ALIASES = ("byte, sub", "write_all", "enter_ready")


def source(body: str, order: str = "due") -> str:
    return Script("what", HEADER + body, order).source


def includes_of(text: str) -> list[str]:
    return re.findall(r"^ *--@include (\w+)$", text, re.MULTILINE)


def test_a_library_stands_where_it_is_included():
    code = source("local n = 1\n--@include time\nreturn n\n")
    assert code.index("local n = 1") < code.index("local function read_time()") < code.index("return n")


def test_a_library_is_included_once_after_those_that_it_includes():
    code = source("--@include session\n--@include time\nreturn begin_call()\n")
    assert code.count("local function read_time()") == 1
    assert code.index("function read_time") < code.index("function begin_call")


def test_nothing_is_dropped_and_nothing_changes_its_place():
    body = "local function unused() return 1 end\nlocal function other() return 2 end\nreturn 3\n"
    assert source(body).endswith(body)


def test_a_library_comes_in_the_form_for_the_order_of_the_queue():
    before = "local call, now, writes, apply = {}, 0, {}, items\n--@include record\n"
    forms = {order: source(before + "--@include order\nreturn head()\n", order) for order in ORDERS}
    assert len(set(forms.values())) == 3
    assert "TURNS" in forms["fair"]
    assert "TURNS" not in forms["priority"]


def test_a_library_that_makes_no_difference_by_order_is_the_same_for_all():
    assert len({source("--@include time\nreturn read_time()\n", order) for order in ORDERS}) == 1


def test_a_library_adds_the_keys_that_its_order_needs():
    text = HEADER + "--@include moved_keys\nreturn moved_hashes()\n"
    assert [Script("what", text, order).keys for order in ORDERS] == [
        ["meta"],
        ["meta", "ready0", "ready1", "ready2", "ready3", "ready4"],
        ["meta", "spots"],
    ]


def test_a_library_that_does_not_exist_is_refused():
    with pytest.raises(FileNotFoundError):
        source("--@include nothing_of_that_name\nreturn 1\n")


@pytest.mark.parametrize(("name", "order"), in_each_order(script_names()))
def test_a_script_stays_below_the_200_locals_of_lua(name, order):
    assert Chunk(assembled(name, order)).locals <= 190


@pytest.mark.parametrize("name", sorted(LIBRARIES))
class TestLibrary:
    def test_it_holds_functions_and_constants_only(self, name):
        chunk = Chunk(LIBRARIES[name])
        assert chunk.statements == []
        assert chunk.calls == []
        declared = re.findall(r"^local (?!function )([^=]+) =", LIBRARIES[name], re.MULTILINE)
        assert [names for names in declared if not re.fullmatch(r"[A-Z0-9_, ]+", names) and names not in ALIASES] == []

    def test_its_first_line_says_what_it_is(self, name):
        what = name
        for order in ORDERS:
            what = what.removesuffix(f"_{order}")
        assert re.match(rf"-- ({name}|{what}): \S", LIBRARIES[name])

    def test_some_script_includes_it(self, name):
        included = {each for text in TEXTS.values() for each in includes_of(text)}
        assert {name, *(name.removesuffix(f"_{order}") for order in ORDERS)} & included


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_only_the_owners_of_a_format_count_its_bytes(name):
    code = "\n".join(line for line in TEXTS[name].splitlines() if not line.lstrip().startswith("--"))
    if not OWNERS.fullmatch(name):
        assert BYTES.findall(code) == []


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_line_is_longer_than_the_page(name):
    assert [line for line in TEXTS[name].splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("name", script_names())
def test_a_script_is_for_orders_that_there_are(name):
    assert set(orders_of(name)) <= set(ORDERS)


class TestChunk:
    """The reader of Lua that these tests rely on."""

    def test_it_finds_a_name_that_is_declared_later(self):
        assert Chunk("local function a() return b() end\nlocal function b() end\n").unknown == {"b"}

    def test_it_knows_what_a_block_declares_only_there(self):
        assert Chunk("do\nlocal a = 1\nend\nreturn a\n").unknown == {"a"}

    def test_a_local_is_not_there_in_its_own_value(self):
        assert Chunk("local a = a\nlocal b = {a = 1}\nb.c = b.d\n").unknown == {"a"}

    def test_it_counts_locals_of_open_blocks(self):
        assert Chunk("local a, b\nfor i = 1, 2 do local c end\ndo local d end\n").locals == 7

    def test_it_sees_what_stands_outside_of_functions(self):
        assert Chunk("local a = b()\n").calls == ["b"]
        assert Chunk("if a then return end\n").statements[:2] == ["if", "a"]
