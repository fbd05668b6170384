"""Queues and handlers as programs declare them, and what is refused before anything is connected."""

from __future__ import annotations

import pytest

from tocsin import InvalidArgument, InvalidConfig, Retry, Run, Tocsin
from tocsin.app.job_options import RESERVED
from tocsin.engine.handlers import name_of
from tocsin.testing import run_until_idle


@pytest.fixture
def app() -> Tocsin:
    """Never opened."""
    return Tocsin("redis://nowhere")


def test_a_handler_is_named_by_its_module_and_itself(app):
    @app.job
    async def send():
        pass

    assert send.name == f"{__name__}.test_a_handler_is_named_by_its_module_and_itself.<locals>.send"
    assert app.job(name="mail.send")(lambda: None).name == "mail.send"


def test_a_decorated_function_can_still_be_called(app):
    @app.job()
    def double(x):
        """Twice as much."""
        return 2 * x

    assert double(21) == 42
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    assert "double" in repr(double)


def test_a_function_of_the_main_program_is_named_by_its_file(tmp_path):
    import subprocess
    import sys

    program = tmp_path / "shop.py"
    program.write_text(
        "from tocsin import Tocsin\napp = Tocsin()\n\n@app.job\nasync def sell(): ...\n\nprint(sell.name)\n"
    )
    said = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "shop.sell"
    assert name_of(test_a_function_of_the_main_program_is_named_by_its_file).startswith(f"{__name__}.")


def test_two_functions_with_one_name_are_refused_and_the_same_one_again_is_not(app):
    def one():
        pass

    app.job(name="same")(one)
    app.job(name="same")(one)
    with pytest.raises(InvalidArgument, match="a handler named 'same' already"):
        app.job(name="same")(lambda: None)


@pytest.mark.parametrize("parameter", sorted(RESERVED))
def test_a_parameter_with_the_name_of_an_option_is_refused_at_decoration(app, parameter):
    scope: dict = {}
    exec(f"async def handler(to, {parameter}=None): ...", scope)
    with pytest.raises(InvalidArgument, match=f"parameter '{parameter}', which is an option"):
        app.job(scope["handler"])


def test_every_option_of_the_calls_is_reserved(app):
    import inspect

    options = {
        name
        for call in (Tocsin.enqueue, Tocsin.schedule)
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert options <= RESERVED


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout": 0}, "timeout must be"),
        ({"timeout": "soon"}, "a timeout must be"),
        ({"retry": 3}, "must be a Retry"),
        ({"executor": "proces"}, "did you mean 'process'"),
        ({"executor": "process"}, "make it a plain def"),
        ({"executor": "thread"}, "make it a plain def"),
        ({"batch": 0}, "batch must be"),
        ({"batch": 1001}, "batch must be"),
        ({"batch": True}, "batch must be"),
        ({"queue": "a b"}, "queue name"),
    ],
    ids=str,
)
def test_an_option_of_a_handler_that_cannot_be_is_refused_at_decoration(app, options, why):
    with pytest.raises(InvalidArgument, match=why):

        @app.job(**options)
        async def handler():
            pass


def test_only_functions_are_handlers(app):
    with pytest.raises(InvalidArgument, match="decorates functions"):
        app.job()("text")


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("a b", {}, "queue name"),
        ("", {}, "queue name"),
        ("a{b}", {}, "queue name"),
        ("agents", {}, "choose another name"),
        ("q", {"order": "deu"}, "did you mean 'due'"),
        ("q", {"partitions": 0}, "partitions must be"),
        ("q", {"partitions": 4097}, "partitions must be"),
        ("q", {"partitions": True}, "partitions must be"),
        ("q", {"partitions": "4"}, "partitions must be"),
    ],
    ids=str,
)
def test_a_queue_that_cannot_be_is_refused(app, name, options, why):
    with pytest.raises(InvalidArgument, match=why):
        app.queue(name, **options)


async def test_a_queue_that_is_declared_differently_refuses_to_start(tocsin_app, stranger):
    tocsin_app.queue("mail", partitions=4)
    await run_until_idle(tocsin_app)
    stranger.queue("mail", partitions=8)
    for start in (lambda: run_until_idle(stranger), stranger.work):
        with pytest.raises(InvalidConfig, match="has order 'due' and 4 partitions in Redis"):
            await start()

    @stranger.job(queue="mail")
    async def send():
        pass

    with pytest.raises(InvalidConfig):
        await stranger.enqueue(send)


async def test_a_queue_that_is_declared_the_same_is_shared(tocsin_app, stranger):
    for app in (tocsin_app, stranger):
        app.queue("mail", partitions=4)

        @app.job(queue="mail", name="send")
        async def send():
            pass

    await tocsin_app.enqueue(send)
    assert await run_until_idle(stranger) == 1


async def test_a_queue_that_nobody_declared_is_refused_with_the_nearest(tocsin_app, note):
    tocsin_app.queue("mail")
    with pytest.raises(InvalidArgument, match=r"add app.queue\('mial'\); did you mean 'mail'"):
        await tocsin_app.enqueue(note, queue="mial")
    with pytest.raises(InvalidArgument, match="did you mean 'mail'"):
        await tocsin_app.worker(queues=["mial"])


async def test_bind_passes_arguments_that_clash(tocsin_app):
    seen = []

    @tocsin_app.job(retry=Retry(1, 1))
    async def handler(*args, **kwargs):
        seen.append((args, kwargs))

    await tocsin_app.enqueue(handler.bind(1, delay="not an option", id="neither"), id="j")
    await run_until_idle(tocsin_app)
    assert seen == [((1,), {"delay": "not an option", "id": "neither"})]


async def test_bound_arguments_are_checked_at_once_and_given_once(tocsin_app, note):
    with pytest.raises(InvalidArgument, match="cannot be called"):
        note.bind(1, 2, 3)
    with pytest.raises(InvalidArgument, match="not to both"):
        await tocsin_app.enqueue(note.bind(1), 2)
    with pytest.raises(InvalidArgument, match="not to both"):
        await tocsin_app.enqueue(note.bind(1), fail="x")


async def test_a_run_is_passed_where_the_function_has_the_parameter(tocsin_app):
    seen = []

    @tocsin_app.job
    async def last(a, run: Run):
        seen.append((a, run.job_id))

    @tocsin_app.job
    def in_a_thread(a, *, run: Run):
        seen.append((a, run.job_id))

    @tocsin_app.job
    async def without(a):
        seen.append((a, None))

    for handler in (last, in_a_thread, without):
        await tocsin_app.enqueue(handler, 1, id=handler.__name__)
    await run_until_idle(tocsin_app)
    assert sorted(seen, key=str) == [(1, "in_a_thread"), (1, "last"), (1, None)]


async def test_a_run_may_be_the_first_parameter(tocsin_app):
    seen = []

    @tocsin_app.job
    async def first(run: Run, a):
        seen.append((run.job_id, a))

    await tocsin_app.enqueue(first, "x", id="j")
    await run_until_idle(tocsin_app)
    assert seen == [("j", "x")]
