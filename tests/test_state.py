"""Private directories, and files that are whole or not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferops.core.state import private_dir, run_dir, stamp, state_dir, write_atomic
from inferops.core.verdict import BlindError, Refused, UsageError


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


def test_directories_are_made_private(private_state: Path) -> None:
    assert state_dir() == private_state / "state"
    assert state_dir("captures") == private_state / "state" / "captures"
    assert run_dir() == private_state / "run"
    assert [mode(path) for path in (state_dir(), state_dir("captures"), run_dir())] == [0o700] * 3


def test_a_kind_that_others_could_read_is_closed_and_the_base_is_left_alone(private_state: Path) -> None:
    (private_state / "state" / "captures").mkdir(parents=True, mode=0o755)
    (private_state / "state").chmod(0o755)
    state_dir("captures")
    assert mode(private_state / "state" / "captures") == 0o700
    assert mode(private_state / "state") == 0o755


@pytest.mark.parametrize(
    ("root", "environ", "state", "run"),
    [
        (True, {}, "/var/lib/inferops", "/run/inferops"),
        (False, {"HOME": "{}/h"}, "{}/h/.local/state/inferops", "{}/h/.local/state/inferops/run"),
        (False, {"HOME": "{}/h", "XDG_STATE_HOME": "{}/x"}, "{}/x/inferops", "{}/x/inferops/run"),
        (
            False,
            {"HOME": "{}/h", "XDG_STATE_HOME": "x"},
            "{}/h/.local/state/inferops",
            "{}/h/.local/state/inferops/run",
        ),
        (False, {"HOME": "{}/h", "XDG_RUNTIME_DIR": "{}/r"}, "{}/h/.local/state/inferops", "{}/r/inferops"),
        (False, {"HOME": "{}/h", "INFEROPS_STATE_DIR": "{}/s"}, "{}/s", "{}/s/run"),
    ],
)
def test_where_it_is_by_user_and_environment(
    root: bool, environ: dict[str, str], state: str, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INFEROPS_STATE_DIR", "INFEROPS_RUN_DIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    monkeypatch.setattr("inferops.core.state.private_dir", lambda path: path)  # where, not whether: nothing is made
    monkeypatch.setattr("inferops.core.state._inside", lambda base, kind: base / kind if kind else base)
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
    assert (str(state_dir()), str(run_dir())) == (state.format(tmp_path), run.format(tmp_path))


def test_a_relative_override_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROPS_STATE_DIR", "state")
    with pytest.raises(UsageError, match=r"INFEROPS_STATE_DIR: expected an absolute path, got 'state'"):
        state_dir()


def test_a_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(Refused, match="got a symbolic link to real"):
        private_dir(tmp_path / "link")


def test_a_dangling_symlink_is_refused_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="symbolic link"):
        private_dir(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    """/proc/1 is root's; for root, a directory given away is another's."""
    other = Path("/proc/1")
    if os.geteuid() == 0:
        other = tmp_path / "theirs"
        other.mkdir(mode=0o700)
        os.chown(other, 12345, 12345)
    with pytest.raises(Refused, match=r"expected a directory of uid \d+, got one of uid \d+"):
        private_dir(other)


def test_a_directory_that_others_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(Refused, match=r"others can write to it \(mode 0770\)"):
        private_dir(tmp_path)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(Refused, match="expected a directory, got another kind of file"):
        private_dir(tmp_path / "state")


def test_what_cannot_be_made_is_blind() -> None:
    with pytest.raises(BlindError, match="cannot make this directory"):
        private_dir(Path("/proc/nothing/state"))


@pytest.mark.parametrize("kind", ["..", "a/b", "/etc"])
def test_a_kind_is_one_name(kind: str) -> None:
    with pytest.raises(ValueError, match="one name"):
        state_dir(kind)


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_atomic(path, b"new" * 100_000)
    assert path.read_bytes() == b"new" * 100_000
    assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_the_old_file_and_leaves_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    path.write_bytes(b"old")
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom inferops.core import state\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "state.write_atomic(Path(sys.argv[1]), b'x' * 5000)\n"
    )  # a limit on a file's size fails in write(2), as a full disk does
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "BlindError" in done.stderr
    assert "budget: cannot write it: File too large" in done.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_is_gone_is_blind(tmp_path: Path) -> None:
    with pytest.raises(BlindError, match="cannot write it: No such file or directory"):
        write_atomic(tmp_path / "gone" / "budget", b"x")


def test_a_killed_writer_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    write_atomic(path, b"a" * 100_000)
    code = (
        "import sys\nfrom pathlib import Path\nfrom inferops.core import state\n"
        "path = Path(sys.argv[1])\nprint(flush=True)\n"
        "while True:\n    for letter in (b'b', b'c'):\n        state.write_atomic(path, letter * 100_000)\n"
    )
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.kill()
        writer.wait()
        writer.stdout.close()
        data = path.read_bytes()
        assert len(data) == 100_000
        assert len(set(data)) == 1


def test_stamps_sort_by_time_and_are_names() -> None:
    stamps = [stamp() for _ in range(3)]
    assert stamps == sorted(stamps)
    assert all(len(text) == 20 and text.endswith("Z") and "/" not in text for text in stamps)
