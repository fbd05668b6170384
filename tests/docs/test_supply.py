"""What the tree brings along: packages by their hashes, from wherever the machine gets them, and no credentials."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Each by a form that nothing else has. The last is a signing secret: tests have some of their own.
CREDENTIALS = {
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE" + " KEY-----",
    "a key of AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a token of GitHub": r"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_\w{22,})",
    "a token of GitLab": r"\bglpat-[\w-]{20}",
    "a token of Slack": r"\bxox[abeprs]-[0-9A-Za-z-]{10,}",
    "a token of PyPI": r"\bpypi-[\w-]{50,}",
    "a key of Google": r"\bAIza[\w-]{35}",
    "a key of Stripe": r"\b[rs]k_live_[0-9A-Za-z]{20,}",
    "a JWT": r"\beyJ[\w-]{15,}\.eyJ[\w-]{15,}\.[\w-]{20,}",
    "a login in an address": r"://[^\s:/@'\"{}$<>\[\]]+:[^\s:/@'\"{}$<>\[\]]{24,}@",
    "a signing secret": r"\bwhsec_[0-9A-Za-z+/]{24,}",
}
REGISTRY = re.compile(r"https?://[^\s/]*(?:pypi|pythonhosted|artifactory|nexus|devpi)[^\s]*", re.IGNORECASE)


def files() -> Iterator[tuple[Path, str]]:
    """All that we wrote: text, in the folders of the tree."""
    top = [path for form in ("*.md", "*.toml", "*.lock", "Makefile") for path in ROOT.glob(form)]
    folders = [ROOT / name for name in ("src", "tests", "docs", "examples", ".ci")]
    for path in [*top, *(path for folder in folders for path in folder.rglob("*"))]:
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT), path.read_text(errors="replace")


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def test_every_package_is_locked_to_a_version_and_its_hashes() -> None:
    for block in re.split(r"\n(?=\S)", LOCK.strip()):
        head, *hashes = [line.removesuffix("\\").strip() for line in block.splitlines()]
        assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[\w.!+-]+( ; .+)?", head), head
        assert hashes, f"{head} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), head


def test_every_package_that_is_asked_for_is_locked() -> None:
    groups = [*PROJECT["project"]["optional-dependencies"].values(), PROJECT["dependency-groups"]["dev"]]
    asked = [*PROJECT["project"]["dependencies"], *(each for group in groups for each in group)]
    locked = {name_of(line) for line in LOCK.splitlines() if line[:1].strip()}
    assert {name_of(each) for each in asked} - locked == set()
    # From where is for the machine to say.
    assert [each for each in asked if "@" in each] == []


def test_no_registry_is_named() -> None:
    assert {str(path): found[0] for path, text in files() if (found := REGISTRY.search(text))} == {}
    assert "index" not in PROJECT.get("tool", {}).get("uv", {})


def test_no_credential_is_in_the_tree() -> None:
    found = [
        f"{path} has {what}"
        for path, text in files()
        for what, form in CREDENTIALS.items()
        if re.search(form, text) and not (what == "a signing secret" and path.parts[0] == "tests")
    ]
    assert found == []


def test_credentials_would_be_found() -> None:
    """Made here, so that none stands in the tree."""
    made = {
        "a private key": "-----BEGIN RSA PRIVATE" + " KEY-----",
        "a key of AWS": "AKIA" + "Z" * 16,
        "a token of GitHub": "ghp_" + "a1" * 18,
        "a login in an address": "redis://user:" + "x" * 24 + "@host",
        "a signing secret": "whsec_" + "A" * 32,
    }
    assert [what for what, text in made.items() if not re.search(CREDENTIALS[what], f"x = '{text}'")] == []
