"""Failure classes of what the clouds' libraries, Redis and SQL raise."""

from __future__ import annotations

import sqlite3

import azure.core.exceptions as azure
import botocore.exceptions as aws
import botocore.session
import google.api_core.exceptions as google
import google.auth.exceptions as google_auth
import grpc
import grpc.aio
import pytest
import redis
import redis.asyncio
import requests
import sqlalchemy
from azure.core import PipelineClient
from azure.core.rest import HttpRequest
from botocore.config import Config
from sqlalchemy.pool import QueuePool

from tocsin.resilience.classify import Classifier, FailureClass

FORBIDDEN, THROTTLED = FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED
TRANSIENT, SERVER_ERROR, UNKNOWN = FailureClass.TRANSIENT, FailureClass.SERVER_ERROR, FailureClass.UNKNOWN


def classify(error: BaseException) -> FailureClass:
    return Classifier().classify(error)


def named(value: object) -> str | None:
    return type(value).__qualname__ if isinstance(value, Exception) else None


def sts(url: str):
    config = Config(retries={"total_max_attempts": 1}, read_timeout=0.2, proxies={})
    session = botocore.session.Session()
    session.set_credentials("id", "secret")
    return session.create_client("sts", region_name="eu-west-1", endpoint_url=url, config=config)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AccessDenied", FORBIDDEN),
        (400, "AccessDeniedException", FORBIDDEN),
        (403, "UnauthorizedOperation", FORBIDDEN),
        (400, "UnrecognizedClientException", FORBIDDEN),
        (400, "ExpiredToken", FORBIDDEN),
        (400, "Throttling", THROTTLED),
        (400, "ThrottlingException", THROTTLED),
        (400, "RequestThrottled", THROTTLED),
        (400, "TooManyRequestsException", THROTTLED),
        (400, "ProvisionedThroughputExceededException", THROTTLED),
        (503, "RequestLimitExceeded", THROTTLED),
        (503, "SlowDown", THROTTLED),
        (400, "LimitExceededException", THROTTLED),
        (400, "RequestTimeout", TRANSIENT),
        (503, "ServiceUnavailable", SERVER_ERROR),
        (500, "InternalError", SERVER_ERROR),
        (403, "SomethingNew", FORBIDDEN),
        (429, "SomethingNew", THROTTLED),
        (404, "NoSuchBucket", UNKNOWN),
        (400, "ValidationException", UNKNOWN),
    ],
)
def test_aws_by_error_code_and_then_by_status(status, code, expected):
    response = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert classify(aws.ClientError(response, "Operation")) is expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("400/Throttling", THROTTLED),
        ("403/AccessDenied", FORBIDDEN),
        ("500/Odd", SERVER_ERROR),
        ("hang", TRANSIENT),
        ("drop", TRANSIENT),
    ],
)
def test_aws_as_its_client_raises_it(web, path, expected):
    client = sts(f"{web}/{path}")
    with pytest.raises((aws.BotoCoreError, aws.ClientError)) as caught:
        client.get_caller_identity()
    client.close()
    assert classify(caught.value) is expected


def test_aws_out_of_reach_is_transient(nobody):
    client = sts(f"http://127.0.0.1:{nobody}")
    with pytest.raises(aws.EndpointConnectionError) as caught:
        client.get_caller_identity()
    client.close()
    assert classify(caught.value) is TRANSIENT


@pytest.mark.parametrize("response", [{}, {"Error": None}, {"Error": {"Code": 7}}, {"ResponseMetadata": []}])
def test_an_aws_error_without_its_usual_parts_is_unknown(response):
    error = aws.ClientError({}, "Operation")
    error.response = response
    assert classify(error) is UNKNOWN


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (google.PermissionDenied("m"), FORBIDDEN),
        (google.Unauthenticated("m"), FORBIDDEN),
        (google.ResourceExhausted("m"), THROTTLED),
        (google.TooManyRequests("m"), THROTTLED),
        (google.ServiceUnavailable("m"), SERVER_ERROR),
        (google.InternalServerError("m"), SERVER_ERROR),
        (google.DeadlineExceeded("m"), SERVER_ERROR),
        (google.Unknown("m"), SERVER_ERROR),
        (google.Aborted("m"), TRANSIENT),
        (google.NotFound("m"), UNKNOWN),
        (google.InvalidArgument("m"), UNKNOWN),
        (google.RetryError("m", None), TRANSIENT),
        (google.RetryError("m", google.ResourceExhausted("m")), THROTTLED),
        (google.from_http_status(403, "m"), FORBIDDEN),
        (google.from_http_status(429, "m"), THROTTLED),
        (google.from_http_status(418, "m"), UNKNOWN),
        (google.from_grpc_status(grpc.StatusCode.PERMISSION_DENIED, "m"), FORBIDDEN),
        (google_auth.TransportError("m"), TRANSIENT),
    ],
    ids=named,
)
def test_google(error, expected):
    assert classify(error) is expected


async def test_grpc_by_its_status_code(nobody):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{nobody}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/service/method")(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert classify(caught.value) is TRANSIENT


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, FORBIDDEN),
        (grpc.StatusCode.UNAUTHENTICATED, FORBIDDEN),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, THROTTLED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, TRANSIENT),
        (grpc.StatusCode.INTERNAL, SERVER_ERROR),
        (grpc.StatusCode.NOT_FOUND, UNKNOWN),
    ],
)
def test_grpc_codes(code, expected):
    assert classify(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())) is expected


def test_a_grpc_error_without_a_code_is_unknown():
    assert classify(grpc.RpcError()) is UNKNOWN


@pytest.mark.parametrize(
    ("status", "expected"), [(401, FORBIDDEN), (403, FORBIDDEN), (429, THROTTLED), (503, SERVER_ERROR), (404, UNKNOWN)]
)
def test_azure_by_status(web, status, expected):
    with PipelineClient(web, policies=[]) as client:
        response = client.send_request(HttpRequest("GET", f"{web}/{status}"))
        with pytest.raises(azure.HttpResponseError) as caught:
            response.raise_for_status()
    assert classify(caught.value) is expected


def test_azure_out_of_reach_is_transient(nobody):
    url = f"http://127.0.0.1:{nobody}"
    with PipelineClient(url, policies=[]) as client, pytest.raises(azure.ServiceRequestError) as caught:
        client.send_request(HttpRequest("GET", url))
    assert classify(caught.value) is TRANSIENT


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (azure.ClientAuthenticationError("m"), FORBIDDEN),
        (azure.ServiceResponseTimeoutError("m"), TRANSIENT),
        (azure.IncompleteReadError("m"), TRANSIENT),
        (azure.ServiceRequestError("m", error=MemoryError()), THROTTLED),
        (azure.ResourceNotFoundError("m"), UNKNOWN),
        (azure.AzureError("m"), UNKNOWN),
    ],
    ids=named,
)
def test_azure_by_type(error, expected):
    assert classify(error) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.ConnectionError("m"), TRANSIENT),
        (redis.TimeoutError("m"), TRANSIENT),
        (redis.BusyLoadingError("m"), TRANSIENT),
        (redis.ReadOnlyError("m"), TRANSIENT),
        (redis.exceptions.ClusterDownError("CLUSTERDOWN"), TRANSIENT),
        (redis.exceptions.MaxConnectionsError("m"), TRANSIENT),
        (redis.sentinel.MasterNotFoundError("m"), TRANSIENT),
        # Both are connection errors by descent: the nearest name counts.
        (redis.AuthenticationError("m"), FORBIDDEN),
        (redis.exceptions.AuthorizationError("m"), FORBIDDEN),
        (redis.exceptions.NoPermissionError("m"), FORBIDDEN),
        (redis.exceptions.OutOfMemoryError("m"), THROTTLED),
        (redis.ResponseError("ERR Error running script: -OOM command not allowed when used memory"), THROTTLED),
        (redis.ResponseError("WRONGTYPE"), UNKNOWN),
        (redis.DataError("m"), UNKNOWN),
    ],
    ids=named,
)
def test_redis(error, expected):
    assert classify(error) is expected


async def test_redis_out_of_reach_is_transient(nobody):
    client = redis.asyncio.Redis(port=nobody, retry=None)
    with pytest.raises(redis.ConnectionError) as caught:
        await client.ping()
    await client.aclose()
    assert classify(caught.value) is TRANSIENT


@pytest.fixture
def database(tmp_path):
    engine = sqlalchemy.create_engine(
        f"sqlite:///{tmp_path}/db", poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01,
        connect_args={"timeout": 0.01},
    )  # fmt: skip
    yield engine
    engine.dispose()


def test_a_pool_without_a_free_connection_is_transient(database):
    with database.connect(), pytest.raises(sqlalchemy.exc.TimeoutError) as caught, database.connect():
        pass
    assert classify(caught.value) is TRANSIENT


def test_a_locked_database_is_transient_and_a_missing_table_is_not(database, tmp_path):
    statement = sqlalchemy.text("create table t (a)")
    with sqlite3.connect(f"{tmp_path}/db") as other:
        other.execute("begin exclusive")
        with database.connect() as connection, pytest.raises(sqlalchemy.exc.OperationalError) as locked:
            connection.execute(statement)
    other.close()
    with database.connect() as connection, pytest.raises(sqlalchemy.exc.OperationalError) as missing:
        connection.execute(sqlalchemy.text("select 'rate limit, access denied' from nowhere"))
    assert classify(locked.value) is TRANSIENT
    assert classify(missing.value) is UNKNOWN


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_IOERR_READ, TRANSIENT),
        (sqlite3.SQLITE_NOMEM, THROTTLED),
        (sqlite3.SQLITE_ERROR_MISSING_COLLSEQ, UNKNOWN),
    ],
)
def test_sqlite_codes(code, expected):
    error = sqlite3.OperationalError("m")
    error.sqlite_errorcode = code
    assert classify(error) is expected


class DriverError(Exception):
    """As psycopg and asyncpg raise them, which need a PostgreSQL to do so."""

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("kind", "orig", "expected"),
    [
        ("OperationalError", DriverError("server closed the connection unexpectedly"), TRANSIENT),
        ("OperationalError", DriverError("something else"), TRANSIENT),
        ("OperationalError", DriverError("FATAL: password authentication failed"), FORBIDDEN),
        ("OperationalError", DriverError("(1045, \"Access denied for user 'root'\")"), FORBIDDEN),
        ("OperationalError", DriverError("sorry, too many clients already"), THROTTLED),
        ("OperationalError", DriverError("m", "28P01"), FORBIDDEN),
        ("OperationalError", DriverError("m", "53300"), THROTTLED),
        ("OperationalError", DriverError("m", "57P01"), TRANSIENT),
        ("OperationalError", ConnectionResetError(104, "m"), TRANSIENT),
        ("DBAPIError", DriverError("m", "40P01"), TRANSIENT),
        ("ProgrammingError", DriverError("m", "42501"), FORBIDDEN),
        ("ProgrammingError", DriverError("m", "42601"), UNKNOWN),
        ("ProgrammingError", DriverError("m", "12853"), UNKNOWN),
        ("IntegrityError", DriverError("duplicate key"), UNKNOWN),
    ],
)
def test_sqlalchemy_with_what_its_driver_said(kind, orig, expected):
    error = getattr(sqlalchemy.exc, kind)("select 'throttled'", {"a": "access denied"}, orig)
    assert classify(error) is expected


def test_a_connection_that_sqlalchemy_found_dead_is_transient():
    error = sqlalchemy.exc.InterfaceError("select 1", {}, DriverError("m"), connection_invalidated=True)
    assert classify(error) is TRANSIENT


def test_google_over_http():
    response = requests.Response()
    response.status_code = 403
    response.request = requests.Request("GET", "http://x/").prepare()
    assert classify(google.from_http_response(response)) is FORBIDDEN
