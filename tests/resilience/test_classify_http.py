"""Failure classes of what HTTP clients really raise."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.request

import aiohttp
import azure.core.exceptions
import botocore.exceptions
import httpx
import pytest
import requests
import urllib3

from tocsin.resilience.classify import Classifier, FailureClass

FORBIDDEN, THROTTLED = FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED
TRANSIENT, SERVER_ERROR, UNKNOWN = FailureClass.TRANSIENT, FailureClass.SERVER_ERROR, FailureClass.UNKNOWN

STATUSES = [
    (400, UNKNOWN),
    (401, FORBIDDEN),
    (403, FORBIDDEN),
    (404, UNKNOWN),
    (407, FORBIDDEN),
    (408, TRANSIENT),
    (409, UNKNOWN),
    (425, TRANSIENT),
    (429, THROTTLED),
    (500, SERVER_ERROR),
    (503, SERVER_ERROR),
    (599, SERVER_ERROR),
]


def classify(error: BaseException) -> FailureClass:
    return Classifier().classify(error)


async def with_aiohttp(url: str) -> None:
    timeout = aiohttp.ClientTimeout(total=0.2 if url.endswith("hang") else 5)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, raise_for_status=True) as response:
        await response.read()


async def with_httpx(url: str) -> None:
    async with httpx.AsyncClient(timeout=0.2 if url.endswith("hang") else 5, trust_env=False) as client:
        (await client.get(url)).raise_for_status()


async def with_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=0.2 if url.endswith("hang") else 5).raise_for_status()


async def with_urllib(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=0.2 if url.endswith("hang") else 5):
        pass


CLIENTS = pytest.mark.parametrize("client", [with_aiohttp, with_httpx, with_requests, with_urllib])


@CLIENTS
@pytest.mark.parametrize(("status", "expected"), STATUSES)
async def test_a_status_says_what_kind_of_failure_it_is(web, client, status, expected):
    with pytest.raises((aiohttp.ClientError, httpx.HTTPError, OSError)) as caught:
        await client(f"{web}/{status}")
    assert classify(caught.value) is expected
    if isinstance(caught.value, urllib.error.HTTPError):
        caught.value.close()


@CLIENTS
@pytest.mark.parametrize("path", ["hang", "drop"])
async def test_a_server_that_hangs_or_hangs_up_is_transient(web, client, path):
    with pytest.raises((aiohttp.ClientError, httpx.HTTPError, OSError)) as caught:
        await client(f"{web}/{path}")
    assert classify(caught.value) is TRANSIENT


@CLIENTS
async def test_a_refused_connection_is_transient(nobody, client):
    with pytest.raises((aiohttp.ClientError, httpx.HTTPError, OSError)) as caught:
        await client(f"http://127.0.0.1:{nobody}/")
    assert classify(caught.value) is TRANSIENT


@CLIENTS
async def test_a_name_that_does_not_resolve_is_transient(client):
    with pytest.raises((aiohttp.ClientError, httpx.HTTPError, OSError)) as caught:
        await client("http://nowhere.invalid/")
    assert classify(caught.value) is TRANSIENT


@CLIENTS
async def test_an_address_that_is_none_is_not_transient(client):
    with pytest.raises((aiohttp.ClientError, httpx.HTTPError, OSError)) as caught:
        await client("gopher://127.0.0.1/")
    assert classify(caught.value) is UNKNOWN


@pytest.mark.parametrize(("status", "expected"), [(429, THROTTLED), (503, SERVER_ERROR)])
def test_the_status_that_retries_ended_with_is_found(web, status, expected):
    retry = urllib3.Retry(total=1, status_forcelist=[status], backoff_factor=0)
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
        with pytest.raises(requests.exceptions.RetryError) as caught:
            session.get(f"{web}/{status}", timeout=5)
    assert classify(caught.value) is expected
    assert classify(caught.value.args[0]) is expected


REQUEST = httpx.Request("GET", "http://x/")
KEY = aiohttp.client_reqrep.ConnectionKey("x", 443, True, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (aiohttp.ServerDisconnectedError(), TRANSIENT),
        (aiohttp.ServerTimeoutError(), TRANSIENT),
        (aiohttp.ClientPayloadError("not all data received"), TRANSIENT),
        (aiohttp.ClientOSError(104, "reset"), TRANSIENT),
        (aiohttp.ClientOSError(13, "blocked by the firewall"), FORBIDDEN),
        # The number is one of getaddrinfo, which on some systems are positive.
        (aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(13, "m")), TRANSIENT),
        (aiohttp.InvalidURL("x"), UNKNOWN),
        (httpx.ReadTimeout("", request=REQUEST), TRANSIENT),
        (httpx.PoolTimeout("", request=REQUEST), TRANSIENT),
        (httpx.RemoteProtocolError("", request=REQUEST), TRANSIENT),
        (httpx.TooManyRedirects("", request=REQUEST), UNKNOWN),
        (httpx.LocalProtocolError("", request=REQUEST), UNKNOWN),
        (requests.ConnectTimeout(), TRANSIENT),
        (requests.exceptions.ChunkedEncodingError(), TRANSIENT),
        (requests.exceptions.InvalidURL(), UNKNOWN),
        (requests.HTTPError("no response in it"), UNKNOWN),
        (http.client.IncompleteRead(b""), TRANSIENT),
        (http.client.BadStatusLine("x"), TRANSIENT),
        (http.client.InvalidURL("x"), UNKNOWN),
    ],
    ids=lambda value: type(value).__qualname__ if isinstance(value, Exception) else None,
)
def test_types_of_http_clients(error, expected):
    assert classify(error) is expected


@CLIENTS
async def test_a_handshake_that_fails_is_transient_although_its_errno_is_that_of_a_refusal(web, client):
    with pytest.raises((aiohttp.ClientError, httpx.HTTPError, OSError)) as caught:
        await client(web.replace("http:", "https:"))
    assert classify(caught.value) is TRANSIENT


def certificate_errors() -> list[Exception]:
    text = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)"
    refused = ssl.SSLCertVerificationError(1, text)
    return [
        refused,
        ssl.SSLCertVerificationError("the hostname does not match"),
        aiohttp.ClientConnectorCertificateError(KEY, refused),
        httpx.ConnectError(text),
        requests.exceptions.SSLError(urllib3.exceptions.MaxRetryError(None, "/", urllib3.exceptions.SSLError(refused))),
        urllib.error.URLError(refused),
        botocore.exceptions.SSLError(endpoint_url="https://x/", error=refused),
        azure.core.exceptions.ServiceRequestError(text, error=refused),
    ]


@pytest.mark.parametrize("error", certificate_errors(), ids=lambda error: type(error).__module__)
def test_a_certificate_that_is_refused_does_not_pass_by_itself(error):
    assert classify(error) is UNKNOWN
