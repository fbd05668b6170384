"""`tocsin queues repartition`: what it says, and what it refuses."""

from __future__ import annotations

import pytest

from tests.support.command_line import Tool
from tocsin import Tocsin
from tocsin.model.errors import StoreUnavailable
from tocsin.store.repartition import repartition


async def fill(app: Tocsin) -> None:
    app = Tocsin(**app._connection.arguments({}))
    app.queue("wide", partitions=4)

    @app.job(queue="wide")
    async def work(n: int) -> None: ...

    async with app:
        await app.enqueue_many(work, [(n,) for n in range(50)], delay="1h")


def test_it_says_what_it_did(tocsin: Tool):
    tocsin.do(fill)
    assert tocsin("queues", "repartition", "wide", "7").startswith("queue wide has 7 partitions, not 4: ")
    assert "already: nothing to do" in tocsin.quick("queues", "repartition", "wide", "7")
    [view] = [view for view in tocsin.json("queues", "list") if view["name"] == "wide"]
    assert (view["partitions"], view["moving_to"], view["stages"]["waiting"]) == (7, None, 50)


def test_json_has_the_numbers(tocsin: Tool):
    tocsin.do(fill)
    done = tocsin.json("queues", "repartition", "wide", "1")
    assert done.pop("seconds") >= 0
    assert 0 < done.pop("moved") < 50
    assert done == {"queue": "wide", "before": 4, "after": 1, "resumed": False}


def test_what_was_stopped_half_way_is_shown_and_goes_on(tocsin: Tool, monkeypatch: pytest.MonkeyPatch):
    tocsin.do(fill)

    async def stop(move: repartition.Repartition) -> None:
        raise StoreUnavailable("the server went away")

    with monkeypatch.context() as patch:
        patch.setattr(repartition.Repartition, "_keep_sessions", stop)
        tocsin.quick("queues", "repartition", "wide", "2", code=1)
    assert "being repartitioned to 2: if that command was stopped, run it again" in tocsin.quick("queues", "list")
    assert "run `tocsin queues repartition` again with the same number" in tocsin.quick("doctor")
    assert "is being given 2 partitions: end that first" in tocsin.quick("queues", "repartition", "wide", "5", code=1)
    assert "(continued a repartition that was stopped)" in tocsin.quick("queues", "repartition", "wide", "2")
    assert [view["stages"]["waiting"] for view in tocsin.json("queues", "list")] == [50]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("agents", "4"), 1, "keeps it"),
        (("wiide", "4"), 1, "did you mean 'wide'?"),
        (("wide", "0"), 2, "Must be >= 1"),
        (("wide", "many"), 2, "many"),
        (("wide",), 2, "--partitions requires an argument"),
    ],
)
def test_what_it_refuses(tocsin: Tool, words: tuple[str, ...], code: int, says: str):
    tocsin.do(fill)
    assert says in tocsin.quick("queues", "repartition", *words, code=code)
