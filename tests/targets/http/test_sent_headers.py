"""What a request tells about its run."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from aiohttp import web
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.support.http_receiver import Receiver
from tests.support.one_delivery import Names, Sender, unit_of
from tocsin import Every, Http, Tocsin
from tocsin.model.errors import RecordUnreadable
from tocsin.model.job import Spec
from tocsin.model.record import decode_header, encode_record
from tocsin.model.target import HTTP
from tocsin.targets.envelope import in_header
from tocsin.testing import ManualClock, run_until_idle


async def test_who_sends_it(receiver: Receiver) -> None:
    async with Sender("127.0.0.1") as sender:
        await sender.send(Http.get(receiver.url))
        await sender.send(Http.get(receiver.url, headers={"user-agent": "me"}))
    agents = [each.headers["User-Agent"] for each in receiver.received]
    assert agents == [f"tocsin/{version('tocsin')}", "me"]


async def test_all_attempts_of_a_run_are_one_trace_of_several_spans(receiver: Receiver) -> None:
    async with Sender("127.0.0.1") as sender:
        for attempt in (1, 2, 2):
            await sender.send(Http.get(receiver.url), attempt)
    traces = [each.headers["traceparent"].split("-") for each in receiver.received]
    assert {trace_id for _, trace_id, _, _ in traces} == {receiver.keys()[0]}
    assert [(known, flags) for known, _, _, flags in traces] == [("00", "01")] * 3
    spans = [span for _, _, span, _ in traces]
    assert spans[0] != spans[1] == spans[2]
    assert all(len(span) == 16 for span in spans)


async def test_the_span_that_the_worker_is_in_is_passed_on(receiver: Receiver) -> None:
    tracer = TracerProvider().get_tracer("test")
    async with Sender("127.0.0.1") as sender:
        with tracer.start_as_current_span("delivering") as span:
            await sender.send(Http.get(receiver.url))
    context = span.get_span_context()
    known = trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)
    assert receiver.received[0].headers["traceparent"] == f"00-{known[0]}-{known[1]}-{context.trace_flags:02x}"


async def test_the_due_time_is_that_of_the_occurrence(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    await tocsin_app.schedule(Http.get(receiver.url), Every("1500ms"), id="a")
    for _ in range(2):
        tocsin_clock.advance(1.5)
        await run_until_idle(tocsin_app)
    dues = [each.headers["Tocsin-Due"] for each in receiver.received]
    assert dues == ["2030-01-01T00:00:01.500Z", "2030-01-01T00:00:03.000Z"]


@pytest.mark.parametrize(
    ("text", "written"), [("a b~", "a b~"), ("50%", "50%25"), ("é\n", "%C3%A9%0A"), ("\x7f", "%7F"), ("", "")]
)
def test_ids_are_written_so_that_a_header_can_hold_them(text: str, written: str) -> None:
    assert in_header(text) == written


def test_who_sends_no_request_does_not_import_the_client() -> None:
    """Neither the command line nor a worker: aiohttp takes as long to import as all the rest."""
    program = (
        "import sys, tocsin, tocsin.cli.main, tocsin.worker, tocsin.targets.external; print('aiohttp' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize("name", ["Host", "hOST", "Transfer-Encoding"])
async def test_a_job_that_was_put_with_another_host_in_a_header_sends_nothing(receiver: Receiver, name: str) -> None:
    """By a program that did not refuse it."""
    unit = unit_of(Http.get(receiver.url, headers={"X": "y"}))
    method, url, _, *others = unit.spec.args
    forged = Spec(HTTP, (method, url, {name: "admin.internal"}, *others))
    unit.spec = forged
    unit.claim = replace(unit.claim, record=encode_record(decode_header(unit.claim.record), forged))
    async with Sender("127.0.0.1") as sender:
        with pytest.raises(RecordUnreadable, match=f"the header {name} is set when the request is sent"):
            await sender.target.deliver(unit)
    assert receiver.received == []


async def test_the_host_of_a_redirect_is_that_of_its_url(receiver: Receiver) -> None:
    receiver.answers = [web.Response(status=302, headers={"Location": f"http://b.example:{receiver.port}/"}), 200]
    async with Sender("127.0.0.1", resolver=Names(["127.0.0.1"])) as sender:
        await sender.send(Http.get(f"http://a.example:{receiver.port}/", redirects=1))
    hosts = [each.headers["Host"] for each in receiver.received]
    assert hosts == [f"a.example:{receiver.port}", f"b.example:{receiver.port}"]
