"""`tocsin script`: what a developer sees of a Lua script, and who does not see the command."""

from __future__ import annotations

import pytest

from tocsin.cli.main import run
from tocsin.store.scripts.script import script


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["script", *words]) == 0
    return capsys.readouterr().out


def test_a_script_is_printed_as_it_is_sent(capsys):
    assert printed(capsys, "run_finish") == script("run_finish", "due").source
    assert printed(capsys, "run_finish", "--order", "fair") == script("run_finish", "fair").source


def test_a_script_for_some_orders_is_printed_for_the_first_of_them(capsys):
    assert printed(capsys, "run_claim_ordered") == script("run_claim_ordered", "priority").source


def test_a_name_that_does_not_exist_is_wrong_usage_and_the_error_names_those_that_do(capsys):
    assert run(["script", "run_nothing"]) == 2
    assert "run_finish" in capsys.readouterr().err


def test_an_order_that_the_script_is_not_for_is_wrong_usage(capsys):
    assert run(["script", "run_claim", "--order", "fair"]) == 2
    assert "run_claim is for queues of order due" in capsys.readouterr().err


def test_the_help_does_not_show_the_command(capsys):
    run(["--help"])
    assert "script" not in capsys.readouterr().out.lower().split()
