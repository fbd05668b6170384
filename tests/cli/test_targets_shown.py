"""Jobs that are requests, as an operator sees them: no logins, and secrets by where they are."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.command_line import Tool
from tocsin import Http, Message, Secret, Tocsin

HOOK = "https://ada:lovelace@example.org/hook?a=b"


@pytest.fixture(scope="module")
def seen(module_tool: Tool) -> Iterator[Tool]:
    async def fill(app: Tocsin) -> None:
        headers = {"X-Token": Secret.env("TOCSIN_SECRET_TOKEN", "Bearer "), "Cookie": "lovelace=1", "X-Plain": "plain"}
        sign = Secret.file("/run/secrets/hook")
        await app.enqueue(Http.post(HOOK, headers=headers, json={"n": 1}, sign=sign), id="hook", delay="1h")
        await app.enqueue(Http.get("http://ada:lovelace@127.0.0.1:1/"), id="dead")
        await app.enqueue(Message("redis://ada:lovelace@example.org/stream", {"n": 1}), id="message", delay="1h")
        await app.work(until="idle")

    module_tool.do(fill)
    return module_tool


def test_a_job_shows_where_it_goes_and_what_is_sent(seen: Tool) -> None:
    shown = seen.quick("jobs", "show", "hook")
    lines = dict(line.split(":", 1) for line in shown.splitlines())
    told = {name: text.strip() for name, text in lines.items()}
    assert told["target"] == "POST https://***@example.org/hook?a=b"
    assert json.loads(told["headers"]) == {
        "X-Token": "Bearer <env TOCSIN_SECRET_TOKEN>",
        "Cookie": "***",
        "X-Plain": "plain",
        "Content-Type": "application/json",
    }
    assert told["body"] == '{"n":1}'
    assert told["sign"] == "<file /run/secrets/hook>"
    assert "args" not in told


def test_in_json_too(seen: Tool) -> None:
    shown = seen.json("jobs", "show", "hook")
    assert shown["target"] == "POST https://***@example.org/hook?a=b"
    assert (shown["args"], shown["kwargs"]) == ([], {})
    [dead] = seen.json("dead", "list")
    assert dead["target"] == "GET http://***@127.0.0.1:1/"
    assert dead["error"].startswith("DeliveryFailed: GET http://***@127.0.0.1:1/: ")
    assert seen.json("jobs", "show", "message")["target"] == "redis://***@example.org/stream"


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "list"),
        ("jobs", "list", "--json"),
        ("jobs", "show", "hook"),
        ("jobs", "show", "hook", "--json"),
        ("jobs", "show", "dead"),
        ("jobs", "show", "message"),
        ("dead", "list"),
        ("dead", "list", "--json"),
        ("why", "hook"),
        ("why", "dead"),
        ("why", "dead", "--json"),
    ],
    ids=" ".join,
)
def test_no_login_is_shown_anywhere(seen: Tool, words: tuple[str, ...]) -> None:
    shown = seen.quick(*words)
    assert shown
    assert "lovelace" not in shown
