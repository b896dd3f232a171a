"""The documents are checked against the code: commands, settings, events, examples."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from inferops.cli import COMMANDS
from inferops.core.announce import MESSAGE_IDS, PRIORITIES
from inferops.core.schema import KEYS

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CLAUDE.md", ROOT / "plan.md", *DOCS]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_has_its_page_with_an_example_and_what_it_cannot_see(name: str) -> None:
    page = text(f"docs/{name}.md")
    assert page.startswith(f"# inferops {name}\n")
    assert re.search(rf"^    \$ inferops {name}", page, re.M), "no worked example"
    assert "## What it can't see" in page
    assert f"docs/{name}.md" in text("CLAUDE.md")
    assert f"inferops {name}" in text("README.md")


def test_claude_md_is_short_and_names_every_instrument() -> None:
    page = text("CLAUDE.md")
    assert len(page.encode()) < 20_000
    for file in sorted((ROOT / "tools" / "ops").glob("[a-z]*.py")):
        assert f"tools/ops/{file.name}" in page


def test_every_core_module_is_in_the_layout_or_older_than_it() -> None:
    named = text("CLAUDE.md")
    for group in re.findall(r"^\| (`.*?) \|", named, re.M):
        for path in re.findall(r"`(tools/[\w/.]+|tests/[\w/.]+)`", group):
            assert (ROOT / path).exists(), f"CLAUDE.md names {path}"


def test_the_settings_table_is_the_schema() -> None:
    page = text("docs/settings.md")
    rows = {m[1]: m for m in re.finditer(r"^\| `([\w.]+)` \| `(--[\w-]+)` \| (.+?) \| (.+?) \|$", page, re.M)}
    assert set(rows) == set(KEYS)
    for name, key in KEYS.items():
        assert rows[name][2] == key.flag
        assert rows[name][4] == key.help
        if isinstance(key.default, float):
            assert float(rows[name][3]) == key.default
        elif key.default is msgspec.NODEFAULT:
            assert rows[name][3] == "required"


def test_the_event_table_is_the_code() -> None:
    rows = dict(re.findall(r"^\| ([A-Z]+) \| ((?:alert|warn|note)(?:, warn)?) \|", text("docs/sentinel.md"), re.M))
    assert set(rows) == set(MESSAGE_IDS)
    assert set(PRIORITIES) == {"alert", "warn", "note"}
    assert len(set(MESSAGE_IDS.values())) == len(MESSAGE_IDS)
    policy = "".join(
        (ROOT / "tools" / p).read_text()
        for p in (
            "core/wedge.py",
            "core/armed.py",
            "core/binding.py",
            "core/lasting.py",
            "core/idle.py",
            "ops/sentinel.py",
        )
    )
    told = set(re.findall(r"(?:tell\(|Event\()\s*\"([A-Z]+)\",\s*\"(\w+)\"", policy))
    for kind, level in told:
        assert level in rows[kind], f"{kind} is told as {level}, the table says {rows[kind]}"


def test_the_replay_example_is_what_it_prints() -> None:
    page = text("docs/sentinel.md")
    joined = page.replace(" \\\n        ", " ")
    block = re.search(r"^    \$ inferops (sentinel replay .*?)\n((?:    .*\n)+)", joined, re.M)
    assert block is not None
    argv = [sys.executable, "tools", *shlex.split(block[1])]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert [line.strip() for line in done.stdout.splitlines()] == [line.strip() for line in block[2].splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_files_named_in_a_page_exist(page: Path) -> None:
    said = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", said) + re.findall(r"`(docs/[\w.-]+\.md)`", said):
        base = page.parent if not target.startswith("docs/") else ROOT
        assert (base / target).exists(), f"{page.name} names {target}"


def test_the_readme_shows_the_demos_own_lines() -> None:
    demo = text("tests/system/demo.py") + text("tests/system/timeline.py")
    shown = re.findall(r"^ *[\d.]+ s  ok  (.*?)(?:  .*)?$", text("README.md"), re.M)
    assert len(shown) >= 15
    for kind in ("ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE", "RESTARTED"):
        assert any(line.startswith(kind) for line in shown), f"README's demo output lacks {kind}"
        assert f'"{kind}"' in demo
