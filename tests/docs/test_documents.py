"""The documents name what there is: commands, options, settings, metrics, files and tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from tocsin.cli.main import app as command_line
from tocsin.cli.main import run
from tocsin.config.keys import GROUPS, SETTINGS
from tocsin.inspection.findings import KINDS
from tocsin.model.errors import InvalidArgument
from tocsin.model.http import check_header
from tocsin.model.job import Stage
from tocsin.model.template import FIELDS
from tocsin.resilience.breaker import BreakerState as Breaker
from tocsin.telemetry.handler_metrics import DURATION, HANDLER_COUNTS
from tocsin.telemetry.metrics import COUNTS, LEVELS, SPREADS
from tocsin.upkeep.health import Signal, Snapshot, assess

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tocsin"
ORIGINALS = sorted((ROOT / "docs" / "origins").glob("*.md"))
HANDBOOK = sorted(path for path in (ROOT / "docs").rglob("*.md") if path not in ORIGINALS)
ALL = [*ORIGINALS, *HANDBOOK, *sorted(ROOT.glob("*.md"))]
TROUBLESHOOTING = ROOT / "docs" / "operate" / "troubleshooting.md"
BY_HANDLER = {DURATION, *(count.name for count in HANDLER_COUNTS)}
METRICS = {metric.name for metric in (*COUNTS, *LEVELS, *SPREADS)} | BY_HANDLER


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=name_of)


@cache
def prose(path: Path) -> str:
    """Without what stands between fences."""
    return re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


def code(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


class Row(dict[str, str]):
    """The cells of a line by the heads of their columns."""

    line: int
    section: str


def rows(path: Path) -> Iterator[Row]:
    heads: list[str] | None = None
    section = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            heads = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if heads is None:
            heads = cells
        elif not set(line) <= set("|- "):
            assert len(cells) == len(heads), f"{path.name}:{number} has {len(cells)} cells, not {len(heads)}"
            row = Row(zip(heads, cells, strict=True))
            row.line, row.section = number, section
            yield row


# Links, files and tests


@each(ALL)
def test_relative_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    local = [link.partition("#")[0] for link in links if "://" not in link]
    assert [link for link in local if link and not (path.parent / link).exists()] == []


@cache
def found_in(path: str) -> set[str]:
    """Those of a file, by reading it: `test_x`, and `TestGroup::test_x`."""
    if not (ROOT / path).is_file():
        return set()
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        above = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {above + each.name for each in inside if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return found


@each(ORIGINALS)
def test_every_test_that_is_named_exists(path: Path) -> None:
    named = [text for text in code(prose(path)) if text.startswith(("tests/", "test_"))]
    assert named
    missing = []
    for text in named:
        file, _, test = text.partition("::")
        if test not in found_in(file):
            missing.append(text)
    assert missing == []


@each(ORIGINALS)
def test_every_statement_of_an_original_has_a_test(path: Path) -> None:
    found = list(rows(path))
    assert len(found) > 10
    assert [row.line for row in found if "`tests/" not in row["test"]] == []


@each(ORIGINALS)
def test_every_file_in_which_something_lives_is_there(path: Path) -> None:
    for row in rows(path):
        files = [text for text in code(row.get("where it lives", "")) if re.fullmatch(r"[\w/*]+\.(py|lua)", text)]
        for file in files:
            # A script may stand behind another one without its folder.
            places = [SOURCE, SOURCE / "store" / "scripts" / "lua"]
            assert any(list(place.glob(file)) for place in places), f"{path.name}:{row.line}: {file}"


# Files that a reader makes.
NOT_FILES = {"first_agent.py", "noun_verb.lua", "store/scripts/lua/noun_verb.lua"}


@each([*HANDBOOK, *(path for path in sorted(ROOT.glob("*.md")) if path.name != "CHANGELOG.md")])
def test_every_file_that_is_named_exists(path: Path) -> None:
    places = [ROOT, SOURCE, SOURCE / "store" / "scripts" / "lua", SOURCE / "store" / "scripts" / "lua" / "lib"]
    named = {text for text in code(prose(path)) if re.fullmatch(r"[\w/]+\.(py|lua)", text)}
    assert sorted(file for file in named - NOT_FILES if not any((place / file).is_file() for place in places)) == []


@each([path for path in ALL if blocks(path, "python")])
def test_examples_can_be_parsed(path: Path) -> None:
    for block in blocks(path, "python"):
        first = block.splitlines()[0]
        margin = len(first) - len(first.lstrip())
        ast.parse("\n".join(line[margin:] for line in block.splitlines()))


# Settings

# Hyphenated words between backticks that are something else.
NOT_SETTINGS = {"redis-cli", "py-spy", "cleanup-leader", "agent-name", "later-first"}
# The server's own.
NOT_SETTINGS |= {"min-replicas-to-write", "min-replicas-max-lag", "maxmemory-policy"}
NOT_SETTINGS |= set(KINDS)


def is_setting(text: str) -> bool:
    """The whole key, or the end of one: those of a group are named by their last parts."""
    known = {*SETTINGS, *GROUPS}
    return any(key == text or key.endswith(f".{text}") for key in known)


def looks_like_a_setting(text: str) -> bool:
    words = text.partition(":")[0]
    return re.fullmatch(r"[a-z]+([.-][a-z]+)*", words) is not None and (words.startswith("redis.") or "-" in words)


@each(HANDBOOK)
def test_every_setting_that_is_named_exists(path: Path) -> None:
    named = [text.partition(":")[0] for text in code(prose(path)) if looks_like_a_setting(text)]
    assert [text for text in named if text not in NOT_SETTINGS and not is_setting(text)] == []


def reference() -> dict[str, str]:
    """The settings in the reference of the agents' document by their whole keys, with the defaults given there."""
    found = {}
    for row in rows(ROOT / "docs" / "origins" / "agents.md"):
        if not row.get("where it lives", "").startswith("key"):
            continue
        key, _, default = code(row["the document says"])[0].partition(": ")
        group = re.search(r"`(redis\.[a-z.-]+)\*`", row.section)
        above = "" if key.startswith("redis.") else group[1] if group else "redis.scheduler."
        found[above + key] = default
    return found


def test_the_reference_has_every_setting_with_its_default() -> None:
    told = {key: yaml.safe_load(default) for key, default in reference().items()}
    own = (
        "redis.connection.url", "recovery.", "schedules.", "results.", "limits.", "http.", "message.", "secrets.",
        "subprocess.",
    )  # fmt: skip
    assert told == {key: setting.default for key, setting in SETTINGS.items() if not key.startswith(own)}


def test_results_are_kept_and_limited_as_their_guide_says() -> None:
    guide = ROOT / "docs" / "guide" / "results.md"
    told = {code(row["setting"])[0]: int(row["default"].split()[0]) for row in rows(guide) if "setting" in row}
    assert told == {key: setting.default for key, setting in SETTINGS.items() if key.startswith("limits.")}
    assert SETTINGS["results.keep"].default == "10m"
    assert "10 minutes: `results.keep`" in prose(guide)
    assert SETTINGS["results.max"].default == 100_000
    assert "`results.max` outcomes (100 000)" in prose(guide)


def test_each_status_that_a_handle_can_have_is_told() -> None:
    told = [name for row in rows(ROOT / "docs" / "guide" / "results.md") for name in code(row.get("status", ""))]
    ended = ("succeeded", "failed", "cancelled", "unknown")
    assert sorted(told) == sorted([*(stage.value for stage in Stage if stage is not Stage.DEAD), *ended])


# Metrics


def metrics_in(path: Path) -> list[str]:
    # tocsin.patterns and tocsin.message.kafka are names of other things.
    name = r"tocsin\.(?!patterns\b|yaml\b|message\b)\w+\.\w+"
    return [text for text in code(prose(path)) if re.fullmatch(name, text)]


@each([*ORIGINALS, *HANDBOOK])
def test_every_metric_that_is_named_exists(path: Path) -> None:
    assert [name for name in metrics_in(path) if name not in METRICS] == []


def test_the_agents_document_names_every_metric_of_the_original() -> None:
    own = {"tocsin.scripts.reloads", "tocsin.scripts.evalFallbacks", "tocsin.claims.lost", "tocsin.clock.skew"}
    own |= {"tocsin.loop.blocked", "tocsin.loop.blockedSeconds"} | {spread.name for spread in SPREADS} | BY_HANDLER
    own |= {name for name in METRICS if name.startswith("tocsin.taskScheduler.")}
    assert set(metrics_in(ROOT / "docs" / "origins" / "agents.md")) == METRICS - own


@each(HANDBOOK)
def test_metrics_are_shown_by_prometheus_as_it_is_said(path: Path) -> None:
    shown = {level.name.lower().replace(".", "_") for level in LEVELS}
    shown |= {f"{count.name.lower().replace('.', '_')}_total" for count in COUNTS}
    named = [text for text in code(prose(path)) if text.startswith("tocsin_")]
    assert [name for name in named if name not in shown] == []
    assert bool(named) == (path == TROUBLESHOOTING)


# Commands


def is_command(word: str) -> bool:
    return re.fullmatch(r"[a-z]+", word) is not None


def commands_in(path: Path) -> list[list[str]]:
    inline = [text for text in code(prose(path)) if text.startswith("tocsin ")]
    fenced = [line.strip() for block in blocks(path, "sh") for line in block.splitlines()]
    return [text.split()[1:] for text in (*inline, *fenced) if text.startswith("tocsin ")]


def test_commands_are_found() -> None:
    assert ["jobs", "show", "ID"] in commands_in(TROUBLESHOOTING)


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run([*words, "--help"]) == 0, words
    return capsys.readouterr().out


@each(HANDBOOK)
def test_every_command_that_is_named_exists_with_its_options(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands_in(path):
        command, at = [], command_line
        for word in words:
            if not is_command(word):
                break
            assert word in at, f"tocsin {' '.join(words)}"
            command.append(word)
            at = at[word]
        told = help_of(command, capsys)
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert [option for option in options if option not in told] == [], words


@each(HANDBOOK)
def test_every_option_that_is_named_exists(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = ["", "worker", "workers", "doctor", "next", "dead list"]
    commands += ["queues list", "queues delete", "jobs list", "jobs remove"]
    told = "\n".join(help_of(command.split(), capsys) for command in commands)
    named = [text.split()[0] for text in code(prose(path)) if text.startswith("--")]
    assert [option for option in named if not re.search(rf"{option}\b", told)] == []


def test_the_redis_commands_of_the_agents_document_are_given() -> None:
    [block] = blocks(TROUBLESHOOTING, "sh")
    told = [" ".join(line.partition("#")[0].split()) for line in block.splitlines()]
    assert told == [
        "redis-cli zcard waiting",
        "redis-cli zcard working",
        "redis-cli zrange waiting 0 10 WITHSCORES",
        'redis-cli zscore waiting "agent-name"',
        "redis-cli get cleanup-leader",
    ]


# What webhooks says

WEBHOOKS = ROOT / "docs" / "guide" / "webhooks.md"


def test_each_field_that_a_request_may_have_is_told_and_no_other() -> None:
    assert tuple(re.findall(r"`\{run\.(\w+)\}`", prose(WEBHOOKS))) == FIELDS


def test_headers_that_are_told_as_ours_cannot_be_given() -> None:
    told = [name for row in rows(WEBHOOKS) if "header" in row for name in code(row["header"]) if name != "Content-Type"]
    assert len(told) > 5
    for name in told:
        with pytest.raises(InvalidArgument, match="is set when the request is sent"):
            check_header(name, "x")


# What troubleshooting says

BAD = [
    Snapshot(away=True, redis_breaker=Breaker.OPEN, acquisition_breaker=Breaker.OPEN, stuck=2),
    Snapshot(acquisition_breaker=Breaker.HALF_OPEN),
    Snapshot(ready=100, oldest_overdue_s=99.0, interval_s=1.0, capacity_per_cycle=5, permits_free=5, permits_total=5),
    Snapshot(enabled=False),
]


def test_the_words_of_log_and_health_are_those_that_are_quoted() -> None:
    text = re.sub(r"`[^`]*`", "", prose(TROUBLESHOOTING))
    reasons = "\n".join(reason for snapshot in BAD for reason in assess(snapshot).reasons)
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    quoted = [part.strip() for phrase in re.findall(r'"([^"\n]+)"', text) for part in phrase.split("…")]
    assert len(quoted) > 10
    # A state that stands alone belongs to the phrase before it.
    unknown = [part for part in quoted if part not in reasons and part not in source and part not in list(Breaker)]
    assert unknown == []


def test_each_reason_of_a_degraded_worker_is_told() -> None:
    told = "\n".join(row["reason"] for row in rows(TROUBLESHOOTING) if "reason" in row)
    quoted = [phrase.split("…") for phrase in re.findall(r'"([^"\n]+)"', told)]
    for snapshot in BAD:
        if snapshot.enabled:
            for reason in assess(snapshot).reasons:
                assert any(all(part.strip() in reason for part in parts) for parts in quoted), reason


def test_each_watchdog_signal_is_told() -> None:
    told = [row for row in rows(TROUBLESHOOTING) if "signal" in row]
    assert [code(row["signal"]) for row in told] == [[signal.value] for signal in Signal]
    assert all(row["means"] and row["do"] for row in told)


@pytest.mark.parametrize(
    ("symptom", "shows", "turns"),
    [
        (
            "High backlog",
            ["tocsin.scheduler.oldestOverdueSeconds", "twice the mean interval"],
            ["more workers", "redis.agent.max-concurrent-agents"],
        ),
        ("A circuit breaker trips", ["tocsin.circuitBreaker.trip", "redis_stall"], ["latency", "reachable"]),
        ("Zombies", ["tocsin workers", "`stuck`"], ["zombie-cleanup.threshold-ms", "run.cancelled"]),
        ("Slots are not filled", ["slot filling"], ["redis.agent.enabled-pattern", "redis.agent.disabled-pattern"]),
        ("Memory grows", ["MemoryError"], ["redis.agent.max-concurrent-agents", "batch-operations.batch-size"]),
    ],
)
def test_troubleshooting_says_what_to_turn_for_each_symptom(symptom: str, shows: list[str], turns: list[str]) -> None:
    [row] = [row for row in rows(TROUBLESHOOTING) if row.get("what", "").startswith(f"**{symptom}")]
    assert [text for text in shows if text not in row["how it shows"]] == []
    assert [text for text in turns if text not in row["what to do"]] == []


@pytest.mark.parametrize(
    "says",
    [
        ["redis.agent.max-concurrent-agents", "memory and network"],
        ["0 or less means no bound", "memory", "network", "tests", "something else limits the rate"],
        ["Raise `batch-operations.batch-size`", "the way to the server is slow"],
        ["many agents", "jitter.initial-registration-seconds"],
    ],
)
def test_tuning_names_the_keys_to_turn(says: list[str]) -> None:
    section = prose(TROUBLESHOOTING).partition("## Tuning\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("- ")]
    assert [line for line in lines if all(text in line for text in says)] != []
