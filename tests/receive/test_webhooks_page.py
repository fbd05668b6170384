"""The receivers of the guide are run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support.asgi_client import OTHER, SECRET, signed
from tests.support.once_work import KEY
from tests.support.servers import free_port
from tests.support.waiting import until
from tocsin.receive import Once

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "webhooks.md"


def examples() -> list[str]:
    section = PAGE.read_text().partition("## The receiver\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)


def made_by(example: str, **known: Any) -> dict[str, Any]:
    names = dict(known)
    exec(compile(example, PAGE.name, "exec"), names)
    return names


@pytest.mark.parametrize("where", ["valkey", "sqlite"], indirect=True)
def test_the_receiver_ships_an_order_once(where, tmp_path: Path):
    receiver = examples()[0]
    assert len(receiver.strip().splitlines()) <= 20
    (tmp_path / "shop.py").write_text(receiver)
    (tmp_path / "secret").write_text(SECRET)
    port, known = free_port(), {"KEYS_URL": where, "SECRET_FILE": str(tmp_path / "secret")}
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, cwd=tmp_path, env=os.environ | known)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", verify=False) as client:
            until(lambda: can_connect(client), "the receiver listens", within=60)
            body, key = b'{"id": 7}', {"Idempotency-Key": KEY}
            assert client.post("/", content=body, headers=key | signed(body, OTHER)).status_code == 401
            first, second = (client.post("/", content=body, headers=key | signed(body)) for _ in range(2))
        assert first.json() == second.json() == {"shipped": 7}
        assert second.headers["idempotency-replayed"] == "true"
        assert (tmp_path / "shipped.txt").read_text() == "7\n"
    finally:
        process.kill()
        process.wait()


def can_connect(client: httpx.Client) -> bool:
    try:
        return client.post("/").status_code == 401
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("where", ["valkey"], indirect=True)
async def test_a_message_is_worked_on_once(once):
    shipped = []

    async def ship(order: int) -> int:
        shipped.append(order)
        return order

    on_message = made_by(examples()[1], ship=ship)["on_message"]
    assert [await on_message(once, KEY, 7), await on_message(once, KEY, 7)] == [7, 7]
    assert shipped == [7]


@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
async def test_key_and_effect_are_committed_together(where):
    engine = create_async_engine(where)
    once = Once(engine)
    await once.setup()
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    receive = made_by(examples()[2], text=text)["receive"]
    assert [await receive(engine, once, KEY, {"id": 7}) for _ in range(2)] == [{"accepted": 7}] * 2
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM orders"))).scalar_one() == 1
    await engine.dispose()
