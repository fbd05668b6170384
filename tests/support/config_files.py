"""Configuration files in the hands of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.config import load_config
from tocsin.model.errors import InvalidConfig


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "tocsin.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def nested(key: str, value: str) -> str:
    """redis.agent.x -> the YAML that sets it, on the line after its groups."""
    parts = key.split(".")
    lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(parts)]
    return "\n".join(lines) + f" {value}\n"


def problems(path: str | None = None, **env: str) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        load_config(path, env)
    return str(caught.value).splitlines()
