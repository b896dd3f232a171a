"""The command line: the table, what it imports, and what a person's mistakes look like."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from inferops.cli import COMMANDS, SENTINEL_COMMANDS

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("asyncio", "httpx", "jq", "msgspec", "orjson", "prometheus_client", "psutil", "pyjq", "systemd")
EVERY = {f"inferops {name}": row for name, row in COMMANDS.items() if name != "sentinel"} | {
    f"inferops sentinel {name}": row for name, row in SENTINEL_COMMANDS.items()
}


def run(*args: str, code: str = "from inferops.cli import main; sys.exit(main())") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; sys.argv[0] = 'inferops'; {code}", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("args", [["--help"], ["sentinel", "--help"], ["--version"]])
def test_help_is_cheap(args: list[str]) -> None:
    code = "from inferops.cli import main; code = main(); print(*sys.modules, file=sys.stderr); sys.exit(code)"
    done = run(*args, code=code)
    assert done.returncode == 0
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "click" in loaded
    assert not loaded & set(HEAVY)
    assert not [name for name in done.stderr.split() if name.startswith(("inferops.ops", "inferops.load"))]


def test_help_lists_every_command_with_its_line() -> None:
    for table, args in ((COMMANDS, ["--help"]), (SENTINEL_COMMANDS, ["sentinel", "--help"])):
        text = " ".join(run(*args).stdout.split())
        for name, (_, line) in table.items():
            assert f" {name} {line}" in text


@pytest.mark.parametrize("command", EVERY)
def test_every_command_is_there_and_has_help_for_itself_and_its_options(command: str) -> None:
    module, _, attribute = EVERY[command][0].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, click.Command)
    done = run(*command.split()[1:], "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: {command} ")
    assert found.help
    assert not [p.name for p in found.params if isinstance(p, click.Option) and not p.help and not p.hidden]


@pytest.mark.parametrize(
    ("args", "stderr"),
    [
        ([], "inferops: Missing command.  -> inferops --help"),
        (["sentinle"], "inferops: no such command: sentinle  -> did you mean sentinel? (inferops --help)"),
        (
            ["\x1b[31m"],
            "inferops: no such command: \\x1b[31m  -> one of: sentinel, capture, settings, sim, load (inferops --help)",
        ),
        (["--nope"], "inferops: No such option '--nope'.  -> inferops --help"),
        (["sentinel"], "inferops sentinel: Missing command.  -> inferops sentinel --help"),
        (
            ["sentinel", "rearmm"],
            "inferops sentinel: no such command: rearmm  -> did you mean rearm? (inferops sentinel --help)",
        ),
        (
            ["sentinel", "replay"],
            "inferops sentinel replay: Missing argument 'TAPE'.  -> inferops sentinel replay --help",
        ),
    ],
)
def test_a_usage_error_is_one_line_and_exit_2(args: list[str], stderr: str) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    # click's own wording of an unknown option has changed between its versions
    assert done.stderr.replace("option: --nope", "option '--nope'.") == stderr + "\n"


def test_an_error_inside_a_command_names_the_command(tmp_path: Path) -> None:
    done = run("sentinel", "replay", str(tmp_path / "none.jsonl"))
    assert done.returncode == 2
    assert done.stderr.startswith("inferops sentinel replay: ")
    assert done.stderr.count("\n") == 1


def test_a_missing_module_is_blind_with_what_to_do() -> None:
    code = "import inferops.cli as c; c.COMMANDS['gone'] = ('inferops.ops.gone:main', 'x'); sys.exit(c.main())"
    done = run("gone", code=code)
    assert done.returncode == 3
    assert done.stderr == (
        "inferops gone: cannot import inferops.ops.gone: No module named 'inferops.ops.gone'"
        "  -> run make setup, and use .venv/bin/inferops\n"
    )
    assert re.search(r"^  gone +x$", run("--help", code=code).stdout, re.M)


def test_the_sentinels_own_entry_point_is_the_same_group() -> None:
    code = "sys.argv[0] = 'inferops-sentinel'; from inferops.cli import sentinel; sys.exit(sentinel())"
    done = run("--help", code=code)
    assert done.stdout.startswith("Usage: inferops-sentinel ")
    assert run("rnu", code=code).stderr == (
        "inferops-sentinel: no such command: rnu  -> did you mean run? (inferops-sentinel --help)\n"
    )


def test_a_bare_checkout_runs_from_any_directory_and_is_not_an_installed_inferops(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tools" / "__init__.py").write_text('"""X."""\n\n__version__ = "0.0.bare"\n')
    command = [sys.executable, str(tmp_path / "tools"), "--version"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "inferops 0.0.bare\n", "")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("inferops: cannot write the report: No space left on device")


def test_without_dependencies_a_bare_checkout_says_what_to_do() -> None:
    command = [sys.executable, "-S", "-E", str(ROOT / "tools"), "--help"]  # -S: no site-packages, so no click
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stderr == (
        "inferops: cannot start: No module named 'click'  -> run make setup, and use .venv/bin/inferops\n"
    )


def test_a_reader_that_left_is_quiet() -> None:
    command = f"{sys.executable} -m inferops --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 141)  # 0: it had written all before `true` ended
    assert done.stderr == ""


def test_the_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "inferops.__version__"}
    assert run("--version").stdout == f"inferops {importlib.import_module('inferops').__version__}\n"
