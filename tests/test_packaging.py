"""What is packaged is what is on the disk, and everything is pinned."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, SETUPTOOLS = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]
SUPPORTED = ("3.11", "3.12")
UNPACKAGED = {"setup.sh"}  # for a checkout only


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def wanted() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for text in [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]]


def test_packages_are_the_directories_on_the_disk() -> None:
    on_disk = {path.parent for path in TOOLS.rglob("*.py")}
    names = {".".join(("inferops", *path.relative_to(TOOLS).parts)) for path in on_disk}
    assert set(SETUPTOOLS["packages"]) == names
    assert [path for path in on_disk if not (path / "__init__.py").exists()] == []


def test_package_data_reaches_every_other_file() -> None:
    files = {
        path.relative_to(TOOLS)
        for path in TOOLS.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and path.name not in UNPACKAGED
    }
    matched = {
        path.relative_to(TOOLS)
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in TOOLS.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    assert files == matched


@pytest.mark.parametrize("python", SUPPORTED)
def test_every_dependency_is_pinned_exactly_once_inside_its_range(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    pins = [pin for pin in constraints() if pin.marker is None or pin.marker.evaluate(environment)]
    names = [canonicalize_name(pin.name) for pin in pins]
    assert sorted(set(names)) == sorted(names)
    exact = {canonicalize_name(pin.name): str(pin.specifier) for pin in pins}
    assert [text for text in exact.values() if not re.fullmatch(r"==[0-9a-z.]+", text)] == []
    for need in wanted():
        if need.marker is None or need.marker.evaluate(environment):
            version = exact.get(canonicalize_name(need.name), "==nothing").removeprefix("==")
            assert version in need.specifier, f"{need} is pinned to {version}"


def test_the_running_environment_is_the_pinned_one() -> None:
    """Transitive dependencies too: what this interpreter has of them is what the constraints say."""
    pins = {canonicalize_name(p.name): p for p in constraints() if p.marker is None or p.marker.evaluate()}
    todo = [need for need in wanted() if need.name not in _apart()]
    seen: set[str] = set()
    while todo:
        need = todo.pop()
        name = canonicalize_name(need.name)
        if name in seen or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        assert name in pins, f"{name} is not in constraints.txt"
        found = distribution(name)
        assert found.version in pins[name].specifier, f"{name} is {found.version}, pinned {pins[name].specifier}"
        todo += [Requirement(text) for text in found.requires or []]
    assert {"anyio", "httpcore", "h11"} <= seen


def _apart() -> set[str]:
    """What `make setup` does not install."""
    apart = ("engine", "mutants")
    return {Requirement(text).name for extra in apart for text in PROJECT["optional-dependencies"][extra]}


def test_no_index_address_and_no_option_in_the_constraints() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|^\s*-[^ ]", text, re.M)


def test_every_dependency_says_why_it_is_there() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    for need in wanted():
        (line,) = [line for line in lines if re.match(rf' *"{re.escape(need.name)}[>=<]', line)]
        assert re.search(r"# .*\w", line), f"{need.name} has no comment"


def test_python_versions_agree() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    classified = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: Python ::" in text}
    assert classified == set(SUPPORTED)
    script = (ROOT / "tests" / "other_pythons.sh").read_text()
    assert f"supported=({' '.join(SUPPORTED)})" in script


def test_entry_points_exist() -> None:
    for target in PROJECT["scripts"].values():
        module, _, attribute = target.partition(":")
        assert callable(getattr(__import__(module, fromlist=[attribute]), attribute))


def test_license_is_named_and_there() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
