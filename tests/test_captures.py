"""The directory of a capture and its retention: private, whole, never through a symlink, never a stranger's."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferops.core import captures
from inferops.core.captures import Folder, Manifest, Writer
from inferops.core.verdict import Refused

# --- the directory


def manifest(**changes: Any) -> Manifest:
    given: dict[str, Any] = {
        "unit": "x.service",
        "pid": 1,
        "wall": 1000.0,
        "made": "then",
        "by": Writer(1, 0),
        "state": "whole",
    }
    return Manifest(**{**given, **changes})


def make(path: Path, size: int = 100, **changes: Any) -> Path:
    folder = Folder.make(path, manifest(**changes))
    folder.write("threads.txt", b"x" * size)
    folder.note(manifest(**changes))
    folder.close()
    return path


def test_files_are_private_whole_and_summed(tmp_path: Path) -> None:
    os.umask(before := os.umask(0))  # whatever the umask is
    path = make(tmp_path / "c")
    assert before >= 0
    assert path.stat().st_mode & 0o777 == 0o700
    assert {name.name: name.stat().st_mode & 0o777 for name in path.iterdir()} == {
        "manifest.json": 0o600,
        "threads.txt": 0o600,
    }
    (file,) = json.loads((path / "manifest.json").read_bytes())["files"]
    assert file == {"name": "threads.txt", "bytes": 100, "sha256": hashlib.sha256(b"x" * 100).hexdigest()}


def test_a_manifest_in_progress_tells_whether_its_writer_lives() -> None:
    assert captures.written_now(manifest(state="in progress", by=captures.me()))
    assert not captures.written_now(manifest(state="whole", by=captures.me()))
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert not captures.written_now(manifest(state="in progress", by=Writer(gone.pid, 1)))
    assert not captures.written_now(manifest(state="in progress", by=Writer(os.getpid(), 1)))  # the pid was reused


def moved(path: Path, name: str) -> None:
    path.rename(path.with_name(name))
    path.symlink_to(name)


def replaced(path: Path, **changes: Any) -> None:
    path.write_bytes(msgspec.json.encode(manifest(**changes)))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "a symlink": (lambda path, _: moved(path, "x"), "symbolic link"),
    "open to others": (lambda path, _: path.chmod(0o755), "0755"),
    "no manifest": (lambda _, file: file.unlink(), "expected our manifest.json: No such file"),
    "half a manifest": (lambda _, file: file.write_text("{half"), "expected our manifest.json"),
    "another schema": (lambda _, file: replaced(file, schema="other/1"), "other/1"),
    "a manifest elsewhere": (lambda _, file: moved(file, "m"), "expected our manifest.json"),
    "a FIFO": (lambda _, file: fifo(file), "expected our manifest.json"),
    "somebody at it": (lambda _, file: replaced(file, state="in progress", by=captures.me()), "is writing it"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_only_a_directory_of_ours_is_written_into(tmp_path: Path, name: str) -> None:
    change, word = CHANGES[name]
    path = make(tmp_path / "c")
    folder, found = Folder.existing(path)
    folder.close()
    assert found.unit == "x.service"
    change(path, path / captures.MANIFEST)
    with pytest.raises(Refused, match=word):
        Folder.existing(path)
    with pytest.raises(Refused):
        Folder.make(path, manifest())
    with pytest.raises(Refused):
        Folder.existing(tmp_path / "nothing")


def test_a_file_that_is_a_symlink_is_replaced_not_followed(tmp_path: Path) -> None:
    path = make(tmp_path / "c")
    (tmp_path / "victim").write_text("precious")
    (path / "stacks.txt").symlink_to(tmp_path / "victim")
    folder, _ = Folder.existing(path)
    folder.write("stacks.txt", b"new")
    folder.close()
    assert (tmp_path / "victim").read_text() == "precious"
    assert (path / "stacks.txt").read_bytes() == b"new"
    assert not (path / "stacks.txt").is_symlink()


def test_names_sort_by_time_and_hold_no_path() -> None:
    one, two = (captures.name("20260101T000000.000Z", "a\\x2fb/../c@1.service", 7) for _ in range(2))
    assert one != two
    assert one.startswith("20260101T000000.000Z-a_x2fb_.._c@1-7-")
    assert "/" not in one


# --- retention


DAY = 86_400.0


def kept(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ({}, ["c0", "c1", "c2", "c3"]),
        ({"max_count": 2}, ["c2", "c3"]),
        ({"max_days": 1}, ["c2", "c3"]),
        ({"max_bytes": 25_000}, ["c2", "c3"]),
        ({"max_bytes": 1}, ["c3"]),
        ({"max_count": 1, "keep": "c1"}, ["c1", "c3"]),
        ({"max_bytes": 1, "keep": "c1"}, ["c1", "c3"]),
    ],
)
def test_the_oldest_go_first_and_never_the_newest(tmp_path: Path, bounds: dict[str, Any], left: list[str]) -> None:
    now = 1_000_000.0
    for i in range(4):
        make(tmp_path / f"c{i}", size=10_000, wall=now - (3 - i) * 0.8 * DAY)
    given = {"max_count": 20, "max_bytes": 10**9, "max_days": 30, "keep": "c3", **bounds}
    said = captures.prune(tmp_path, tmp_path / given.pop("keep"), now=now, **given)
    assert kept(tmp_path) == left
    assert len(said) == 4 - len(left)
    assert all(line.startswith("removed c") for line in said)


def test_what_is_not_a_capture_of_ours_is_left_alone(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    make(elsewhere, wall=1.0)
    make(root / "new", wall=1000.0)
    make(root / "writing", wall=1.0, state="in progress", by=captures.me())
    (root / "link").symlink_to(elsewhere)
    (root / "foreign").mkdir(0o700)
    (root / "foreign" / "file").write_text("x")
    (root / "plain").write_text("x")
    make(root / "open", wall=1.0).chmod(0o755)
    with_folder = make(root / "with-folder", wall=1.0)
    (with_folder / "deep").mkdir()
    before = kept(root)
    said = captures.prune(root, root / "new", max_count=1, max_bytes=1, max_days=1, now=1e9)
    assert kept(root) == before
    assert (elsewhere / "manifest.json").exists()
    assert len(said) == 1
    assert said[0].startswith("could not remove with-folder")
    assert (with_folder / "manifest.json").exists(), "what is left of it can't be seen as ours any more"


def test_a_killed_half_way_capture_is_pruned_like_any(tmp_path: Path) -> None:
    make(tmp_path / "half", wall=1.0, state="in progress", by=Writer(2**22 - 1, 1))
    make(tmp_path / "new", wall=1000.0)
    captures.prune(tmp_path, tmp_path / "new", max_count=1, max_bytes=10**9, max_days=30, now=1000.0)
    assert kept(tmp_path) == ["new"]
