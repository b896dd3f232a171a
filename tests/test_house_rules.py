"""The rules every file keeps; each rule is a function from a path and its text to what is wrong, with a sample that
breaks it."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 300
INSTRUMENTS = ("ops", "e2e")
IO_MODULES = {"asyncio", "click", "httpx", "os", "shutil", "signal", "socket", "subprocess", "systemd", "time"}


def sources() -> list[Path]:
    return sorted(path for top in ("tools", "tests") for path in (ROOT / top).rglob("*.py"))


def kind(path: Path) -> str:
    """ "ops" for tools/ops/x.py, "" for tools/x.py, "tests" for a test."""
    parts = path.relative_to(ROOT).parts
    return parts[0] if parts[0] != "tools" else parts[1] if len(parts) > 2 else ""


def imports(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def is_instrument(path: Path) -> bool:
    return kind(path) in INSTRUMENTS and path.name != "__init__.py"


# --- the rules


def under_300_lines(path: Path, text: str) -> str:
    lines = text.count("\n")
    return f"{lines} lines, {MAX_LINES - 1} at most" if kind(path) != "tests" and lines >= MAX_LINES else ""


def instruments_say_what_they_are_for(path: Path, text: str) -> str:
    if not is_instrument(path):
        return ""
    docstring = ast.get_docstring(ast.parse(text)) or ""
    missing = [word for word in ("Prevents:", "Answers:", "Blind to:") if not re.search(f"^{word} ", docstring, re.M)]
    return f"docstring lacks {', '.join(missing)}" if missing else ""


def instruments_mark_their_edge(path: Path, text: str) -> str:
    io = {name.partition(".")[0] for name in imports(text)} & IO_MODULES
    lacking = is_instrument(path) and io and not re.search(r"^# --- edge$", text, re.M)
    return f"imports {', '.join(sorted(io))} and has no '# --- edge'" if lacking else ""


def instruments_import_core_only(path: Path, text: str) -> str:
    wrong = [name for name in imports(text) if re.match(r"inferops\.(?!core\b|__version__)", name)]
    return f"imports {', '.join(wrong)}, expected only core" if is_instrument(path) and wrong else ""


def core_imports_core_only(path: Path, text: str) -> str:
    allowed = re.compile(r"inferops$|inferops\.core\b|inferops\.__version__$")
    wrong = [name for name in imports(text) if name.startswith("inferops") and not allowed.match(name)]
    return f"imports {', '.join(wrong)}" if kind(path) == "core" and wrong else ""


def imports_are_absolute_and_from_inferops(path: Path, text: str) -> str:
    wrong = [name for name in imports(text) if re.match(r"tools\b|src\b", name)]
    if kind(path) != "tests":
        wrong += [name for name in imports(text) if name.startswith(".")]
    return f"imports {', '.join(wrong)}" if wrong else ""


def no_killing_by_name_and_no_shell(path: Path, text: str) -> str:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg == "shell":
            found |= {"shell="} if getattr(node.value, "value", True) else set()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and path != Path(__file__):
            found |= set(re.findall(r"\b(pkill|pgrep|killall)\b", node.value))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.system", "os.popen"):
            found.add(ast.unparse(node))
    return f"uses {', '.join(sorted(found))}" if found else ""


def no_fixed_name_in_tmp(path: Path, text: str) -> str:
    if kind(path) == "tests":
        return ""
    found = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"/(var/)?tmp/\w", node.value)
    ]
    return f"a fixed name: {', '.join(found)}" if found else ""


def no_pytest_skip(path: Path, text: str) -> str:
    names = {ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    wrong = sorted(names & {"pytest.skip", "pytest.mark.skip", "pytest.mark.skipif", "pytest.importorskip"})
    return f"{', '.join(wrong)}: a skip is no pass" if wrong else ""


Rule = Callable[[Path, str], str]
GOOD = '"""X.\n\nPrevents: a\nAnswers: b\nBlind to: c\n"""\n'
BREAKS: dict[Rule, tuple[str, str]] = {  # rule -> a file that breaks it and nothing else it needs to be
    under_300_lines: ("tools/core/x.py", "x = 1\n" * 300),
    instruments_say_what_they_are_for: ("tools/ops/x.py", '"""X.\n\nPrevents: a\nAnswers: b\n"""\n'),
    instruments_mark_their_edge: ("tools/ops/x.py", GOOD + "import click\n"),
    instruments_import_core_only: ("tools/ops/x.py", GOOD + "from inferops.ops import capture\n"),
    core_imports_core_only: ("tools/core/x.py", "def f():\n    from inferops.ops.capture import main\n"),
    imports_are_absolute_and_from_inferops: ("tests/test_x.py", "from tools.core import verdict\n"),
    no_killing_by_name_and_no_shell: ("tests/test_x.py", "run('pkill -f x')\n"),
    no_fixed_name_in_tmp: ("tools/core/x.py", "P = '/tmp/x'\n"),
    no_pytest_skip: ("tests/test_x.py", "import pytest\npytest.skip('x')\n"),
}


@pytest.mark.parametrize("rule", BREAKS, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    files = sources()
    assert len(files) > 20
    wrong = {str(path.relative_to(ROOT)): found for path in files if (found := rule(path, path.read_text()))}
    assert wrong == {}


@pytest.mark.parametrize("rule", BREAKS, ids=lambda rule: rule.__name__)
def test_the_rule_sees_what_breaks_it(rule: Rule) -> None:
    name, text = BREAKS[rule]
    assert rule(ROOT / name, text) != ""


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (imports_are_absolute_and_from_inferops, "tools/core/x.py", "from . import verdict\n"),
        (no_killing_by_name_and_no_shell, "tools/ops/x.py", "import subprocess\nsubprocess.run('x', shell=True)\n"),
        (no_killing_by_name_and_no_shell, "tools/ops/x.py", "import os\nos.system('x')\n"),
        (instruments_mark_their_edge, "tools/e2e/x.py", "import os.path\n"),
        (no_pytest_skip, "tests/test_x.py", "import pytest\n@pytest.mark.skipif(True)\ndef test(): ...\n"),
    ],
)
def test_a_rule_sees_its_other_forms(rule: Rule, name: str, text: str) -> None:
    assert rule(ROOT / name, text) != ""


def test_nothing_that_is_tracked_is_a_log_or_built() -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    tracked = done.stdout.split("\0")
    assert len(tracked) > 1
    assert [name for name in tracked if re.search(r"\.log$|\.pyc$|(^|/)(build|\.venv[^/]*)/", name)] == []


def test_scripts_are_strict_and_executable() -> None:
    scripts = [ROOT / ".ci" / "run", *(ROOT / "tools").rglob("*.sh"), *(ROOT / "tests").glob("*.sh")]
    assert len(scripts) >= 3
    for path in scripts:
        assert path.read_text().startswith("#!/bin/bash\n"), path
        assert "\nset -euo pipefail\n" in path.read_text(), path
        assert path.stat().st_mode & 0o111, path
