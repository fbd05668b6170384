"""Which secrets jobs may have, and where each may go, is the operator's decision."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.http_receiver import Receiver
from tests.support.one_delivery import Names, OpenGates, Sender
from tests.support.subprocess_programs import make
from tocsin import Http, Message, Secret, Subprocess, Tocsin
from tocsin.model.delivery import DeliveryFailed
from tocsin.targets.http.target import HttpTarget
from tocsin.targets.secrets import Secrets
from tocsin.testing import run_until_idle

SESAME = "open-sesame-4711"
HOOK = Secret.env("TOCSIN_SECRET_HOOK")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Secrets as Docker and Kubernetes mount them, and beside them what is the worker's own."""
    mount = tmp_path / "secrets"
    service = mount / "kubernetes.io" / "serviceaccount"
    service.mkdir(parents=True)
    (service / "token").write_text("the worker's own token")
    (tmp_path / "passwd").write_text("root")
    (mount / "plain").write_text(f"{SESAME}\n")
    # Kubernetes' way: all are replaced at once, by another link.
    (mount / "..2030_01_01").mkdir()
    (mount / "..2030_01_01" / "mounted").write_text(SESAME)
    (mount / "..data").symlink_to("..2030_01_01")
    (mount / "mounted").symlink_to("..data/mounted")
    (mount / "beside").symlink_to("plain")
    (mount / "out").symlink_to(tmp_path / "passwd")
    (mount / "up").symlink_to("../passwd")
    (mount / "service").symlink_to("kubernetes.io/serviceaccount/token")
    (mount / "deep").symlink_to(service)
    (mount / ".hidden").write_text("the worker's own")
    os.mkfifo(mount / "fifo")
    return mount


def read(secrets: Secrets, path: str) -> str:
    return secrets.read(Secret.file(path), ["example.org"])


@pytest.mark.parametrize("name", ["plain", "mounted", "beside"])
def test_files_in_a_folder_are_for_jobs_however_they_are_mounted(folder: Path, name: str) -> None:
    assert read(Secrets({f"{folder}/*": ("*",)}), f"{folder}/{name}") == SESAME


@pytest.mark.parametrize(
    "name",
    [
        "kubernetes.io/serviceaccount/token",
        "deep/token",
        "service",
        "out",
        "up",
        "../passwd",
        "./plain",
        "/plain",
        "..data/mounted",
        ".hidden",
        "kubernetes.io/../plain",
    ],
)
def test_no_other_file_is(folder: Path, name: str) -> None:
    for pattern in (f"{folder}/*", f"{folder.parent}/*/*"):
        with pytest.raises(DeliveryFailed) as failed:
            read(Secrets({pattern: ("*",)}), f"{folder}/{name}")
        assert failed.value.final
        assert "`secrets.allow`" in str(failed.value)


def test_a_path_that_the_operator_names_leads_where_it_leads(folder: Path) -> None:
    assert read(Secrets({f"{folder}/out": ("*",)}), f"{folder}/out") == "root"


@pytest.mark.parametrize("name", ["missing", "fifo", "kubernetes.io"])
def test_what_is_no_file_is_no_secret_and_nobody_waits_for_it(folder: Path, name: str) -> None:
    with pytest.raises(DeliveryFailed, match="there is no secret file") as failed:
        read(Secrets({f"{folder}/*": ("*",)}), f"{folder}/{name}")
    assert not failed.value.final


def test_patterns_of_variables_are_for_no_files() -> None:
    for secrets in (Secrets(), Secrets({"*": ("*",)})):
        with pytest.raises(DeliveryFailed, match="is not for jobs"):
            read(secrets, "/etc/passwd")


# Bound to hosts


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_HOOK", SESAME)
    monkeypatch.setenv("BILLING_KEY", SESAME)


def test_a_secret_goes_to_the_hosts_that_it_is_bound_to_and_to_no_others() -> None:
    secrets = Secrets({"TOCSIN_SECRET_HOOK": ("hooks.example.org", "*.internal", "10.0.0.0/8")})
    for host in ("hooks.example.org", "HOOKS.example.org.", "a.internal", "10.1.2.3"):
        assert secrets.read(HOOK, [host]) == SESAME
    for host in (
        "example.org",
        "hooks.example.org.evil.example",
        "internal",
        "evil.example\0.internal",
        "11.0.0.1",
        "",
        "167838211",
    ):
        with pytest.raises(DeliveryFailed, match="is not for the host") as failed:
            secrets.read(HOOK, ["a.internal", host])
        assert failed.value.final


def test_what_binds_a_secret_holds_whatever_else_allows_it() -> None:
    billing = Secret.env("BILLING_KEY")
    secrets = Secrets({"BILLING_*": ("*",), "BILLING_KEY": ("a.example",), "*_KEY": ("b.example",)})
    for host in ("a.example", "b.example"):
        assert secrets.read(billing, [host]) == SESAME
    with pytest.raises(DeliveryFailed):
        secrets.read(billing, ["c.example"])
    assert Secrets({"BILLING_*": ("*",)}).read(billing, ["c.example"]) == SESAME


@pytest.mark.parametrize("bound", ["link/plain", "link/*", "link/p*", "secrets/plain", "secrets/beside"])
def test_a_file_is_bound_by_whatever_path_it_is_named(folder: Path, bound: str) -> None:
    """As /var/run/secrets and /run/secrets are one folder."""
    (folder.parent / "link").symlink_to("secrets")
    secrets = Secrets({f"{folder.parent}/{bound}": ("a.example",), f"{folder}/*": ("*",)})
    for name in ("plain", "beside"):
        secret = Secret.file(f"{folder}/{name}")
        assert secrets.read(secret, ["a.example"]) == SESAME
        with pytest.raises(DeliveryFailed, match="is not for the host"):
            secrets.read(secret, ["b.example"])
        assert secrets.is_bound(secret)


def test_a_file_beside_a_bound_one_is_not_bound(folder: Path) -> None:
    secrets = Secrets({f"{folder}/plain": ("a.example",), f"{folder}/*": ("*",)})
    assert secrets.read(Secret.file(f"{folder}/mounted"), ["b.example"]) == SESAME


class BoundSender(Sender):
    """Of an operator who binds the hook's secret to one host."""

    def __init__(self, host: str, *allow: str, **options: Any) -> None:
        super().__init__(*allow, **options)
        secrets = Secrets({"TOCSIN_SECRET_HOOK": (host,)})
        self.target = HttpTarget(
            namespace="test:", clock=self.clock, gates=OpenGates(), secrets=secrets, allow=allow, **options
        )


@pytest.mark.parametrize("how", ["header", "signature"])
async def test_a_request_to_another_host_does_not_get_a_bound_secret(
    receiver: Receiver, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_HOOK", "bXktc2VjcmV0LWtleS1vZi0zMi1ieXRlcyEh")
    options: Any = {"headers": {"X": HOOK}} if how == "header" else {"sign": HOOK}
    async with BoundSender("a.example", "127.0.0.1", resolver=Names(["127.0.0.1"])) as sender:
        await sender.send(Http.post(f"http://a.example:{receiver.port}/", **options))
        for trick in ("b.example", "a.example.b.example", "a.example@b.example", "a.example%2f@b.example"):
            failed = await sender.fail(Http.post(f"http://{trick}:{receiver.port}/", **options))
            assert failed.final
            assert "is not for the host" in str(failed)
    assert len(receiver.received) == 1


async def test_a_redirect_to_another_host_takes_nothing_of_a_bound_secret_along(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_SECRET_HOOK", "bXktc2VjcmV0LWtleS1vZi0zMi1ieXRlcyEh")
    elsewhere = f"http://b.example:{receiver.port}/there"
    receiver.answers = [web.Response(status=307, headers={"Location": elsewhere}), 200]
    async with BoundSender("a.example", "127.0.0.1", resolver=Names(["127.0.0.1"])) as sender:
        request = Http.post(
            f"http://a.example:{receiver.port}/", headers={"X": HOOK}, sign=HOOK, json={"a": 1}, redirects=1
        )
        await sender.send(request)
    here, there = receiver.received
    names = ("X", "webhook-id", "webhook-timestamp", "webhook-signature")
    assert all(name in here.headers for name in names)
    assert [name for name in names if name in there.headers] == []
    assert there.body == b'{"a":1}'


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before `tocsin_app` reads it."""
    monkeypatch.setenv("TOCSIN_SECRETS__ALLOW", "TOCSIN_SECRET_HOOK=127.0.0.2")
    monkeypatch.setenv("TOCSIN_SUBPROCESS__ALLOW", f"{tmp_path}/*=*")


async def test_a_broker_elsewhere_does_not_get_a_bound_secret(bound: None, tocsin_app: Tocsin) -> None:
    """Not if it is one of several hosts either: the client may log in at any of them."""
    for number, hosts in enumerate(["127.0.0.1:1", "127.0.0.2:1,127.0.0.1:1", "127.0.0.1:1,127.0.0.2:1"]):
        await tocsin_app.enqueue(Message(f"nats://{hosts}/x", password=HOOK), id=f"{number}")
    await tocsin_app.enqueue(Message("nats://127.0.0.2:1/x", password=HOOK), id="bound")
    await run_until_idle(tocsin_app)
    told = {job.id: job.failure.error async for job in tocsin_app.dead() if job.failure is not None}
    assert [name for name, error in told.items() if "is not for the host '127.0.0.1'" in error] == ["0", "1", "2"]
    assert "is not available" in told["bound"]


async def test_a_program_does_not_get_a_bound_secret(bound: None, tocsin_app: Tocsin, tmp_path: Path) -> None:
    program = make(tmp_path, 'note("began", 1)')
    await tocsin_app.enqueue(Subprocess([program], env={"TOKEN": HOOK}), id="a")
    await run_until_idle(tocsin_app)
    [dead] = [job async for job in tocsin_app.dead()]
    assert dead.failure is not None
    assert "is not for programs" in dead.failure.error
    assert not (tmp_path / "began").exists()


def test_a_secret_that_is_replaced_while_it_is_read_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes swaps the folder between the look at the link and the opening of the file."""
    whole = os.path.realpath
    swapped: list[str] = []

    def swap(path: str) -> str:
        real = whole(path)
        if path.endswith("mounted") and not swapped:
            swapped.append(real)
            (folder / "..2031_01_01").mkdir()
            (folder / "..2031_01_01" / "mounted").write_text("new")
            (folder / "..data").unlink()
            (folder / "..data").symlink_to("..2031_01_01")
            os.unlink(real)
        return real

    monkeypatch.setattr(os.path, "realpath", swap)
    assert read(Secrets({f"{folder}/*": ("*",)}), f"{folder}/mounted") == "new"
    assert swapped
