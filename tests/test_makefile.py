"""Set-up and make targets, run for real in a small checkout of its own (the real scripts, a package with no
dependencies)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534
PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "inferops"
version = "0"
[project.optional-dependencies]
dev = []
engine = []
[tool.setuptools]
package-dir = { inferops = "tools" }
packages = ["inferops"]
"""
USED = ("bash", "cat", "dirname", "env", "flock", "id", "make", "sed", "grep", "expand", "mktemp", "sha256sum", "tee")


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A checkout that any user may read (pytest's own directories are closed)."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        for part in ("Makefile", "tools/setup.sh", "tools/__init__.py", "tests/other_pythons.sh", ".ci/run"):
            (path / part).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / part, path / part)
        (path / "pyproject.toml").write_text(PYPROJECT)
        (path / "constraints.txt").write_text("")
        yield path


def run(checkout: Path, *command: str, nobody: bool = False, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in the checkout, without what an outer make or a person has set; `nobody`: without root's rights."""
    keep = {
        k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("VENV", "LLAMA_SERVER", "MODEL")
    }
    env = {**keep, "PYTHON": sys.executable, **environ}
    if nobody and os.geteuid() == 0:
        command = (_real("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command)
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=110, check=False)


def _real(tool: str) -> str:
    found = shutil.which(tool)
    assert found, f"install {tool}"
    return found


@pytest.fixture
def bare_path(checkout: Path) -> str:
    """A PATH with what the scripts run, and neither sudo nor gdb."""
    binaries = checkout / "bin"
    binaries.mkdir()
    for tool in (*USED, "apt-get", "gcc", "pkg-config", "systemctl", "dbus-daemon", "ss", "mount", "unshare", "git"):
        (binaries / tool).symlink_to(_real(tool))
    return str(binaries)


def test_help_is_the_default_and_names_the_targets(checkout: Path) -> None:
    done = run(checkout, "make")
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[:9] == ["help", "setup", "demo", "test", "test-other", "lint", "bench", "prove", "mutants"]


def test_setup_makes_the_venv_once_and_again_when_what_it_is_made_from_changes(checkout: Path) -> None:
    first = run(checkout, "make", "setup")
    assert first.returncode == 0, first.stderr
    assert first.stderr.splitlines()[-1] == "setup: done: .venv/bin/inferops"
    assert first.stdout == ""
    import_it = [str(checkout / ".venv/bin/python"), "-E", "-c", "import inferops; print(inferops.__file__)"]
    origin = subprocess.run(import_it, cwd="/", capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    assert Path(origin).samefile(checkout / "tools" / "__init__.py")

    again = run(checkout, "make", "setup")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")

    (checkout / "constraints.txt").write_text("# changed\n")
    changed = run(checkout, "make", "setup")
    assert "installing inferops[dev,sim]" in changed.stderr
    assert "making .venv" not in changed.stderr

    (checkout / ".venv" / "made-by").write_text("/usr/bin/python3 3.11.0\n")
    remade = run(checkout, "make", "setup")
    assert remade.stderr.startswith("setup: making .venv with ")

    engine = run(checkout, "make", "setup-engine", LLAMA_SERVER="/x", MODEL="/y")
    assert engine.stderr == ""  # one's own server and model: no engine extra
    engine = run(checkout, "make", "setup-engine", LLAMA_SERVER="/x")
    assert "installing inferops[engine]" in engine.stderr


def test_pip_that_fails_is_told_and_leaves_no_stamp(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text(
        PYPROJECT.replace("dev = []", 'dev = ["inferops-no==1"]').replace(">=77", "")
    )
    (checkout / "constraints.txt").write_text("inferops-no==2\n")  # contradicts: no index is asked
    done = run(checkout, "tools/setup.sh", "dev")
    assert done.returncode == 3
    assert "pip failed (all of it: .venv/setup.log)  -> put that right, then: make setup" in done.stderr
    assert not (checkout / ".venv" / "has-dev").exists()


def test_a_directory_that_is_no_venv_is_left_alone(checkout: Path) -> None:
    (checkout / "precious").mkdir()
    (checkout / "precious" / "file").touch()
    done = run(checkout, "tools/setup.sh", "dev", VENV="precious")
    assert done.returncode == 3
    assert done.stderr == "setup: precious exists and is no venv  -> move it away, or: make setup VENV=another\n"
    assert (checkout / "precious" / "file").exists()


def test_an_interpreter_that_is_too_old_or_absent_is_told(checkout: Path) -> None:
    old = checkout / "python3.9"
    old.write_text("#!/bin/sh\necho /usr/bin/python3.9 3 9 2\n")
    old.chmod(0o755)
    done = run(checkout, "tools/setup.sh", "dev", PYTHON=str(old))
    assert done.returncode == 3
    assert done.stderr == f"setup: {old} is Python 3.9, 3.11 or later is needed  -> make setup PYTHON=python3.11\n"
    done = run(checkout, "tools/setup.sh", "dev", PYTHON="/nowhere/python3")
    assert done.returncode == 3
    assert done.stderr.startswith("setup: /nowhere/python3 does not run  -> install Python 3.11 or later")
    assert not (checkout / ".venv").exists()


def test_a_missing_package_is_one_line_with_the_command(checkout: Path, bare_path: str) -> None:
    python = checkout / "python"  # this one may be in a home that nobody can't read
    python.write_text(f"#!/bin/sh\necho {python} 3 12 3\n")
    python.chmod(0o755)
    done = run(checkout, "tools/setup.sh", "dev", nobody=True, PATH=bare_path, PYTHON=str(python))
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    command = "sudo apt-get update && sudo apt-get install -y --no-install-recommends "
    assert done.stderr.startswith(f"setup: missing system packages  -> run: {command}")
    assert done.stderr.split()[done.stderr.split().index("--no-install-recommends") + 1 :] == ["gdb"]


@pytest.mark.parametrize("target", ["test", "demo", "bench", "prove"])
def test_without_root_and_sudo_nothing_starts_and_it_says_why(checkout: Path, bare_path: str, target: str) -> None:
    done = run(checkout, "make", target, nobody=True, PATH=bare_path)
    assert done.returncode == 2  # make's own; the script's is in the line below
    assert done.stderr.startswith(
        "setup: no root: a systemd of one's own (tests/system/box) takes it  -> run: sudo make"
    )
    assert "Error 3" in done.stderr
    assert not (checkout / ".venv").exists()


def test_an_interpreter_that_is_not_here_is_named(checkout: Path, bare_path: str) -> None:
    for tool in ("ls", "sort"):
        (Path(bare_path) / tool).symlink_to(_real(tool))
    venv = str(Path(sys.executable).parents[1])
    done = run(checkout, "tests/other_pythons.sh", PATH=bare_path, PYENV_ROOT=str(checkout), VENV=venv)
    first = "{}.{}".format(*sys.version_info)
    others = " ".join(version for version in ("3.11", "3.12") if version != first)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"test-other: the quick tests passed on: no other; not found here: {others}; {venv} is {first}\n"
    )


def test_ci_is_make_test_and_passes_its_code_on(checkout: Path) -> None:
    ok = run(checkout, ".ci/run", MAKEFLAGS="-n")
    assert ok.returncode == 0
    assert "pytest tests" in ok.stdout
    bad = run(checkout, ".ci/run", PYTHON="/nowhere/python3")
    assert bad.returncode == 2
    assert "/nowhere/python3 does not run" in bad.stderr


def test_clean_keeps_results_and_strangers(checkout: Path) -> None:
    for name in (".venv-3.12/x", "build/x", "results/run/manifest", "tools/__pycache__/x", "other/x"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).touch()
    assert run(checkout, "make", "clean").returncode == 0
    left = {str(path.relative_to(checkout)) for path in checkout.rglob("*") if path.is_file()}
    assert {"results/run/manifest", "other/x", "tools/__init__.py"} <= left
    assert not [name for name in left if name.startswith((".venv", "build", "tools/__pycache__"))]
