"""Whatever is written, wherever: a configuration, or InvalidConfig."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.config_files import write
from tocsin.config import Loaded, load_config
from tocsin.config.keys import SETTINGS, value_of
from tocsin.model.errors import InvalidConfig

KEYS = st.sampled_from(sorted(SETTINGS))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def loaded(load: Callable[[], Loaded]) -> Loaded | None:
    try:
        return load()
    except InvalidConfig as error:
        text = str(error)
        assert text
        text.encode()
        assert all(line.isprintable() for line in text.splitlines())
        return None


def tree(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


@given(key=KEYS, value=VALUES)
def test_any_value_at_any_key_of_a_file(folder: Path, key: str, value: Any) -> None:
    path = write(folder, yaml.safe_dump(tree(key, value), allow_unicode=True).encode("utf-8", "surrogatepass"))
    found = loaded(lambda: load_config(path, {}))
    if found is not None:
        got = value_of(found.config, key)
        assert type(got) is SETTINGS[key].kind
        assert got == value or not isinstance(value, str) or isinstance(got, (tuple, dict)) or found.warnings


@given(key=KEYS, text=st.text(st.characters(exclude_characters="\0")))
def test_any_text_in_any_variable(key: str, text: str) -> None:
    name = "TOCSIN_" + key.upper().replace(".", "__").replace("-", "_")
    found = loaded(lambda: load_config(env={name: text}))
    if found is not None:
        value = value_of(found.config, key)
        assert value == text or not isinstance(value, str) or found.warnings
        assert not isinstance(value, float) or math.isfinite(value)


@given(name=st.text(st.characters(exclude_characters="\0=")))
def test_any_name_of_a_variable(name: str) -> None:
    loaded(lambda: load_config(env={f"TOCSIN_REDIS__{name}": "1"}))


@given(text=st.text() | st.text("redis: agent{}[]&*!%@`'\"|>-?#,\n\t~<=0"))
def test_any_text_as_a_file(folder: Path, text: str) -> None:
    path = write(folder, text.encode("utf-8", "surrogatepass"))
    loaded(lambda: load_config(path, {}))


@given(data=st.binary())
def test_any_bytes_as_a_file(folder: Path, data: bytes) -> None:
    path = write(folder, data)
    loaded(lambda: load_config(path, {}))
