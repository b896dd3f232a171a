"""`make mutants`: is every line of the wedge policy held by a test? ARGS='wedge idle' looks at those modules only.

mutmut plants one fault at a time (a comparison turned, a number raised, an argument left out) into a copy of the policy
and runs the policy's quick tests on it. A mutant that mypy --strict refuses is caught too: `make lint` is a test. What
survives is either a hole in the tests or no fault at all; survivors.toml names the latter, each with why. Numbers and
flags outside functions (thresholds, defaults), which mutmut leaves alone, are mutated by its operators here.

Exit 0: every survivor is listed and every listed one still survives; 1: not so; 2: usage; 3: nothing could be shown.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
ACCEPTED = Path(__file__).with_name("survivors.toml")
CORE = Path("inferops/core")
ROOTS = ("wedge", "budget")  # the policy is what these two import, pure or data
NOT_POLICY = ("state", "verdict")  # files and errors, which the ledger needs
QUICK = ("test_wedge*.py", "test_told.py", "test_tapes.py", "test_budget.py", "test_replay.py", "test_field_cases.py")
SLOW = ("test_wedge_properties.py",)
RUN_MUTMUT = "from mutmut.__main__ import cli; cli()"
# A mutant that loops for ever is one too many; the slowest test takes 0.2 s.
TEST_S = 60
TOLD_EVERY_S = 30.0
WORKERS = os.environ.get("WORKERS") or "1"
CAUGHT = ("killed", "timeout", "type")


class Unshown(Exception):
    """The mutants could not be run, so nothing is shown."""


class Mutant(NamedTuple):
    """One planted fault. `function` is "" outside of any; `was` and `now` are the lines that differ, stripped."""

    file: str
    function: str
    was: str
    now: str


@dataclass(frozen=True)
class Outcome:
    """How each mutant ended: killed, survived, untested, timeout, type (refused by mypy), or broken."""

    ended: list[tuple[Mutant, str]]

    def survivors(self) -> set[Mutant]:
        return {mutant for mutant, how in self.ended if how not in CAUGHT}


def policy(core: Path) -> list[str]:
    """Module names of the policy: what ROOTS import of `core`, and what those import."""
    found: set[str] = set()
    todo = list(ROOTS)
    while todo:
        name = todo.pop()
        if name in found or name in NOT_POLICY:
            continue
        found.add(name)
        for node in ast.walk(ast.parse((core / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("inferops.core"):
                module = (node.module or "").removeprefix("inferops.core").removeprefix(".")
                todo += [module] if module else [alias.name for alias in node.names]
    return sorted(found)


def difference(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """The lines of `old` that are not in `new`, and the other way round, stripped, a space between lines."""
    lines = list(difflib.ndiff(list(old), list(new)))
    return (
        " ".join(line[2:].strip() for line in lines if line.startswith("- ")),
        " ".join(line[2:].strip() for line in lines if line.startswith("+ ")),
    )


def function_name(mangled: str) -> str:
    """`x_moved__mutmut_1` → `moved`, `xǁStateǁpid__mutmut_orig` → `State.pid`."""
    return mangled.partition("__mutmut_")[0].removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")


def ended_in(file: str, mutated: str, spans: dict[str, Sequence[int]], codes: dict[str, Any]) -> Outcome:
    """What mutmut found in one file: its mutated text, the lines of each copy of a function in it (from, to), and how
    pytest ended on each mutant. Raises Unshown for a mutant that was not run."""
    lines = mutated.splitlines()

    def source(name: str) -> list[str]:
        first, last = spans[name]
        return [line.replace(name, function_name(name).rpartition(".")[2]) for line in lines[first - 1 : last]]

    how = {0: "survived", 1: "killed", 3: "killed", 33: "untested", 37: "type", 36: "timeout", 24: "timeout",
           -24: "timeout", -9: "timeout", 152: "timeout", 255: "timeout"}  # fmt: skip
    ended = []
    for key, code in codes.items():
        name = key.rpartition(".")[2]
        if code is None:
            raise Unshown(f"{key} was not run")
        was, now = difference(source(name.partition("__mutmut_")[0] + "__mutmut_orig"), source(name))
        ended.append((Mutant(file, function_name(name), was, now), how.get(code, "broken")))
    return Outcome(ended)


def accepted(text: str) -> dict[Mutant, str]:
    """The listed survivors with why each is no fault. Raises Unshown for an entry that lacks something."""
    listed: dict[Mutant, str] = {}
    for group in tomllib.loads(text).get("equivalent", []):
        why = group.get("why", "")
        for row in group.get("mutants", []):
            if not why or len(row) != len(Mutant._fields) or not all(isinstance(part, str) for part in row):
                raise Unshown(f"survivors.toml: expected why, and [file, function, was, now], got {row!r}")
            listed[Mutant(*row)] = why
    return listed


def row(mutant: Mutant) -> str:
    """A mutant as a row of survivors.toml."""
    return "  [" + ", ".join(json.dumps(part, ensure_ascii=False) for part in mutant) + "],"


# --- edge


def copied(work: Path, modules: Sequence[str]) -> None:
    """The package under its imported name, the tests, and what mutmut is to do with them."""
    caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "tools", work / "inferops", ignore=caches)
    for name in ("data", "system"):  # test_field_cases.py names tests of the latter
        shutil.copytree(CHECKOUT / "tests" / name, work / "tests" / name, ignore=caches)
    for path in (CHECKOUT / "tests").glob("*.py"):
        shutil.copy(path, work / "tests")
    files = [str(CORE / f"{name}.py") for name in modules]
    # no-redef: each copy of an __init__ that mutmut makes declares the attributes again
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-warn-unused-ignores", "--disable-error-code=no-redef",
            "--follow-imports=silent", "--config-file=", "-O", "json"]  # fmt: skip
    settings = {
        "source_paths": ["inferops"],
        "only_mutate": files,
        "pytest_add_cli_args_test_selection": tests(work),
        "type_check_command": [*mypy, *files],
        "track_dependencies": False,
        "use_git_change_detection": False,
    }
    rows = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    pytest = ['addopts = "--import-mode=importlib -p no:cacheprovider"', 'pythonpath = ["."]', f"timeout = {TEST_S}"]
    text = "\n".join(["[tool.mutmut]", *rows, "[tool.pytest.ini_options]", *pytest, ""])
    (work / "pyproject.toml").write_text(text)


def tests(work: Path) -> list[str]:
    """The quick tests of the policy, those with the narrowest failures first."""
    found = [path.name for pattern in QUICK for path in sorted((work / "tests").glob(pattern))]
    return [f"tests/{name}" for name in found if name not in SLOW]


def run(argv: Sequence[str], work: Path, told: Callable[[str], None]) -> int:
    """Runs a command, `told` gets each line of it; its exit code. It and all that it started have ended when this is
    left, however it is left."""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(argv, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                told(line.strip())
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not reaped: the group's number stays ours
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


class Progress:
    """Tells now and then how far it is, and keeps the last lines for when it fails."""

    def __init__(self, what: str) -> None:
        self.what, self.last, self.next_t = what, collections.deque[str](maxlen=8), time.monotonic() + TOLD_EVERY_S

    def __call__(self, line: str) -> None:
        self.last.append(line)
        far = re.search(r"\b\d+/\d+\b", line)
        if far is not None and time.monotonic() >= self.next_t:
            self.next_t = time.monotonic() + TOLD_EVERY_S
            print(f"mutants: {self.what}: {far.group()}", file=sys.stderr, flush=True)


def functions(work: Path, modules: Sequence[str]) -> Outcome:
    """Every mutant that mutmut makes inside functions. Raises Unshown if it fails."""
    progress = Progress("in functions")
    code = run([sys.executable, "-c", RUN_MUTMUT, "run", f"--max-children={WORKERS}"], work, progress)
    if code != 0:
        raise Unshown(f"mutmut ended {code}: " + "; ".join(line for line in progress.last if line))
    ended = []
    for name in modules:
        path = work / "mutants" / CORE / f"{name}.py"
        codes = json.loads(Path(f"{path}.meta").read_text())["exit_code_by_key"]
        spans = json.loads(Path(f"{path}.spans").read_text())["spans"]
        ended += ended_in(path.name, path.read_text(), spans, codes).ended
    return Outcome(ended)


def outside(path: Path) -> Iterator[tuple[Mutant, str]]:
    """Mutants of the numbers and flags outside functions, each with the whole mutated text."""
    import libcst
    from mutmut.mutation.file_mutation import create_mutations, deep_replace

    text = path.read_text()
    with contextlib.chdir(path.parents[2]):  # where the settings of mutmut are
        module, mutations, _, _ = create_mutations(str(path), text)
    for one in mutations:
        inside = isinstance(one.contained_by_top_level_function, libcst.FunctionDef)
        kinds = (libcst.BaseNumber, libcst.Name, libcst.UnaryOperation, libcst.BinaryOperation)
        if inside or not isinstance(one.original_node, kinds):
            continue
        mutated = deep_replace(module, one.original_node, one.mutated_node)
        assert isinstance(mutated, libcst.Module)
        was, now = difference(text.splitlines(), mutated.code.splitlines())
        if not was.startswith(("@", "class ")):
            yield Mutant(path.name, "", was, now), mutated.code


def thresholds(work: Path, modules: Sequence[str]) -> Outcome:
    """Every mutant outside functions. Raises Unshown if the tests fail without one."""
    paths = [work / CORE / f"{name}.py" for name in modules]
    planted: list[tuple[Path, Mutant | None, str]] = [(paths[0], None, paths[0].read_text())]
    planted += [(path, mutant, text) for path in paths for mutant, text in outside(path)]
    progress = Progress("outside functions")
    ended: list[tuple[Mutant, str]] = []
    for number, (path, mutant, text) in enumerate(planted):
        original = path.read_text()
        path.write_text(text)
        code = run([sys.executable, "-m", "pytest", "-x", "-q", *tests(work)], work, progress)
        path.write_text(original)
        progress(f"{number}/{len(planted)}")
        if mutant is not None:
            ended.append((mutant, "survived" if code == 0 else "killed"))
        elif code != 0:
            raise Unshown("the tests fail without a mutant: " + "; ".join(line for line in progress.last if line))
    return Outcome(ended)


def report(outcome: Outcome, listed: dict[Mutant, str], seconds: float) -> int:
    """Prints figures by file, what survives unlisted and what is listed and does not; 0 where there is none of both."""
    survivors = outcome.survivors()
    print(f"{'file':14}{'mutants':>9}{'killed':>9}{'by mypy':>9}{'timeout':>9}{'survive':>9}{'listed':>9}")
    for file in sorted({mutant.file for mutant, _ in outcome.ended}):
        hows = Counter(how for mutant, how in outcome.ended if mutant.file == file)
        left = [mutant for mutant, how in outcome.ended if mutant.file == file and mutant in survivors]
        figures = [sum(hows.values()), hows["killed"], hows["type"], hows["timeout"], len(left),
                   sum(mutant in listed for mutant in left)]  # fmt: skip
        print(f"{file:14}" + "".join(f"{figure:9}" for figure in figures))
    new, stale = sorted(survivors - listed.keys()), sorted(listed.keys() - survivors)
    for title, mutants in (("survives, and is not listed:", new), ("listed, and does not survive (stale):", stale)):
        for mutant in mutants:
            print(f"{title}\n{row(mutant)}")
    print(f"mutants: {len(outcome.ended)} in {seconds:.0f} s: {sum(h in CAUGHT for _, h in outcome.ended)} caught, "
          f"{len(survivors)} survivors, {len(new)} of them not explained, {len(stale)} stale entries")  # fmt: skip
    return 1 if new or stale else 0


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known = policy(CHECKOUT / "tools" / "core")
    if unknown := [name for name in argv if name not in known]:
        print(f"mutants: no module {unknown[0]!r} of the policy; known: {', '.join(known)}", file=sys.stderr)
        return 2
    modules, began = list(argv) or known, time.monotonic()
    try:
        listed = {m: why for m, why in accepted(ACCEPTED.read_text()).items() if m.file.removesuffix(".py") in modules}
        with tempfile.TemporaryDirectory(prefix="mutants-") as name:
            work = Path(name)
            copied(work, modules)
            outcome = Outcome(functions(work, modules).ended + thresholds(work, modules).ended)
    except (Unshown, OSError, ValueError) as e:
        print(f"mutants: {e}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    if not outcome.ended:
        print("mutants: there was none", file=sys.stderr)
        return 3
    return report(outcome, listed, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
