"""The handbook has every answer."""

from __future__ import annotations

import re
from pathlib import Path

from tocsin.inspection.why import stages

ROOT = Path(__file__).parents[3]


def test_every_kind_of_answer_is_in_the_handbook_and_no_other() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "tocsin" / "inspection" / "why").glob("*.py"))
    kinds = set(re.findall(r'Reason\(\s*"(\w+)"', source)) | {kind for kind, _ in stages._INTENTS.values()}
    table = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "operate" / "why.md").read_text(), flags=re.MULTILINE)
    assert {kind for cell in table for kind in re.findall(r"`(\w+)`", cell)} == kinds
    assert len(kinds) > 30
