"""What the other side repeats of a secret is not written down, in whatever form it comes back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.kafka_login import KafkaGate
from tests.support.raw_server import RawServer, saying
from tests.support.subprocess_programs import make
from tests.support.whole_namespace import everything
from tocsin import Http, Message, Run, Secret, Subprocess, Tocsin
from tocsin.model.delivery import DeliveryFailed
from tocsin.targets.secret_masking import SecretMask
from tocsin.testing import run_until_idle

SESAME = 'open/sesame "4711" é+ü'
PLAIN = "open-sesame-4711-abcdef"
TOKEN = Secret.env("TOCSIN_SECRET_TOKEN")

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in capitals": str.upper,
    "in a URL": lambda secret: quote(secret, safe=""),
    "in a path": quote,
    "in a form": quote_plus,
    "in small letters of a URL": lambda secret: quote(secret, safe="").lower(),
    "in JSON": lambda secret: json.dumps({"a": secret}),
    "in JSON as it is": lambda secret: json.dumps({"a": secret}, ensure_ascii=False),
    "in JSON of PHP": lambda secret: json.dumps(secret).replace("/", "\\/"),
    "in HTML": html.escape,
    "in Python": repr,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_in_each_form(form: str) -> None:
    said = FORMS[form](SESAME)
    masked = SecretMask([SESAME]).text(f"you sent {said}, and no more")
    assert said.strip("\"'{}") not in masked
    assert "***" in masked
    assert "sesame" not in masked.lower()
    assert masked.startswith("you sent ")
    assert masked.endswith(", and no more")


@pytest.mark.parametrize("before", ["", "a", "ab", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_is_found_in_base64_whatever_stands_around_it(before: str, encode: Callable[[bytes], bytes]) -> None:
    mask = SecretMask([PLAIN])
    for after in ("", "x", "xy"):
        said = encode(f"{before}{PLAIN}{after}".encode()).decode()
        left = mask.text(said).replace("***", "")
        # No more than the characters that it shares with what stands around it.
        assert len(left) <= len(said) - len(PLAIN) * 4 // 3 + 2


def test_what_is_no_secret_stays_as_it_is() -> None:
    mask = SecretMask([PLAIN])
    for said in ("open-sesame", "4711", "", "é\udcff"):
        assert mask.text(said) == said
    assert SecretMask(["", "ab"]).text("abc") == "***c"
    assert SecretMask([]).text(PLAIN) == PLAIN
    assert SecretMask(["half \udcff a character"]).data(b"\xfe half \xff a character") == b"\xfe ***"


def test_a_line_of_a_long_secret_is_one_too() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nshort\n-----END KEY-----"
    assert SecretMask([pem]).text("bad: MIIEvQIBADANBgkqhkiG9w0BAQEFAASC") == "bad: ***"


def test_where_something_was_cut_off_a_part_of_a_secret_is_hidden_too() -> None:
    mask = SecretMask([PLAIN])
    for length in range(1, len(PLAIN)):
        assert mask.beginning(b"it is " + PLAIN[:length].encode()) == b"it is ***"
        assert mask.end(PLAIN[length:].encode() + b" it was") == b"*** it was"


# Whole deliveries


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before `tocsin_app` reads it."""
    monkeypatch.setenv("TOCSIN_SECRET_TOKEN", PLAIN)
    monkeypatch.setenv("TOCSIN_SUBPROCESS__ALLOW", f"{tmp_path}/*=TOKEN")


class Told:
    """What anybody could read of a failure."""

    def __init__(self, app: Tocsin) -> None:
        self._app = app
        self.errors: list[BaseException] = []

        @app.on_failure
        def note(run: Run, error: BaseException, follows: object) -> None:
            self.errors.append(error)

    async def all(self, logged: object) -> str:
        kept = [data async for data in everything(self._app)]
        chain: list[str] = []
        for error in self.errors:
            link: BaseException | None = error
            while link is not None and len(chain) < 100:
                chain.append(repr(link) + str(link))
                link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        return f"{kept}{logged}{chain}"


async def failed(app: Tocsin, *targets: Http | Message | Subprocess) -> str:
    told = Told(app)
    with capture_logs() as logged:
        for number, target in enumerate(targets):
            await app.enqueue(target, id=f"job-{number}")
        await run_until_idle(app)
    dead = [job async for job in app.dead()]
    assert len(dead) == len(targets)
    return await told.all(logged)


@pytest.mark.parametrize(
    "said",
    [
        f"HTTP/1.1 302 X\r\nlocation: /login?back={PLAIN}\r\ncontent-length: 0\r\n\r\n",
        # Cut in two by what fits into an error.
        f"HTTP/1.1 302 X\r\nlocation: /{'x' * 185}{PLAIN}\r\ncontent-length: 0\r\n\r\n",
        f"HTTP/1.1 denied {PLAIN}\r\n\r\n",
        f"HTTP/1.1 {'x' * 170} {PLAIN}\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nbad {PLAIN}\r\n\r\n",
        f"HTTP/1.1 500 X\r\ncontent-length: {len(quote(PLAIN)) + 240}\r\n\r\n{'x' * 240}{quote(PLAIN)}",
        f"HTTP/1.1 500 X\r\ncontent-length: 32\r\n\r\n{base64.b64encode(PLAIN.encode()).decode()}",
        f"{PLAIN}\r\n\r\n",
    ],
    ids=["location", "cut location", "status", "cut status", "header", "cut body", "base64", "no HTTP"],
)
async def test_a_receiver_that_repeats_a_secret(tocsin_app: Tocsin, said: str) -> None:
    async with RawServer(saying(said.encode(), close=True)) as server:
        told = await failed(tocsin_app, Http.get(server.url, headers={"Authorization": TOKEN}))
    for length in range(6, len(PLAIN) + 1):
        assert PLAIN[:length] not in told
    assert base64.b64encode(PLAIN.encode()).decode()[:12] not in told


@pytest.mark.parametrize(
    "said",
    [
        "HTTP/1.1 20",
        "HTTP/1.1 200 OK\r\nbad\0",
        "HTTP/1.1 200 OK\r\ncontent-length: 2",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        "",
    ],
    ids=["status", "header", "length", "chunk", "no HTTP"],
)
async def test_an_answer_that_comes_in_pieces_of_which_one_ends_in_the_middle_of_a_secret(
    tocsin_app: Tocsin, said: str
) -> None:
    async with RawServer(saying(f"{said}{PLAIN[:9]}".encode(), close=True)) as server:
        told = await failed(tocsin_app, Http.get(server.url, headers={"Authorization": TOKEN}))
    assert PLAIN[:9] not in told


async def test_an_answer_that_is_not_http_is_quoted_where_nothing_is_secret(tocsin_app: Tocsin) -> None:
    async with RawServer(saying(b"HTTP/1.1 20x\r\n\r\n", close=True)) as server:
        assert "b'HTTP/1.1 20x'" in str(await failed(tocsin_app, Http.get(server.url)))


async def test_a_status_line_that_is_cut_in_the_middle_of_a_secret(tocsin_app: Tocsin) -> None:
    """Where an error ends, which has room for 200 characters of it."""
    async with contextlib.AsyncExitStack() as stack:
        lines = [f"HTTP/1.1 {'x' * length} {PLAIN}\r\n\r\n" for length in range(120, 210, 6)]
        servers = [await stack.enter_async_context(RawServer(saying(line.encode(), close=True))) for line in lines]
        told = await failed(tocsin_app, *(Http.get(each.url, headers={"Authorization": TOKEN}) for each in servers))
    assert PLAIN[:6] not in told
    assert "the answer is not HTTP" in told


async def test_a_redirect_that_repeats_a_secret(tocsin_app: Tocsin) -> None:
    location = f"ftp://x/{PLAIN}"
    async with RawServer(
        saying(f"HTTP/1.1 302 X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode())
    ) as server:
        told = await failed(tocsin_app, Http.get(server.url, headers={"Authorization": TOKEN}, redirects=1))
    assert "was redirected to" in told
    assert PLAIN not in told


async def test_a_receiver_that_repeats_the_password_of_its_url(tocsin_app: Tocsin) -> None:
    login = base64.b64encode(f"ada:{PLAIN}".encode()).decode()
    said = f"HTTP/1.1 500 X\r\ncontent-length: {len(login)}\r\n\r\n{login}"
    async with RawServer(saying(said.encode())) as server:
        url = server.url.replace("//", f"//ada:{PLAIN}@")
        job = await tocsin_app.enqueue(Http.get(url), id="a")
        await run_until_idle(tocsin_app)
    [run] = [run async for run in tocsin_app.runs() if run.job_id == job.id]
    assert login[8:24] not in run.told["head"]
    assert "***" in run.told["head"]


async def test_a_program_that_prints_its_secret(tocsin_app: Tocsin, tmp_path: Path) -> None:
    good = make(tmp_path, 'print("it is", os.environ["TOKEN"])', "good")
    bad = make(tmp_path, 'print("it is", os.environ["TOKEN"]); sys.exit(1)', "bad")
    handle = await tocsin_app.enqueue(Subprocess([good], env={"TOKEN": TOKEN}), id="good")
    told = await failed(tocsin_app, Subprocess([bad], env={"TOKEN": TOKEN}))
    assert (await handle.result())["output"] == "it is ***\n"
    assert PLAIN not in told
    assert "it is ***" in told


@pytest.mark.parametrize("output", [1, 7, 20, 28, 29, 40, 57])
async def test_a_program_whose_output_is_cut_in_the_middle_of_a_secret(
    tocsin_app: Tocsin, tmp_path: Path, output: int
) -> None:
    """The job says where."""
    program = make(tmp_path, 'sys.stdout.write("it is " + os.environ["TOKEN"] + "x" * 50 + os.environ["TOKEN"])')
    target = Subprocess([program], env={"TOKEN": TOKEN}, output=output)
    handle = await tocsin_app.enqueue(target, id="a")
    await run_until_idle(tocsin_app)
    kept = (await handle.result())["output"]
    [run] = [run async for run in tocsin_app.runs()]
    for said in (kept, run.told["head"]):
        assert "ope" not in said
        assert "def" not in said


@contextlib.asynccontextmanager
async def a_broker(says: bytes) -> AsyncIterator[int]:
    """Says that to everybody, and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not says.startswith(b"INFO"):
            await reader.read(100)
        writer.write(says)
        with contextlib.suppress(ConnectionError):
            await reader.read(1000)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        ("redis", f"-ERR no user with the password {PLAIN}\r\n"),
        ("redis", f"$-{PLAIN}\r\n"),
        ("nats", f'INFO {{"version": "2", "auth_required": true}}\r\n-ERR \'no user {quote_plus(PLAIN)}\'\r\n'),
        ("amqp", f"AMQP{PLAIN}"),
    ],
    ids=["redis", "no redis", "nats", "amqp"],
)
async def test_a_broker_that_repeats_a_password(tocsin_app: Tocsin, scheme: str, says: str) -> None:
    async with a_broker(says.encode()) as port:
        told = await failed(
            tocsin_app,
            Message(f"{scheme}://127.0.0.1:{port}/x", user="ada", password=TOKEN, timeout=3),
            Message(f"{scheme}://ada:{PLAIN}@127.0.0.1:{port}/x", timeout=3),
        )
    assert PLAIN not in told.replace(f"ada:{PLAIN}@", "")


async def test_a_kafka_that_repeats_a_password(tocsin_app: Tocsin) -> None:
    gate = KafkaGate(says=PLAIN.encode())
    await gate.start()
    try:
        told = await failed(tocsin_app, Message(f"kafka://127.0.0.1:{gate.port}/x", user="ada", password=TOKEN))
    finally:
        await gate.stop()
    assert gate.tokens
    assert PLAIN not in told
    assert "does not allow us to log in (" in told


async def test_an_error_keeps_what_led_to_it_where_nothing_is_hidden(tocsin_app: Tocsin) -> None:
    """Its class is found there."""
    told = Told(tocsin_app)
    await tocsin_app.enqueue(Http.get("http://127.0.0.1:1/", headers={"X": TOKEN}))
    await run_until_idle(tocsin_app)
    [error] = told.errors
    assert isinstance(error, DeliveryFailed)
    assert error.__cause__ is not None
